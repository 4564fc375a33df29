//! Logits of the CPU device for given tokens, to be compared with another engine's.
//!
//!     cargo run --release --example cpu_logits -- model.gguf 1,2,3 [chunk] > logits.f32
//!
//! Writes one row of little-endian `f32` for every position. The tokens are run in chunks of
//! `chunk` (default: all at once).

use std::io::Write;
use std::path::Path;
use worker_orcd_gpu::device::cpu::{CpuExecutor, CpuOptions};
use worker_orcd_gpu::device::{Batch, Checkpoint, Executor, PageId, SequenceWork, Tap};
use worker_orcd_gpu::model::{GgufFile, ModelConfig, ModelWeights};
use worker_orcd_ipc::{RequestId, TokenId};

type Failure = Box<dyn std::error::Error>;

struct ToStdout(std::io::StdoutLock<'static>);

impl Tap for ToStdout {
    fn wants(&self, _: RequestId, checkpoint: &Checkpoint) -> bool {
        *checkpoint == Checkpoint::Logits
    }

    fn see(&mut self, _: RequestId, _: &Checkpoint, _: u32, values: &[f32]) {
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        self.0.write_all(&bytes).expect("stdout");
    }
}

fn main() -> Result<(), Failure> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [path, tokens, rest @ ..] = args.as_slice() else {
        return Err("usage: cpu_logits MODEL TOKENS [CHUNK]".into());
    };
    let tokens: Vec<TokenId> = tokens
        .split(',')
        .map(|t| Ok(TokenId(t.parse()?)))
        .collect::<Result<_, Failure>>()?;
    let chunk = rest
        .first()
        .map_or(Ok(tokens.len()), |chunk| chunk.parse())?;

    let file = GgufFile::open(Path::new(path))?;
    let header = file.header()?;
    let config = ModelConfig::from_gguf(&header, None)?;
    let weights = ModelWeights::from_gguf(&header, &config)?;
    let options = CpuOptions {
        threads: None,
        kv_cache_bytes: None,
        max_batch_tokens: chunk as u32,
        max_sequence_tokens: tokens.len() as u32,
        model: path.clone(),
    };
    let mut executor = CpuExecutor::load(&config, &weights, &options, &mut |_, _| ())?;
    let pages: Vec<PageId> = (0..executor.kv_geometry().pages).map(PageId).collect();
    let mut tap = ToStdout(std::io::stdout().lock());
    for (index, some) in tokens.chunks(chunk).enumerate() {
        let work = SequenceWork {
            request: RequestId(1),
            tokens: some,
            first_position: (index * chunk) as u32,
            pages: &pages,
            sample: None,
        };
        executor.step(
            &Batch {
                step: index as u64 + 1,
                sequences: &[work],
            },
            &mut tap,
        )?;
    }
    Ok(())
}
