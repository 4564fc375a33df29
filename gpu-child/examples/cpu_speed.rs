//! Speed of the CPU device, without scheduler, socket or tokenizer.
//!
//!     cargo run --release --example cpu_speed -- model.gguf [threads]
//!
//! Prompt: 512 tokens in one batch. Decode: 64 tokens after a prompt of 64, one and eight
//! sequences at once. Each figure is the best of three, since the machine may be busy; for the
//! same reason there is also a figure by CPU time, which excludes waits for a core.

use nix::sys::resource::{UsageWho, getrusage};
use std::error::Error;
use std::path::Path;
use std::time::{Duration, Instant};
use worker_orcd_gpu::device::cpu::{CpuExecutor, Device};
use worker_orcd_gpu::device::{
    Batch, Beside, Executor, LoadOptions, NoTap, PageId, SampleWork, SequenceWork, Source,
};
use worker_orcd_gpu::model::{GgufFile, ModelConfig, ModelWeights};
use worker_orcd_ipc::{KvReaders, RequestId, Sampling, TokenId};
use worker_orcd_kernels::cpu::Isa;

const PROMPT: u32 = 512;
const DECODE: u32 = 64;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let path = args.first().ok_or("usage: cpu_speed MODEL [THREADS]")?;
    let threads = args.get(1).map(|threads| threads.parse()).transpose()?;

    let file = GgufFile::open(Path::new(path))?;
    let header = file.header()?;
    let config = ModelConfig::from_gguf(&header, None)?;
    let weights = ModelWeights::from_gguf(&header, &config)?;
    let options = LoadOptions {
        kv_cache_bytes: None,
        max_batch_tokens: PROMPT,
        max_sequence_tokens: 1024,
        role: worker_orcd_ipc::Role::Active,
        kv_readers: KvReaders::None,
        lent: 0,
        beside: Beside::default(),
        model: path.clone(),
    };
    let start = Instant::now();
    let device = Device::open(threads, Isa::detect())?;
    let mut executor = CpuExecutor::load(
        device,
        Source {
            config: &config,
            weights: &weights,
            file: None,
            retained: None,
        },
        &options,
        &mut |_, _| (),
    )?;
    drop(file);
    println!(
        "load {:.3} s, {:?}",
        start.elapsed().as_secs_f64(),
        executor.facts()
    );
    println!("{:?}", executor.memory());

    let vocab = config.vocab_size as u32;
    report("prompt 512", || prompt(&mut executor, vocab))?;
    for sequences in [1, 8] {
        let name = format!("decode, {sequences} at once");
        report(&name, || decode(&mut executor, vocab, sequences))?;
    }
    Ok(())
}

/// Cost of some tokens.
struct Cost {
    tokens: u32,
    wall: Duration,
    cpu: Duration,
}

impl Cost {
    fn of(
        tokens: u32,
        run: impl FnOnce() -> Result<(), Box<dyn Error>>,
    ) -> Result<Self, Box<dyn Error>> {
        let (start, cpu) = (Instant::now(), cpu_time()?);
        run()?;
        Ok(Self {
            tokens,
            wall: start.elapsed(),
            cpu: cpu_time()? - cpu,
        })
    }
}

fn cpu_time() -> Result<Duration, Box<dyn Error>> {
    let used = getrusage(UsageWho::RUSAGE_SELF)?.user_time();
    Ok(Duration::new(
        used.tv_sec() as u64,
        1000 * used.tv_usec() as u32,
    ))
}

fn report(
    name: &str,
    mut run: impl FnMut() -> Result<Cost, Box<dyn Error>>,
) -> Result<(), Box<dyn Error>> {
    let (mut wall, mut cpu) = (0f64, 0f64);
    for _ in 0..3 {
        let cost = run()?;
        wall = wall.max(f64::from(cost.tokens) / cost.wall.as_secs_f64());
        cpu = cpu.max(f64::from(cost.tokens) / cost.cpu.as_secs_f64());
    }
    println!("{name}: {wall:.1} tok/s, {cpu:.1} tok per CPU second");
    Ok(())
}

fn tokens(count: u32, vocab: u32) -> Vec<TokenId> {
    (0..count)
        .map(|i| TokenId((i * 7919 + 13) % vocab))
        .collect()
}

fn prompt(executor: &mut CpuExecutor, vocab: u32) -> Result<Cost, Box<dyn Error>> {
    let tokens = tokens(PROMPT, vocab);
    Cost::of(PROMPT, || run(executor, &[(&tokens, 0)]).map(|_| ()))
}

fn decode(executor: &mut CpuExecutor, vocab: u32, sequences: u32) -> Result<Cost, Box<dyn Error>> {
    let prompt = tokens(64, vocab);
    // Every sequence starts from the same token; the cost of decoding does not depend on the
    // contents of its pages.
    let mut last = vec![run(executor, &[(&prompt, 0)])?[0]; sequences as usize];
    Cost::of(DECODE * sequences, || {
        for position in 64..64 + DECODE {
            let rows: Vec<[TokenId; 1]> = last.iter().map(|&token| [token]).collect();
            let work: Vec<(&[TokenId], u32)> =
                rows.iter().map(|row| (&row[..], position)).collect();
            last = run(executor, &work)?;
        }
        Ok(())
    })
}

/// Runs one step; sequence `i` has its own pages.
fn run(
    executor: &mut CpuExecutor,
    work: &[(&[TokenId], u32)],
) -> Result<Vec<TokenId>, Box<dyn Error>> {
    const PAGES: u32 = 32;
    let pages: Vec<Vec<PageId>> = (0..work.len() as u32)
        .map(|i| (i * PAGES..(i + 1) * PAGES).map(PageId).collect())
        .collect();
    let sampling = SampleWork::new(Sampling::default(), &[], &[]);
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
            drafts: 0,
        })
        .collect();
    let drawn = executor.step(
        &Batch {
            step: 1,
            sequences: &sequences,
        },
        &mut NoTap,
    )?;
    Ok(drawn.into_iter().map(|row| row.token).collect())
}
