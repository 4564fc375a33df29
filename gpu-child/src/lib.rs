//! The disposable process that owns one device, its model and its KV cache.

pub mod device;
pub mod kv_cache;
pub mod model;
pub mod rng;
pub mod sampler;
pub mod scheduler;
