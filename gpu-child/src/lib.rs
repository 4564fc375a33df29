//! The disposable process that owns one device, its model and its KV cache.

pub mod device;
pub mod model;
