//! Uploading a model: what fits, then every tensor into its place.

use super::CpuExecutor;
use super::CpuOptions;
use super::attention::Partials;
use super::kv::{KvCache, KvShape};
use super::memory::{self, Arena, Purpose};
use super::pool::{Disjoint, Pool};
use super::scratch::Scratch;
use super::weights::{CpuWeights, Placed};
use crate::device::common::placement::{Layout, check_size, values};
use crate::model::{FileWeights, Mapping, ModelConfig, TensorView};
use twox_hash::xxhash3_128::Hasher;
use worker_orcd_ipc::Fault;
use worker_orcd_kernels::cpu::{Isa, PackedShape, TILE_TOKENS};

/// Matrices start at cache lines.
const ALIGNMENT: u64 = 64;
/// Bytes packed between two reports of progress.
const PROGRESS_BYTES: usize = 8 << 20;
/// Without an order, the KV cache holds this many sequences of full length …
const DEFAULT_SEQUENCES: u64 = 8;
/// … but takes no more than this, unless not even one sequence fits into it.
const DEFAULT_KV_BYTES: u64 = 1 << 30;

pub fn load(
    config: &ModelConfig,
    weights: &FileWeights<'_>,
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
    let mut placement = Placement::default();
    let tensors = weights.try_map(&mut placement)?;
    let max_tokens = options.max_batch_tokens.max(1) as usize;
    let weight_bytes = placement.layout.bytes() + placement.vector_bytes;
    let fixed_bytes = weight_bytes + Scratch::bytes_for(config, max_tokens);
    let pages = kv_pages(config, options, fixed_bytes)?;

    let mut arena = Arena::new(Purpose::Weights, placement.layout.bytes())?;
    let checksum = placement.upload(&pool, arena.bytes_mut(), progress);
    let sequence_tokens = options.max_sequence_tokens as usize;
    let partials = Partials::new(config, threads, sequence_tokens);
    Ok(CpuExecutor {
        config: config.clone(),
        isa,
        weights: CpuWeights {
            arena,
            vector_bytes: placement.vector_bytes,
            checksum,
            tensors,
        },
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
    let available = memory::room().map_or(u64::MAX, |room| room.available);
    let sequence_pages = u64::from(options.max_sequence_tokens).div_ceil(TILE_TOKENS as u64);
    let sequence = sequence_pages * page_bytes;
    let spare = available.saturating_sub(fixed_bytes);
    let kv_bytes = options.kv_cache_bytes.unwrap_or_else(|| {
        let wanted = DEFAULT_KV_BYTES
            .max(sequence)
            .min(DEFAULT_SEQUENCES * sequence);
        wanted.min(spare / 4).max(page_bytes)
    });
    let refuse = |place: &str, required_bytes, available_bytes| Fault::InsufficientMemory {
        required_bytes,
        available_bytes,
        device: place.to_owned(),
        model: options.model.clone(),
    };
    if kv_bytes < page_bytes {
        return Err(refuse("the KV cache ordered on cpu", page_bytes, kv_bytes));
    }
    let required = fixed_bytes.saturating_add(kv_bytes);
    if required > available {
        return Err(refuse("cpu", required, available));
    }
    Ok(u32::try_from(kv_bytes / page_bytes).unwrap_or(u32::MAX))
}

/// Where every matrix goes, and what is to be copied there.
#[derive(Default)]
struct Placement<'a> {
    layout: Layout<ALIGNMENT>,
    matrices: Vec<(TensorView<'a>, Placed)>,
    /// Of norms and biases, which lie beside the arena.
    vector_bytes: u64,
    vector_checksum: Hasher,
}

impl<'a> Mapping<TensorView<'a>, TensorView<'a>> for Placement<'a> {
    type Matrix = Placed;
    type Vector = Vec<f32>;
    type Error = Fault;

    fn matrix(&mut self, tensor: &TensorView<'a>) -> Result<Placed, Fault> {
        check_size(tensor)?;
        let TensorView { ty, rows, cols, .. } = *tensor;
        let shape = PackedShape { ty, rows, cols };
        let offset = self.layout.place(shape.bytes() as u64) as usize;
        let placed = Placed { shape, offset };
        self.matrices.push((*tensor, placed));
        Ok(placed)
    }

    fn vector(&mut self, tensor: &TensorView<'a>) -> Result<Vec<f32>, Fault> {
        let values = values(tensor)?;
        self.vector_bytes += size_of_val(&*values) as u64;
        let hasher = &mut self.vector_checksum;
        hasher.write(&(values.len() as u64).to_le_bytes());
        for value in &values {
            hasher.write(&value.to_le_bytes());
        }
        Ok(values)
    }
}

impl Placement<'_> {
    /// Packs everything, on all threads. Gives the checksum of all weights: of the checksums of
    /// all groups in their order, each taken by the thread that has just written the group, and of
    /// what lies beside the arena.
    fn upload(&self, pool: &Pool, arena: &mut [u8], progress: &mut dyn FnMut(u64, u64)) -> u128 {
        let mut hasher = Hasher::new();
        let total: u64 = self
            .matrices
            .iter()
            .map(|(tensor, _)| tensor.data.len() as u64)
            .sum();
        let mut done = 0;
        for (tensor, Placed { shape, offset }) in &self.matrices {
            let group_bytes = shape.group_bytes();
            let at_once = (PROGRESS_BYTES / group_bytes).max(1);
            let packed = Disjoint::new(&mut arena[*offset..][..shape.bytes()]);
            let mut sums = vec![[0; 16]; shape.groups()];
            let checked = Disjoint::new(&mut sums);
            for first in (0..shape.groups()).step_by(at_once) {
                let groups = at_once.min(shape.groups() - first);
                let pack = |item: usize| {
                    let group = first + item;
                    // SAFETY: each group has bytes of its own.
                    let out = unsafe { packed.part(group * group_bytes, group_bytes) };
                    shape.pack_group(tensor.data, group, out);
                    // SAFETY: and a checksum of its own.
                    let sum = unsafe { checked.part(group, 1) };
                    sum[0] = Hasher::oneshot(out).to_le_bytes();
                };
                pool.run(groups, &pack);
                let share = tensor.data.len() * (first + groups) / shape.groups();
                progress(done + share as u64, total);
            }
            done += tensor.data.len() as u64;
            hasher.write(sums.as_flattened());
        }
        hasher.write(&self.vector_checksum.finish_128().to_le_bytes());
        hasher.finish_128()
    }
}
