//! How fast the CPU device computes, without scheduler, socket or tokenizer around it.
//!
//!     cargo run --release --example cpu_speed -- model.gguf [threads]
//!
//! Prompt: 512 tokens in one batch. Decode: 64 tokens behind a prompt of 64, alone and eight
//! sequences at once. Each figure is the best of three, because the machine may be busy.

use std::path::Path;
use std::time::Instant;
use worker_orcd_gpu::device::cpu::{CpuExecutor, CpuOptions};
use worker_orcd_gpu::device::{Batch, Executor, NoTap, PageId, SampleWork, SequenceWork};
use worker_orcd_gpu::model::{GgufFile, ModelConfig, ModelWeights};
use worker_orcd_ipc::{RequestId, Sampling, TokenId};

type Failure = Box<dyn std::error::Error>;

const PROMPT: u32 = 512;
const DECODE: u32 = 64;

fn main() -> Result<(), Failure> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let path = args.first().ok_or("usage: cpu_speed MODEL [THREADS]")?;
    let threads = args.get(1).map(|threads| threads.parse()).transpose()?;

    let file = GgufFile::open(Path::new(path))?;
    let header = file.header()?;
    let config = ModelConfig::from_gguf(&header, None)?;
    let weights = ModelWeights::from_gguf(&header, &config)?;
    let options = CpuOptions {
        threads,
        kv_cache_bytes: None,
        max_batch_tokens: PROMPT,
        max_sequence_tokens: 1024,
        model: path.clone(),
    };
    let start = Instant::now();
    let mut executor = CpuExecutor::load(&config, &weights, &options, &mut |_, _| ())?;
    drop(file);
    println!(
        "load {:.3} s, {:?}",
        start.elapsed().as_secs_f64(),
        executor.facts()
    );
    println!("{:?}", executor.memory());

    let vocab = config.vocab_size as u32;
    let best = |mut run: Box<dyn FnMut() -> Result<f64, Failure> + '_>| -> Result<f64, Failure> {
        (0..3).try_fold(0f64, |best, _| Ok(best.max(run()?)))
    };
    println!(
        "prompt {PROMPT}: {:.1} tok/s",
        best(Box::new(|| prompt(&mut executor, vocab)))?
    );
    for sequences in [1, 8] {
        let rate = best(Box::new(|| decode(&mut executor, vocab, sequences)))?;
        println!("decode, {sequences} at once: {rate:.1} tok/s");
    }
    Ok(())
}

fn tokens(count: u32, vocab: u32) -> Vec<TokenId> {
    (0..count)
        .map(|i| TokenId((i * 7919 + 13) % vocab))
        .collect()
}

fn prompt(executor: &mut CpuExecutor, vocab: u32) -> Result<f64, Failure> {
    let tokens = tokens(PROMPT, vocab);
    let start = Instant::now();
    run(executor, &[(&tokens, 0)])?;
    Ok(f64::from(PROMPT) / start.elapsed().as_secs_f64())
}

fn decode(executor: &mut CpuExecutor, vocab: u32, sequences: usize) -> Result<f64, Failure> {
    let prompt = tokens(64, vocab);
    let mut last = Vec::new();
    for _ in 0..sequences {
        last.push(run(executor, &[(&prompt, 0)])?[0]);
    }
    // Every sequence was prefilled into the pages of sequence 0; what decoding costs does not
    // depend on what the pages hold.
    let start = Instant::now();
    for position in 64..64 + DECODE {
        let rows: Vec<[TokenId; 1]> = last.iter().map(|&token| [token]).collect();
        let work: Vec<(&[TokenId], u32)> = rows.iter().map(|row| (&row[..], position)).collect();
        last = run(executor, &work)?;
    }
    Ok(f64::from(DECODE) * sequences as f64 / start.elapsed().as_secs_f64())
}

/// One step; sequence `i` has pages of its own.
fn run(executor: &mut CpuExecutor, work: &[(&[TokenId], u32)]) -> Result<Vec<TokenId>, Failure> {
    const PAGES: u32 = 32;
    let pages: Vec<Vec<PageId>> = (0..work.len() as u32)
        .map(|i| (i * PAGES..(i + 1) * PAGES).map(PageId).collect())
        .collect();
    let sampling = SampleWork {
        sampling: Sampling::default(),
        prompt: &[],
        generated: &[],
    };
    let sequences: Vec<SequenceWork<'_>> = work
        .iter()
        .zip(&pages)
        .enumerate()
        .map(|(i, (&(tokens, first_position), pages))| SequenceWork {
            request: RequestId(i as u64),
            tokens,
            first_position,
            pages,
            sample: Some(sampling),
        })
        .collect();
    let drawn = executor.step(
        &Batch {
            step: 1,
            sequences: &sequences,
        },
        &mut NoTap,
    )?;
    Ok(drawn.into_iter().flatten().collect())
}
