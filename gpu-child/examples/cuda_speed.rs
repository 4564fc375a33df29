//! How fast the CUDA device computes, without scheduler, socket or tokenizer around it.
//!
//!     cargo run --release --example cuda_speed -- [0.5b|7b|135m] [F16|Q8_0|...] [decode|prompt][=N]
//!
//! Random weights in the shapes of Qwen2.5-0.5B, Qwen2.5-7B or SmolLM2-135M. Decode: 32 steps of
//! a batch behind 128 positions each, the median step; prompts: the median of several. Every step
//! draws greedily, so its time includes the way to the host and back.

use std::time::Instant;
use worker_orcd_gpu::device::cuda::{CudaExecutor, CudaOptions, KvOrder};
use worker_orcd_gpu::device::{Batch, Executor, NoTap, PageId, SampleWork, SequenceWork};
use worker_orcd_gpu::model::{Architecture, ModelConfig, RopeStyle};
use worker_orcd_ipc::{RequestId, Sampling, TokenId};
use worker_orcd_kernels::TensorType;

#[path = "../tests/support/mod.rs"]
#[allow(dead_code, reason = "shared with the tests")]
mod support;

type Failure = Box<dyn std::error::Error>;

const CONTEXT: usize = 128;
const STEPS: usize = 32;
const BATCH_TOKENS: usize = 1280;

fn main() -> Result<(), Failure> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let shape = args.first().map_or("0.5b", String::as_str);
    let ty = args.get(1).map_or("F16", String::as_str);
    let ty = TensorType::ALL
        .into_iter()
        .find(|known| known.name() == ty)
        .ok_or("no such type")?;
    let model = support::Model::random_tied(config(shape)?, [ty; 9]);
    let options = CudaOptions {
        ordinal: 0,
        kv_cache: KvOrder::Bytes(4 << 30),
        max_batch_tokens: BATCH_TOKENS as u32,
        max_sequence_tokens: 2048,
        model: shape.to_owned(),
    };
    let start = Instant::now();
    let mut executor = CudaExecutor::load(
        &model.config,
        &model.weights(),
        None,
        &options,
        &mut |_, _| (),
    )?;
    let seconds = start.elapsed().as_secs_f64();
    let weights = executor.memory().weights_bytes;
    println!(
        "{shape} {}: load {seconds:.3} s, {weights} bytes",
        ty.name()
    );
    let only = args.get(2).map(String::as_str);
    for batch in sizes("decode", only, &[1, 2, 4, 8, 16, 32, 64, 128, 256])? {
        let micros = decode(&mut executor, batch)?;
        println!(
            "decode {batch:4}: {micros:8.0} us, {:8.0} tok/s, weights at {:.2} TB/s",
            batch as f64 * 1e6 / micros,
            weights as f64 / micros / 1e6
        );
    }
    for length in sizes("prompt", only, &[128, 512, 1024])? {
        let micros = prompt(&mut executor, length)?;
        let rate = length as f64 * 1e6 / micros;
        println!("prompt {length:4}: {micros:8.0} us, {rate:8.0} tok/s");
    }
    Ok(())
}

/// Those of one kind, unless the command line asks for another kind or for one size.
fn sizes(kind: &str, only: Option<&str>, all: &[usize]) -> Result<Vec<usize>, Failure> {
    match only.map(|only| only.split_once('=').unwrap_or((only, ""))) {
        Some((wanted, _)) if wanted != kind => Ok(Vec::new()),
        Some((_, size)) if !size.is_empty() => Ok(vec![size.parse()?]),
        _ => Ok(all.to_vec()),
    }
}

fn config(shape: &str) -> Result<ModelConfig, Failure> {
    let (n_layers, n_embd, n_ff, n_heads, n_kv_heads, head_dim, vocab_size) = match shape {
        "0.5b" => (24, 896, 4864, 14, 2, 64, 151_936),
        "7b" => (28, 3584, 18_944, 28, 4, 128, 152_064),
        "135m" => (30, 576, 1536, 9, 3, 64, 49_152),
        _ => return Err("no such shape".into()),
    };
    Ok(ModelConfig {
        architecture: Architecture::Qwen2,
        n_layers,
        n_embd,
        n_ff,
        n_heads,
        n_kv_heads,
        head_dim,
        vocab_size,
        context_length: 32_768,
        norm_eps: 1e-6,
        rope_style: RopeStyle::HalfOffset,
        rope_base: 1e6,
        rope_dims: head_dim,
        rope_scale: 1.0,
        rope_factors: None,
        rope_attn_factor: 1.0,
        sliding_window: None,
    })
}

/// Microseconds of the median step.
fn decode(executor: &mut CudaExecutor, batch: usize) -> Result<f64, Failure> {
    const PAGES: usize = (CONTEXT + STEPS).div_ceil(32) + 1;
    let tables: Vec<Vec<PageId>> = (0..batch)
        .map(|i| (0..PAGES).map(|p| PageId((i * PAGES + p) as u32)).collect())
        .collect();
    let prompt: Vec<TokenId> = (0..CONTEXT as u32)
        .map(|i| TokenId(i * 37 % 1000))
        .collect();
    // As many prompts at a time as a batch has room for.
    for tables in tables.chunks(BATCH_TOKENS / CONTEXT) {
        let shares: Vec<_> = tables
            .iter()
            .map(|pages| work(&prompt, 0, pages, true))
            .collect();
        run(executor, &shares)?;
    }
    let mut times = Vec::new();
    for step in 0..STEPS {
        let token = [TokenId(step as u32)];
        let shares: Vec<_> = tables
            .iter()
            .map(|pages| work(&token, CONTEXT + step, pages, true))
            .collect();
        let start = Instant::now();
        run(executor, &shares)?;
        times.push(start.elapsed().as_secs_f64() * 1e6);
    }
    Ok(median(times))
}

fn prompt(executor: &mut CudaExecutor, length: usize) -> Result<f64, Failure> {
    let pages: Vec<PageId> = (0..length.div_ceil(32) as u32).map(PageId).collect();
    let tokens: Vec<TokenId> = (0..length as u32).map(|i| TokenId(i * 37 % 1000)).collect();
    let mut times = Vec::new();
    for _ in 0..7 {
        let start = Instant::now();
        run(executor, &[work(&tokens, 0, &pages, true)])?;
        times.push(start.elapsed().as_secs_f64() * 1e6);
    }
    Ok(median(times))
}

fn work<'a>(
    tokens: &'a [TokenId],
    first: usize,
    pages: &'a [PageId],
    draws: bool,
) -> SequenceWork<'a> {
    let sampling = Sampling {
        temperature: 0.0,
        ..Sampling::default()
    };
    SequenceWork {
        request: RequestId(0),
        tokens,
        first_position: first as u32,
        pages,
        sample: draws.then_some(SampleWork {
            sampling,
            prompt: &[],
            generated: &[],
        }),
    }
}

fn run(executor: &mut CudaExecutor, sequences: &[SequenceWork<'_>]) -> Result<(), Failure> {
    let batch = Batch { step: 1, sequences };
    executor.step(&batch, &mut NoTap)?;
    Ok(())
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}
