//! The CPU device from outside: the law of the boundary, and its arithmetic.

mod exactness;
mod kept_kv;
mod kept_weights;
mod reference;
#[path = "../support/mod.rs"]
#[allow(dead_code, reason = "shared with the CUDA device's tests")]
mod support;
