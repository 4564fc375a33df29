//! `orcd-logits MODEL`: logits of token histories, through one of the child's executors.
//!
//! Input is one JSON line per history: `{"tokens": […], "positions": […]}`, positions rising. Output is, in order, with
//! `--output logits` one row of little-endian `f32` per position, and with `--output next-token` one JSON line per
//! history: the best token at every position, and the negative log-likelihood of the token that follows (null at the
//! end).
//!
//! The executor has batches and pages as under the scheduler. A step ends at every wanted position, because only there
//! are logits computed.

use anyhow::{Result, ensure};
use clap::{Parser, ValueEnum};
use serde::{Deserialize, Serialize};
use std::io::{BufRead, Write};
use std::path::PathBuf;
use worker_orcd_gpu::device::cpu::{self, CpuExecutor};
use worker_orcd_gpu::device::cuda::{self, CudaExecutor, CudaOptions};
use worker_orcd_gpu::device::{
    Batch, Beside, Checkpoint, Executor, KvGeometry, LoadOptions, PageId, SampleWork, SequenceWork,
    Source, Tap, kv_bytes_of,
};
use worker_orcd_gpu::model::{GgufFile, ModelConfig, ModelWeights};
use worker_orcd_ipc::{DeviceSelector, KvReaders, RequestId, Sampling, TokenId};
use worker_orcd_kernels::cpu::Isa;

#[derive(Parser)]
struct Options {
    model: PathBuf,
    #[arg(long, value_enum)]
    output: Output,
    /// `cpu` or `cuda:N`.
    #[arg(long, default_value = "cpu", value_parser = device)]
    device: DeviceSelector,
    #[arg(long, default_value_t = 1)]
    threads: u32,
    /// The longest prompt chunk of one sequence in one step.
    #[arg(long, default_value_t = 512)]
    chunk: usize,
    /// Histories that are run in one step, each on its own.
    #[arg(long, default_value_t = 1)]
    batch: usize,
    /// Longest history; long-context models choose their RoPE factors by it.
    #[arg(long, default_value_t = 1024)]
    context: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    Logits,
    NextToken,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Request {
    tokens: Vec<u32>,
    positions: Vec<usize>,
}

/// Progress of one history.
struct History {
    tokens: Vec<TokenId>,
    positions: Vec<usize>,
    pages: Vec<PageId>,
    done: usize,
}

fn main() -> Result<()> {
    let options = Options::parse();
    let mut executor = load(&options)?;
    let requests: Vec<Request> = std::io::stdin()
        .lock()
        .lines()
        .map(|line| Ok(serde_json::from_str(&line?)?))
        .collect::<Result<_>>()?;
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    for group in requests.chunks(options.batch) {
        let mut seen = Seen {
            rows: group.iter().map(|_| Rows::of(options.output)).collect(),
        };
        let mut histories = histories(group, &options, executor.kv_geometry())?;
        run(&mut *executor, &mut histories, &options, &mut seen)?;
        for rows in seen.rows {
            rows.write(&mut out)?;
        }
    }
    Ok(out.flush()?)
}

fn device(text: &str) -> Result<DeviceSelector, String> {
    let ordinal = text.strip_prefix("cuda:").map(str::parse);
    match (text, ordinal) {
        ("cpu", _) => Ok(DeviceSelector::Cpu),
        (_, Some(Ok(ordinal))) => Ok(DeviceSelector::Cuda(ordinal)),
        _ => Err(format!("{text:?} is neither cpu nor cuda:N")),
    }
}

fn load(options: &Options) -> Result<Box<dyn Executor>> {
    let file = GgufFile::open(&options.model)?;
    let header = file.header()?;
    let config = ModelConfig::from_gguf(&header, Some(options.context))?;
    let weights = ModelWeights::from_gguf(&header, &config)?;
    let mut load = LoadOptions {
        kv_cache_bytes: None,
        max_batch_tokens: u32::try_from(options.batch * options.chunk)?,
        max_sequence_tokens: options.context,
        role: worker_orcd_ipc::Role::Active,
        kv_readers: KvReaders::None,
        lent: 0,
        beside: Beside::default(),
        model: options.model.display().to_string(),
    };
    load.kv_cache_bytes = Some(kv_bytes_of(&config, &load, options.batch));
    let progress = &mut |_, _| {};
    Ok(match options.device {
        DeviceSelector::Cpu => {
            let cpu = cpu::Device::open(Some(options.threads), Isa::detect())?;
            Box::new(CpuExecutor::load(
                cpu,
                Source {
                    config: &config,
                    weights: &weights,
                    file: None,
                    retained: None,
                },
                &load,
                progress,
            )?)
        }
        DeviceSelector::Cuda(ordinal) => {
            let device = cuda::Device::open(ordinal)?;
            let cuda = CudaOptions {
                memory_permille: 900,
                max_sequences: u32::try_from(options.batch)?,
                load,
            };
            Box::new(CudaExecutor::load(
                device,
                Source {
                    config: &config,
                    weights: &weights,
                    file: Some(&file),
                    retained: None,
                },
                &cuda,
                progress,
            )?)
        }
    })
}

/// Gives every history its own pages; a group begins with an empty cache.
fn histories(group: &[Request], options: &Options, geometry: KvGeometry) -> Result<Vec<History>> {
    let pages_each = geometry.table_entries(options.context as usize) as u32;
    let history = |(request, index): (&Request, u32)| {
        let length = request.tokens.len();
        ensure!(
            length <= options.context as usize,
            "{length} tokens exceed --context"
        );
        ensure!(request.positions.is_sorted(), "positions must rise");
        ensure!(
            request.positions.iter().all(|p| *p < length),
            "a position behind the tokens"
        );
        Ok(History {
            tokens: request.tokens.iter().copied().map(TokenId).collect(),
            positions: request.positions.clone(),
            pages: (index * pages_each..(index + 1) * pages_each)
                .map(PageId)
                .collect(),
            done: 0,
        })
    };
    group.iter().zip(0..).map(history).collect()
}

fn run(
    executor: &mut dyn Executor,
    histories: &mut [History],
    options: &Options,
    seen: &mut Seen,
) -> Result<()> {
    for step in 1.. {
        let ends: Vec<_> = histories
            .iter()
            .map(|history| history.next_end(options.chunk))
            .collect();
        let sequences: Vec<_> = histories
            .iter()
            .zip(&ends)
            .enumerate()
            .filter_map(|(index, (history, end))| Some(history.work(index, (*end)?)))
            .collect();
        if sequences.is_empty() {
            return Ok(());
        }
        executor.step(
            &Batch {
                step,
                sequences: &sequences,
            },
            seen,
        )?;
        for (index, end) in ends.into_iter().enumerate() {
            let Some(end) = end else { continue };
            let history = &mut histories[index];
            history.done = end;
            if history.wants(end - 1) {
                let next = history.tokens.get(end).copied();
                seen.rows[index].name_next(next);
            }
        }
    }
    unreachable!("the loop ends by returning")
}

impl History {
    /// End of the next step; `None` after the last wanted position.
    fn next_end(&self, chunk: usize) -> Option<usize> {
        let wanted = *self
            .positions
            .iter()
            .find(|position| **position >= self.done)?;
        Some((wanted + 1).min(self.done + chunk))
    }

    fn wants(&self, position: usize) -> bool {
        self.positions.binary_search(&position).is_ok()
    }

    fn work(&self, index: usize, end: usize) -> SequenceWork<'_> {
        let sample = SampleWork::new(Sampling::default(), &self.tokens[..end], &[]);
        SequenceWork {
            request: RequestId(index as u64),
            tokens: &self.tokens[self.done..end],
            first_position: u32::try_from(self.done).expect("a context is short"),
            pages: &self.pages,
            sample: self.wants(end - 1).then_some(sample),
            drafts: 0,
        }
    }
}

/// Rows of one group of histories.
struct Seen {
    rows: Vec<Rows>,
}

impl Tap for Seen {
    fn wants(&self, _: RequestId, checkpoint: &Checkpoint) -> bool {
        *checkpoint == Checkpoint::Logits
    }

    fn see(&mut self, request: RequestId, _: &Checkpoint, _: u32, values: &[f32]) {
        let index = usize::try_from(request.0).expect("an index");
        self.rows[index].push(values);
    }
}

enum Rows {
    Logits(Vec<f32>),
    NextToken { summary: Summary, last: Vec<f32> },
}

#[derive(Default, Serialize)]
struct Summary {
    argmax: Vec<u32>,
    nll: Vec<Option<f64>>,
}

impl Rows {
    fn of(output: Output) -> Self {
        match output {
            Output::Logits => Self::Logits(Vec::new()),
            Output::NextToken => Self::NextToken {
                summary: Summary::default(),
                last: Vec::new(),
            },
        }
    }

    fn push(&mut self, row: &[f32]) {
        match self {
            Self::Logits(rows) => rows.extend_from_slice(row),
            Self::NextToken { summary, last } => {
                summary.argmax.push(argmax(row));
                row.clone_into(last);
            }
        }
    }

    /// Sets the token that follows the last row.
    fn name_next(&mut self, next: Option<TokenId>) {
        if let Self::NextToken { summary, last } = self {
            summary
                .nll
                .push(next.map(|token| negative_log_likelihood(last, token)));
        }
    }

    fn write(&self, out: &mut impl Write) -> Result<()> {
        match self {
            Self::Logits(rows) => {
                for value in rows {
                    out.write_all(&value.to_le_bytes())?;
                }
            }
            Self::NextToken { summary, .. } => {
                serde_json::to_writer(&mut *out, summary)?;
                out.write_all(b"\n")?;
            }
        }
        Ok(())
    }
}

fn argmax(row: &[f32]) -> u32 {
    let best = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let index = row.iter().position(|value| *value == best);
    index
        .and_then(|index| u32::try_from(index).ok())
        .unwrap_or(u32::MAX)
}

fn negative_log_likelihood(row: &[f32], token: TokenId) -> f64 {
    let peak = f64::from(row.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let sum: f64 = row
        .iter()
        .map(|value| (f64::from(*value) - peak).exp())
        .sum();
    peak + sum.ln() - f64::from(row[token.index()])
}
