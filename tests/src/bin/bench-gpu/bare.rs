//! Executor without scheduler and server: loaded as the child loads it, called step by step.

use super::lines::{Line, request};
use super::{Measure, Settings, check, print, speed};
use anyhow::{Context, Result, anyhow, bail, ensure};
use serde_json::json;
use std::time::Instant;
use worker_orcd::config::device::default_prefill_chunk;
use worker_orcd_gpu::device::{Batch, Executor, KvGeometry, NoTap, PageId};
use worker_orcd_gpu::loader;
use worker_orcd_ipc::{DeviceSelector, KvReaders, LoadOrder, ModelFile, Role, Speculation};

/// # Errors
/// The model does not load, or answers differ that must be equal.
pub fn run(settings: &Settings) -> Result<()> {
    ensure!(
        !settings.measures(Measure::Long) && !settings.measures(Measure::Mixed),
        "long and mixed are measured over HTTP only: bench-gpu served"
    );
    let mut bare = Bare::load(settings)?;
    check::run(&mut bare, settings)?;
    if settings.measures(Measure::Decode) {
        speed::decode(&mut bare, settings)?;
    }
    if settings.measures(Measure::Prompt) {
        speed::prompts(&mut bare, settings)?;
    }
    Ok(())
}

/// Loaded model, with its KV pages cut into as many equal shares as fit.
pub struct Bare {
    executor: Box<dyn Executor>,
    pub vocabulary: u32,
    geometry: KvGeometry,
    pages_each: u32,
    shares: u32,
    /// Prompt tokens of one step.
    pub chunk: usize,
    steps: u64,
}

impl Bare {
    fn load(settings: &Settings) -> Result<Self> {
        let selector = device(&settings.device)?;
        let default = || default_prefill_chunk(&[selector]);
        let chunk = settings.chunk.unwrap_or_else(default);
        let order = LoadOrder {
            model_path: settings.model.display().to_string(),
            model_file: ModelFile::AtPath,
            draft_model: None,
            weights: None,
            kv_readers: KvReaders::None,
            adopts_from: None,
            has_second_fd_socket: false,
            device: selector,
            kv_cache_bytes: Some(settings.kv_cache << 20),
            memory_permille: 1000,
            max_running: settings.largest_batch() as u32,
            max_sequence_tokens: Some(settings.context() as u32),
            prefill_chunk_tokens: chunk,
            step_budget_us: None,
            threads: None,
            prefix_cache: false,
            speculation: Speculation::Off,
            trace: None,
            role: Role::Active,
        };
        let start = Instant::now();
        let loaded = loader::load(&order, None, &|_, _| ()).map_err(|fault| anyhow!("{fault}"))?;
        let seconds = start.elapsed().as_secs_f64();
        let geometry = loaded.executor.kv_geometry();
        let pages_each = geometry.table_entries(settings.decode_context()) as u32;
        let memory = loaded.executor.memory();
        print(&json!({
            "what": "loaded", "side": "bare", "seconds": seconds,
            "device": loaded.executor.facts().name, "weights_bytes": memory.weights_bytes,
            "kv_bytes": memory.kv_capacity_bytes, "scratch_bytes": memory.scratch_bytes,
        }));
        Ok(Self {
            vocabulary: loaded.tokenizer.tokens.len() as u32,
            executor: loaded.executor,
            geometry,
            pages_each,
            shares: geometry.pages / pages_each,
            chunk: chunk as usize,
            steps: 0,
        })
    }

    /// Number of shares.
    pub fn room(&self) -> usize {
        self.shares as usize
    }

    /// Pages of the `index`th share.
    pub fn pages(&self, index: usize) -> Vec<PageId> {
        let first = index as u32 * self.pages_each;
        (first..first + self.pages_each).map(PageId).collect()
    }

    /// Pages for a sequence of `tokens` tokens that runs alone, across shares.
    pub fn pages_alone(&self, tokens: usize) -> Vec<PageId> {
        let count = self.geometry.table_entries(tokens);
        (0..count as u32).map(PageId).collect()
    }

    /// Runs one step: up to `chunk` tokens of the lines `which`, in their order.
    ///
    /// # Errors
    /// A fault of the executor, or a missing token.
    pub fn step(
        &mut self,
        lines: &mut [Line],
        chunk: usize,
        which: impl Fn(&Line) -> bool,
    ) -> Result<()> {
        self.steps += 1;
        let mut left = chunk.min(self.executor.max_batch_tokens() as usize);
        let mut taken = Vec::with_capacity(lines.len());
        for (index, line) in lines.iter().enumerate().filter(|(_, line)| which(line)) {
            let tokens = line.pending().min(left);
            if tokens > 0 {
                taken.push((index, tokens));
                left -= tokens;
            }
        }
        let sequences: Vec<_> = taken
            .iter()
            .map(|(index, tokens)| lines[*index].work(*index, *tokens))
            .collect();
        if sequences.is_empty() {
            bail!("nothing is left to compute");
        }
        let batch = Batch {
            step: self.steps,
            sequences: &sequences,
        };
        let drawn = self.executor.step(&batch, &mut NoTap);
        let drawn = drawn.map_err(|fault| anyhow!("{fault}"))?;
        let mut drawn = drawn.into_iter().peekable();
        for (index, tokens) in taken {
            let row = drawn.next_if(|row| row.request == request(index));
            let token = row.map(|row| row.token);
            lines[index].advance(tokens, token).context("a step")?;
        }
        Ok(())
    }
}

fn device(name: &str) -> Result<DeviceSelector> {
    match name.strip_prefix("cuda:") {
        Some(ordinal) => Ok(DeviceSelector::Cuda(ordinal.parse()?)),
        None if name == "cpu" => Ok(DeviceSelector::Cpu),
        None => bail!("{name:?} is neither cuda:N nor cpu"),
    }
}
