//! Tests of the CUDA device through its interface: the law of the boundary bit for bit, and the arithmetic
//! against the scalar references.
//!
//! They need a card: `cargo xtask kernels`, then `cargo test --test cuda -- --ignored`. Tests without a
//! card are in `absent`.

mod absent;
mod ahead;
mod exactness;
mod experts;
mod gemma4;
mod kept_kv;
mod parity;
mod prompts;
mod real_model;
#[path = "../support/mod.rs"]
#[allow(dead_code, reason = "shared with the CPU device's tests")]
mod support;

use support::Model;
use worker_orcd_gpu::device::cuda::{CudaExecutor, CudaOptions, Device};
use worker_orcd_gpu::device::{Beside, LoadOptions, Source};
use worker_orcd_ipc::KvReaders;

/// Room for 256 sequences of a few pages.
fn options() -> CudaOptions {
    CudaOptions {
        memory_permille: 900,
        max_sequences: 256,
        load: LoadOptions {
            kv_cache_bytes: Some(256 << 20),
            max_batch_tokens: 512,
            max_sequence_tokens: 1024,
            role: worker_orcd_ipc::Role::Active,
            kv_readers: KvReaders::None,
            lent: 0,
            beside: Beside::default(),
            model: "random".to_owned(),
        },
    }
}

fn load(model: &Model) -> CudaExecutor {
    load_with(model, &options())
}

fn load_with(model: &Model, options: &CudaOptions) -> CudaExecutor {
    CudaExecutor::load(
        Device::open(0).expect("a device"),
        Source {
            config: &model.config,
            weights: &model.weights(),
            file: None,
            retained: None,
        },
        options,
        &mut |_, _| (),
    )
    .expect("a device with room for a small model")
}
