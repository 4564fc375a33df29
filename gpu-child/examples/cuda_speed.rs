//! How fast the CUDA device computes, without scheduler, socket or tokenizer around it.
//!
//!     cargo run --release --example cuda_speed -- [0.5b|7b|135m] [F16|Q8_0|...] \
//!         [decode|prompt|all][=N] [greedy|plain|top_k|top_p|both|penalties]
//!
//! Random weights in the shapes of Qwen2.5-0.5B, Qwen2.5-7B or SmolLM2-135M. Decode: 32 steps of
//! a batch behind 128 positions each, a step launched behind another (and the median step that is
//! waited for); prompts: the median of several. Every step
//! draws, greedily if nothing else is said, so its time includes the way to the host and back.

use shapes::BoxError;
use std::time::Instant;
use worker_orcd_gpu::device::cuda::{CudaExecutor, CudaOptions, Device};
use worker_orcd_gpu::device::{
    Batch, Executor, LoadOptions, NoTap, PageId, SampleWork, SequenceWork, Source, TO_BE_DRAWN,
};
use worker_orcd_ipc::{RequestId, Sampling, TokenId};

#[path = "../tests/support/mod.rs"]
#[allow(dead_code, reason = "shared with the tests")]
mod support;

#[path = "shared/shapes.rs"]
mod shapes;

const BATCH_TOKENS: usize = 1280;
const CONTEXT: usize = 128;
const STEPS: usize = 32;

fn main() -> Result<(), BoxError> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let shape = args.first().map_or("0.5b", String::as_str);
    let ty = shapes::tensor_type(args.get(1).map_or("F16", String::as_str))?;
    let model = support::Model::random_tied(shapes::config(shape)?, [ty; 9]);
    let options = CudaOptions {
        memory_permille: 900,
        max_sequences: BATCH_TOKENS as u32,
        load: LoadOptions {
            kv_cache_bytes: Some(4 << 30),
            max_batch_tokens: BATCH_TOKENS as u32,
            max_sequence_tokens: 2048,
            role: worker_orcd_ipc::Role::Active,
            shares_kv: false,
            lent: 0,
            model: shape.to_owned(),
        },
    };
    let start = Instant::now();
    let mut executor = CudaExecutor::load(
        Device::open(0)?,
        Source {
            config: &model.config,
            weights: &model.weights(),
            file: None,
            kept: None,
        },
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
    let sampling = shapes::sampling(args.get(3).map_or("greedy", String::as_str))?;
    for batch in sizes("decode", only, &[1, 2, 4, 8, 16, 32, 64, 128, 256])? {
        let (alone, micros) = decode(&mut executor, batch, sampling)?;
        println!(
            "decode {batch:4}: {micros:8.0} us, {alone:8.0} us one by one, {:8.0} tok/s, weights at \
             {:.2} TB/s",
            batch as f64 * 1e6 / micros,
            weights as f64 / micros / 1e6
        );
    }
    for length in sizes("prompt", only, &[128, 512, 1024])? {
        let micros = prompt(&mut executor, length, sampling)?;
        let rate = length as f64 * 1e6 / micros;
        println!("prompt {length:4}: {micros:8.0} us, {rate:8.0} tok/s");
    }
    Ok(())
}

/// Those of one kind, unless the command line asks for another kind or for one size.
fn sizes(kind: &str, only: Option<&str>, all: &[usize]) -> Result<Vec<usize>, BoxError> {
    match only.map(|only| only.split_once('=').unwrap_or((only, ""))) {
        Some((wanted, _)) if wanted != kind && wanted != "all" => Ok(Vec::new()),
        Some((_, size)) if !size.is_empty() => Ok(vec![size.parse()?]),
        _ => Ok(all.to_vec()),
    }
}

/// Microseconds of the median step that is waited for, and of a step with another one behind it.
fn decode(
    executor: &mut CudaExecutor,
    batch: usize,
    sampling: Sampling,
) -> Result<(f64, f64), BoxError> {
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
            .map(|pages| work(&prompt, 0, pages, sampling))
            .collect();
        run(executor, &shares)?;
    }
    let mut times = Vec::new();
    for step in 0..STEPS {
        let token = [TokenId(step as u32)];
        let shares: Vec<_> = tables
            .iter()
            .map(|pages| work(&token, CONTEXT + step, pages, sampling))
            .collect();
        let start = Instant::now();
        run(executor, &shares)?;
        times.push(start.elapsed().as_secs_f64() * 1e6);
    }
    let ahead = executor.ahead().ok_or("a device that can be ahead")?;
    let mut start = Instant::now();
    for step in 0..=STEPS {
        let token = [if step == 0 { TokenId(5) } else { TO_BE_DRAWN }];
        let shares: Vec<_> = tables
            .iter()
            .zip(0..)
            .map(|(pages, request)| SequenceWork {
                request: RequestId(request),
                ..work(&token, CONTEXT + step % STEPS, pages, sampling)
            })
            .collect();
        ahead.begin(&Batch {
            step: 1,
            sequences: &shares,
        })?;
        if step == 0 {
            continue;
        }
        ahead.finish()?;
        if step == 1 {
            start = Instant::now();
        }
    }
    let each = start.elapsed().as_secs_f64() * 1e6 / (STEPS - 1) as f64;
    ahead.finish()?;
    Ok((median(times), each))
}

fn prompt(executor: &mut CudaExecutor, length: usize, sampling: Sampling) -> Result<f64, BoxError> {
    let pages: Vec<PageId> = (0..length.div_ceil(32) as u32).map(PageId).collect();
    let tokens: Vec<TokenId> = (0..length as u32).map(|i| TokenId(i * 37 % 1000)).collect();
    let mut times = Vec::new();
    for _ in 0..7 {
        let start = Instant::now();
        run(executor, &[work(&tokens, 0, &pages, sampling)])?;
        times.push(start.elapsed().as_secs_f64() * 1e6);
    }
    Ok(median(times))
}

fn work<'a>(
    tokens: &'a [TokenId],
    first: usize,
    pages: &'a [PageId],
    sampling: Sampling,
) -> SequenceWork<'a> {
    SequenceWork {
        request: RequestId(0),
        tokens,
        first_position: first as u32,
        pages,
        sample: Some(SampleWork {
            sampling,
            prompt: tokens,
            generated: &[],
        }),
    }
}

fn run(executor: &mut CudaExecutor, sequences: &[SequenceWork<'_>]) -> Result<(), BoxError> {
    let batch = Batch { step: 1, sequences };
    executor.step(&batch, &mut NoTap)?;
    Ok(())
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}
