//! Speed of the CUDA device, without scheduler, socket or tokenizer.
//!
//!     cargo run --release --example cuda_speed -- [SHAPE] [F16|Q8_0|...] \
//!         [decode|prompt|all][=N,...][@CONTEXT,...] [greedy|plain|top_k|top_p|both|penalties] [layers=N] [chunk=N] [rounds=N] \
//!         [drafts=N,...] [accepted=P] [graphs=1,0]
//!
//! Random weights in the shape of a model (`0.5b`, the default, `7b`, `135m`, `30b-a3b`, `gpt-oss-20b`, `qwen3.6-27b`, `qwen3.6-35b-a3b`,
//! `gemma4-31b`, `gemma4-26b-a4b`: `shared/shapes.rs`), all layers or the first N. The bytes of experts that a step reads are estimated for uniform choices of its tokens. Decode: 32
//! steps of a batch after CONTEXT positions (default 128), each launched after another in flight (and the median
//! synchronous step); prompts: the median of several, in chunks of N tokens (default 1,280). Each is measured
//! once, or N times. Every step draws (default: greedy), so its time includes the transfers to the host and
//! back. Drafts: the median of 32 steps in which each sequence has N drafted rows behind its newest token, and tokens per
//! second if each draft is right with probability P (default 0.8) behind a right one. `graphs=1,0` measures everything with
//! graphs, then with launches one by one.

use shapes::BoxError;
use std::error::Error;
use std::str::FromStr;
use std::time::{Duration, Instant};
use worker_orcd_gpu::device::cuda::{CudaExecutor, CudaOptions, Device};
use worker_orcd_gpu::device::{
    Batch, Beside, Executor, LoadOptions, NoTap, PageId, SampleWork, SequenceWork, Source,
    TO_BE_DRAWN,
};
use worker_orcd_gpu::model::{FeedForward, FileLinear};
use worker_orcd_ipc::{KvReaders, RequestId, Sampling, TokenId};

#[path = "../tests/support/mod.rs"]
#[allow(dead_code, reason = "shared with the tests")]
mod support;

#[path = "shared/shapes.rs"]
mod shapes;

const STEPS: usize = 32;
const PAGE: usize = 32;
/// Steps with drafts before those that are timed.
const UNTIMED: usize = 8;
/// Rows of drafts that fit into a sequence's last page.
const MOST_DRAFTS: usize = PAGE - 1;

/// Parsed selection of a measurement.
struct Measurement {
    /// `decode`, `prompt` or `all`.
    kind: String,
    /// Sequences or tokens; none: several sizes.
    sizes: Vec<usize>,
    contexts: Vec<usize>,
}

impl Measurement {
    fn parse(text: &str) -> Result<Self, BoxError> {
        let (text, contexts) = text.split_once('@').unwrap_or((text, "128"));
        let (kind, sizes) = text.split_once('=').unwrap_or((text, ""));
        let parsed = |list: &str| -> Result<Vec<usize>, BoxError> {
            let numbers = list.split(',').filter(|number| !number.is_empty());
            Ok(numbers.map(str::parse).collect::<Result<_, _>>()?)
        };
        Ok(Self {
            kind: kind.to_owned(),
            sizes: parsed(sizes)?,
            contexts: parsed(contexts)?,
        })
    }

    /// Sizes of one kind.
    fn sizes(&self, kind: &str, all: &[usize]) -> Vec<usize> {
        match &self.sizes {
            _ if self.kind != kind && self.kind != "all" => Vec::new(),
            sizes if sizes.is_empty() => all.to_vec(),
            sizes => sizes.clone(),
        }
    }
}

/// Options of the form `name=value`.
struct Named(Vec<String>);

impl Named {
    const NAMES: [&str; 6] = ["layers", "chunk", "rounds", "drafts", "accepted", "graphs"];

    /// These options, and the other arguments.
    fn split(args: impl Iterator<Item = String>) -> (Self, Vec<String>) {
        let is_named = |arg: &String| Self::NAMES.iter().any(|name| value(arg, name).is_some());
        let (named, others) = args.partition(is_named);
        (Self(named), others)
    }

    /// The numbers of an option, separated by commas.
    fn all<T: FromStr<Err: Error + 'static>>(&self, name: &str) -> Result<Vec<T>, BoxError> {
        let text = self.0.iter().find_map(|option| value(option, name));
        let numbers = text.unwrap_or_default().split(',');
        let numbers = numbers.filter(|number| !number.is_empty());
        Ok(numbers.map(str::parse).collect::<Result<_, _>>()?)
    }

    fn one<T: FromStr<Err: Error + 'static> + Copy>(
        &self,
        name: &str,
    ) -> Result<Option<T>, BoxError> {
        Ok(self.all(name)?.first().copied())
    }
}

fn value<'a>(option: &'a str, name: &str) -> Option<&'a str> {
    option.strip_prefix(name)?.strip_prefix('=')
}

fn main() -> Result<(), BoxError> {
    let (named, args) = Named::split(std::env::args().skip(1));
    let chunk = named.one("chunk")?.unwrap_or(1280);
    let rounds = named.one("rounds")?.unwrap_or(1);
    let drafts: Vec<usize> = named.all("drafts")?;
    let accepted = named.one("accepted")?.unwrap_or(0.8);
    if let Some(drafts) = drafts.iter().find(|drafts| **drafts > MOST_DRAFTS) {
        return Err(format!("drafts={drafts}: at most {MOST_DRAFTS}").into());
    }
    let shape = args.first().map_or("0.5b", String::as_str);
    let ty = shapes::tensor_type(args.get(1).map_or("F16", String::as_str))?;
    let wanted = Measurement::parse(args.get(2).map_or("all", String::as_str))?;
    let sampling = shapes::sampling(args.get(3).map_or("greedy", String::as_str))?;
    let mut config = shapes::config(shape)?;
    if let Some(layers) = named.one("layers")? {
        config.n_layers = layers;
    }
    let decodes = wanted.sizes("decode", &[1, 2, 4, 8, 16, 32, 64, 128, 256]);
    let prompts = wanted.sizes("prompt", &[128, 512, 1024]);
    if let (Some(drafts), Some(batch)) = (drafts.iter().max(), decodes.iter().max())
        && batch * (1 + drafts) > chunk
    {
        let rows = batch * (1 + drafts);
        return Err(format!(
            "decode={batch} with drafts={drafts} has {rows} rows; chunk={chunk} is the most"
        )
        .into());
    }
    let furthest = wanted.contexts.iter().copied().max().unwrap_or_default();
    let per_sequence = pages_behind(furthest) * PAGE;
    let positions = decodes.iter().map(|batch| batch * per_sequence);
    let positions = positions.chain(prompts.iter().copied()).max();
    let halves = 2 * config.n_layers * config.n_kv_heads * config.head_dim;
    let longest = prompts.iter().copied().chain([per_sequence, 2048]).max();
    // The device computes the size of their pages, which hold states or two kinds of heads: they get the rest of the memory.
    let has_large_pages = config.recurrent.is_some() || config.sliding_heads.is_some();
    let mut model = support::Model::random_tied(config, shapes::types(shape, ty));
    model.has_head_norms = has_large_pages || shape == "30b-a3b";
    model.has_post_norms = shape.starts_with("gemma");
    let options = CudaOptions {
        memory_permille: 900,
        max_sequences: chunk as u32,
        load: LoadOptions {
            kv_cache_bytes: (!has_large_pages)
                .then_some((2 * positions.unwrap_or(0) * halves).max(4 << 30) as u64),
            max_batch_tokens: chunk as u32,
            max_sequence_tokens: longest.unwrap_or(0) as u32,
            role: worker_orcd_ipc::Role::Active,
            kv_readers: KvReaders::None,
            lent: 0,
            beside: Beside::default(),
            model: shape.to_owned(),
        },
    };
    let start = Instant::now();
    let executor = CudaExecutor::load(
        Device::open(0)?,
        Source {
            config: &model.config,
            weights: &model.weights(),
            file: None,
            retained: None,
        },
        &options,
        &mut |_, _| (),
    )?;
    let seconds = start.elapsed().as_secs_f64();
    let read = Read::of(&model, executor.memory().weights_bytes);
    println!(
        "{shape} {}: load {seconds:.3} s, {} bytes, {:.0} of a token",
        ty.name(),
        read.all,
        read.by(1)
    );
    let mut run = Run {
        executor,
        chunk,
        sampling,
        read,
    };
    let of_context = |&context: &usize| decodes.iter().map(move |&batch| (batch, context));
    let sizes: Vec<_> = wanted.contexts.iter().flat_map(of_context).collect();
    let has_drafts = !drafts.is_empty();
    let ways = named.all::<u8>("graphs")?;
    for way in if ways.is_empty() { vec![1] } else { ways } {
        run.executor.use_graphs(way != 0);
        if has_drafts {
            println!("graphs: {}", way != 0);
        }
        for (batch, context) in repeated(sizes.clone(), rounds) {
            let alone = run.show_decode(batch, context)?;
            for &drafts in &drafts {
                run.show_drafts(batch, context, drafts, (accepted, alone))?;
            }
        }
    }
    for length in repeated(prompts, rounds) {
        let micros = run.prompt(length)?;
        let rate = length as f64 * 1e6 / micros;
        println!(
            "prompt {length:4}: {micros:8.0} us, {rate:8.0} tok/s, weights at {:.2} TB/s",
            run.read.by(length) / micros / 1e6
        );
    }
    Ok(())
}

/// Each so many times in a row.
fn repeated<T: Copy>(all: Vec<T>, rounds: usize) -> impl Iterator<Item = T> {
    let times = move |it| std::iter::repeat_n(it, rounds);
    all.into_iter().flat_map(times)
}

/// Bytes of weights that steps read.
struct Read {
    all: u64,
    /// Share of experts in the bytes, and share of the experts that a token uses.
    of_experts: f64,
    used: f64,
}

impl Read {
    fn of(model: &support::Model, all: u64) -> Self {
        let bytes = |linear: &FileLinear<'_>| linear.weight.data.len();
        let (weights, mut of_experts) = (model.weights(), 0);
        let blocks = weights.layers.iter().flat_map(|layer| &layer.feed_forward);
        for block in blocks {
            if let FeedForward::Experts(experts) = &block.part {
                of_experts += experts.unit.linears().map(bytes).sum::<usize>();
            }
        }
        let of_file: usize = weights.matrices().map(|matrix| matrix.data.len()).sum();
        let experts = model.config.experts;
        Self {
            all,
            of_experts: of_experts as f64 / of_file as f64,
            used: experts.map_or(0.0, |it| it.used as f64 / it.count as f64),
        }
    }

    /// Bytes of a step of this number of tokens: the dense part, and each expert that at least one token chooses.
    fn by(&self, tokens: usize) -> f64 {
        let chosen = 1.0 - (1.0 - self.used).powi(tokens as i32);
        self.all as f64 * (1.0 - self.of_experts * (1.0 - chosen))
    }
}

/// Pages of a decoding sequence after this number of positions.
fn pages_behind(context: usize) -> usize {
    (context + STEPS).div_ceil(PAGE) + 1
}

/// Measurement on a device.
struct Run {
    executor: CudaExecutor,
    /// Tokens per batch.
    chunk: usize,
    sampling: Sampling,
    read: Read,
}

impl Run {
    /// Measures decoding without drafts. Returns the microseconds of a step with another one in flight.
    fn show_decode(&mut self, batch: usize, context: usize) -> Result<f64, BoxError> {
        let (alone, micros) = self.decode(batch, context)?;
        println!(
            "decode {batch:4}@{context}: {micros:8.0} us, {alone:8.0} us one by one, {:8.0} tok/s, weights at \
             {:.2} TB/s",
            batch as f64 * 1e6 / micros,
            self.read.by(batch) / micros / 1e6
        );
        Ok(micros)
    }

    /// Measures steps with drafts, of which each is right with this probability behind a right one. `alone`: microseconds of a
    /// step without.
    fn show_drafts(
        &mut self,
        batch: usize,
        context: usize,
        drafts: usize,
        (accepted, alone): (f64, f64),
    ) -> Result<(), BoxError> {
        let micros = self.drafts(batch, context, drafts)?;
        let chances = (0..=drafts as i32).map(|before| accepted.powi(before));
        let tokens = chances.sum::<f64>();
        println!(
            "  {drafts:2} drafts: {micros:8.0} us, {:.2} of a step without, {:8.0} tok/s if {accepted:.2} are right, {:.2} of \
             those without",
            micros / alone,
            batch as f64 * tokens * 1e6 / micros,
            tokens * alone / micros
        );
        Ok(())
    }

    /// Microseconds of the median synchronous step, and of a step with another one in flight.
    fn decode(&mut self, batch: usize, context: usize) -> Result<(f64, f64), BoxError> {
        let (tables, sampling) = (self.prefill(batch, context)?, self.sampling);
        let own = |step: usize| -> Vec<[TokenId; 1]> {
            let of = |i: usize| [TokenId(((step + 97 * i) % 1000) as u32)];
            (0..batch).map(of).collect()
        };
        let mut times = Vec::new();
        for step in 0..STEPS {
            let tokens = own(step);
            let shares: Vec<_> = tables
                .iter()
                .zip(&tokens)
                .map(|(pages, token)| work(token, context + step, pages, sampling))
                .collect();
            let start = Instant::now();
            self.step(&shares)?;
            times.push(start.elapsed().as_secs_f64() * 1e6);
        }
        let mut start = Instant::now();
        for step in 0..=STEPS {
            let tokens = match step {
                0 => own(step),
                _ => vec![[TO_BE_DRAWN]; batch],
            };
            let shares: Vec<_> = tables
                .iter()
                .zip(&tokens)
                .zip(0..)
                .map(|((pages, token), request)| SequenceWork {
                    request: RequestId(request),
                    ..work(token, context + step % STEPS, pages, sampling)
                })
                .collect();
            let batch = Batch {
                step: 1,
                sequences: &shares,
            };
            self.executor.begin(&batch, &mut NoTap)?;
            let draws: Vec<_> = shares.iter().map(|work| work.sample).collect();
            self.executor.draw(&draws, &mut NoTap)?;
            if step == 0 {
                continue;
            }
            self.executor.finish(&mut NoTap)?;
            if step == 1 {
                start = Instant::now();
            }
        }
        let each = start.elapsed().as_secs_f64() * 1e6 / (STEPS - 1) as f64;
        self.executor.finish(&mut NoTap)?;
        Ok((median(times), each))
    }

    /// Microseconds of the median step with so many drafts in each sequence. Nothing is launched before its end.
    fn drafts(&mut self, batch: usize, context: usize, drafts: usize) -> Result<f64, BoxError> {
        let (tables, sampling) = (self.prefill(batch, context)?, self.sampling);
        let mut times = Vec::new();
        for step in 0..UNTIMED + STEPS {
            if step == UNTIMED / 2 {
                // Another thread makes a graph of a recording.
                std::thread::sleep(Duration::from_millis(50));
            }
            let rows = (0..batch).map(|i| tokens(1 + drafts, step + 97 * i));
            let rows: Vec<_> = rows.collect();
            let shares = tables.iter().zip(&rows).map(|(pages, rows)| SequenceWork {
                sample: Some(SampleWork::new(sampling, &[], rows)),
                drafts,
                ..work(rows, context + step % STEPS, pages, sampling)
            });
            let shares: Vec<_> = shares.collect();
            let start = Instant::now();
            self.step(&shares)?;
            if step >= UNTIMED {
                times.push(start.elapsed().as_secs_f64() * 1e6);
            }
        }
        Ok(median(times))
    }

    /// Computes a prompt for each sequence of a batch. Returns their pages, with room for steps behind them.
    fn prefill(&mut self, batch: usize, context: usize) -> Result<Vec<Vec<PageId>>, BoxError> {
        let pages = self.groups() * pages_behind(context);
        let tables: Vec<Vec<PageId>> = (0..batch)
            .map(|i| (0..pages).map(|p| PageId((i * pages + p) as u32)).collect())
            .collect();
        // Each sequence has its own tokens, or all would choose the same experts.
        let prompts: Vec<_> = (0..batch).map(|i| tokens(context, i)).collect();
        // The maximum number of prompts that fit into a batch.
        let together = (self.chunk / context).max(1);
        for (prompts, tables) in prompts.chunks(together).zip(tables.chunks(together)) {
            self.compute(prompts, tables)?;
        }
        Ok(tables)
    }

    /// Pages of a sequence for each block of positions.
    fn groups(&self) -> usize {
        self.executor.kv_geometry().groups.count()
    }

    fn prompt(&mut self, length: usize) -> Result<f64, BoxError> {
        let pages = self.groups() * length.div_ceil(PAGE);
        let pages: Vec<PageId> = (0..pages as u32).map(PageId).collect();
        let prompt = [tokens(length, 0)];
        let mut times = Vec::new();
        for _ in 0..7 {
            let start = Instant::now();
            self.compute(&prompt, std::slice::from_ref(&pages))?;
            times.push(start.elapsed().as_secs_f64() * 1e6);
        }
        Ok(median(times))
    }

    /// Computes a prompt of equal length for each sequence, in chunks if it exceeds a batch.
    fn compute(
        &mut self,
        prompts: &[Vec<TokenId>],
        tables: &[Vec<PageId>],
    ) -> Result<(), BoxError> {
        let length = prompts.iter().map(Vec::len).max().unwrap_or_default();
        for first in (0..length).step_by(self.chunk) {
            let end = length.min(first + self.chunk);
            let shares: Vec<_> = tables
                .iter()
                .zip(prompts)
                .map(|(pages, prompt)| work(&prompt[first..end], first, pages, self.sampling))
                .collect();
            self.step(&shares)?;
        }
        Ok(())
    }

    fn step(&mut self, sequences: &[SequenceWork<'_>]) -> Result<(), BoxError> {
        let batch = Batch { step: 1, sequences };
        self.executor.step(&batch, &mut NoTap)?;
        Ok(())
    }
}

fn tokens(count: usize, seed: usize) -> Vec<TokenId> {
    let token = |i: usize| TokenId(((i * 37 + seed * 211) % 1000) as u32);
    (0..count).map(token).collect()
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
        sample: Some(SampleWork::new(sampling, tokens, &[])),
        drafts: 0,
    }
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}
