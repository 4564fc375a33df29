//! Uploading a model: what fits, then every tensor into its place.

use super::CpuExecutor;
use super::CpuOptions;
use super::attention::Partials;
use super::kv::{KvCache, KvShape};
use super::memory::{self, Arena, Purpose};
use super::pool::{Disjoint, Pool};
use super::scratch::Scratch;
use super::weights::{CpuLayer, CpuLinear, CpuTensors, CpuWeights, Placed};
use crate::device::parts;
use crate::model::{Linear, ModelConfig, ModelWeights, TensorView};
use worker_orcd_ipc::Fault;
use worker_orcd_kernels::cpu::{Isa, PackedShape, TILE_TOKENS};

/// Matrices start at cache lines.
const ALIGNMENT: usize = 64;
/// Bytes packed between two reports of progress.
const PROGRESS_BYTES: usize = 8 << 20;
/// Without an order, the KV cache holds this many sequences of full length …
const DEFAULT_SEQUENCES: u64 = 8;
/// … but takes no more than this, unless not even one sequence fits into it.
const DEFAULT_KV_BYTES: u64 = 1 << 30;

pub fn load(
    config: &ModelConfig,
    weights: &ModelWeights<'_>,
    options: &CpuOptions,
    isa: Isa,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<CpuExecutor, Fault> {
    let threads = options
        .threads
        .map_or_else(all_cores, |threads| threads.max(1) as usize);
    let pool = Pool::new(threads).map_err(|error| Fault::Io {
        message: format!("starting {threads} threads: {error}"),
    })?;
    let mut layout = Layout::default();
    let tensors = layout.model(weights)?;
    let max_tokens = options.max_batch_tokens.max(1) as usize;
    let fixed_bytes = layout.bytes as u64 + Scratch::bytes_for(config, max_tokens);
    let pages = kv_pages(config, options, fixed_bytes)?;

    let mut arena = Arena::new(Purpose::Weights, layout.bytes as u64)?;
    layout.upload(&pool, arena.bytes_mut(), progress);
    let sequence_tokens = options.max_sequence_tokens as usize;
    let partials = Partials::new(config, threads, sequence_tokens);
    Ok(CpuExecutor {
        config: config.clone(),
        rope: parts::rope(config),
        isa,
        weights: CpuWeights { arena, tensors },
        kv: KvCache::new(KvShape::of(config), pages)?,
        scratch: Scratch::new(config, max_tokens, partials),
        pool,
    })
}

fn all_cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// How many pages the KV cache gets.
fn kv_pages(config: &ModelConfig, options: &CpuOptions, fixed_bytes: u64) -> Result<u32, Fault> {
    let page_bytes = KvShape::of(config).page_bytes();
    let available = memory::machine().map_or(u64::MAX, |machine| machine.available);
    let sequence_pages = u64::from(options.max_sequence_tokens).div_ceil(TILE_TOKENS as u64);
    let sequence = sequence_pages * page_bytes;
    let spare = available.saturating_sub(fixed_bytes);
    let kv_bytes = options.kv_cache_bytes.unwrap_or_else(|| {
        let wanted = DEFAULT_KV_BYTES
            .max(sequence)
            .min(DEFAULT_SEQUENCES * sequence);
        wanted.min(spare / 4).max(page_bytes)
    });
    let refuse = |required_bytes, available_bytes| Fault::InsufficientMemory {
        required_bytes,
        available_bytes,
        device: "cpu".to_owned(),
        model: options.model.clone(),
    };
    if kv_bytes < page_bytes {
        return Err(refuse(page_bytes, kv_bytes));
    }
    let required = fixed_bytes.saturating_add(kv_bytes);
    if required > available {
        return Err(refuse(required, available));
    }
    Ok(u32::try_from(kv_bytes / page_bytes).unwrap_or(u32::MAX))
}

/// Where every matrix goes, and what is to be copied there.
#[derive(Default)]
struct Layout<'a> {
    bytes: usize,
    uploads: Vec<(TensorView<'a>, Placed)>,
}

impl<'a> Layout<'a> {
    fn model(&mut self, weights: &ModelWeights<'a>) -> Result<CpuTensors, Fault> {
        let output = self.linear(&weights.output)?;
        let token_embd = if parts::is_tied(weights) {
            output.weight
        } else {
            self.place(&weights.token_embd)?
        };
        let mut layers = Vec::with_capacity(weights.layers.len());
        for layer in &weights.layers {
            layers.push(CpuLayer {
                attn_norm: parts::values(&layer.attn_norm)?,
                q: self.linear(&layer.q)?,
                k: self.linear(&layer.k)?,
                v: self.linear(&layer.v)?,
                q_norm: layer.q_norm.as_ref().map(parts::values).transpose()?,
                k_norm: layer.k_norm.as_ref().map(parts::values).transpose()?,
                attn_output: self.linear(&layer.attn_output)?,
                ffn_norm: parts::values(&layer.ffn_norm)?,
                ffn_gate: self.linear(&layer.ffn_gate)?,
                ffn_up: self.linear(&layer.ffn_up)?,
                ffn_down: self.linear(&layer.ffn_down)?,
            });
        }
        let output_norm = parts::values(&weights.output_norm)?;
        Ok(CpuTensors {
            token_embd,
            layers,
            output_norm,
            output,
        })
    }

    fn linear(&mut self, linear: &Linear<'a>) -> Result<CpuLinear, Fault> {
        let bias = linear.bias.as_ref().map(parts::values).transpose()?;
        Ok(CpuLinear {
            weight: self.place(&linear.weight)?,
            bias,
        })
    }

    fn place(&mut self, tensor: &TensorView<'a>) -> Result<Placed, Fault> {
        parts::check_size(tensor)?;
        let TensorView { ty, rows, cols, .. } = *tensor;
        let placed = Placed {
            shape: PackedShape { ty, rows, cols },
            offset: self.bytes,
        };
        self.bytes = (self.bytes + placed.shape.bytes()).next_multiple_of(ALIGNMENT);
        self.uploads.push((*tensor, placed));
        Ok(placed)
    }

    /// Packs everything, on all threads.
    fn upload(&self, pool: &Pool, arena: &mut [u8], progress: &mut dyn FnMut(u64, u64)) {
        let total: u64 = self
            .uploads
            .iter()
            .map(|(tensor, _)| tensor.data.len() as u64)
            .sum();
        let mut done = 0;
        for (tensor, Placed { shape, offset }) in &self.uploads {
            let group_bytes = shape.group_bytes();
            let at_once = (PROGRESS_BYTES / group_bytes).max(1);
            let packed = Disjoint::new(&mut arena[*offset..][..shape.bytes()]);
            for first in (0..shape.groups()).step_by(at_once) {
                let groups = at_once.min(shape.groups() - first);
                let pack = |item: usize| {
                    let group = first + item;
                    // SAFETY: each group has bytes of its own.
                    let out = unsafe { packed.part(group * group_bytes, group_bytes) };
                    shape.pack_group(tensor.data, group, out);
                };
                pool.run(groups, &pack);
                let share = tensor.data.len() * (first + groups) / shape.groups();
                progress(done + share as u64, total);
            }
            done += tensor.data.len() as u64;
        }
    }
}
