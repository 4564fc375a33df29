//! Loading a model, a step at a time: the device is opened, what fits is decided, the weights get
//! into their places, the KV cache is made.

use super::attention::Partials;
use super::kv::KvCache;
use super::linear::Device;
use super::memory::{self, Arena, Purpose};
use super::pool::{Disjoint, Pool};
use super::scratch::Scratch;
use super::weights::{CpuWeights, Placed};
use super::{CpuExecutor, CpuOptions};
use crate::device::LoadOptions;
use crate::device::common::budget::Budget;
use crate::device::common::kv::KvShape;
use crate::device::common::placement::{Layout, check_size, values};
use crate::model::{FileWeights, Mapping, ModelConfig, ModelWeights, TensorView};
use twox_hash::xxhash3_128::Hasher;
use worker_orcd_ipc::Fault;
use worker_orcd_kernels::cpu::{Isa, PackedShape};

/// Matrices start at cache lines.
const ALIGNMENT: u64 = 64;
/// Bytes packed between two reports of progress.
const PROGRESS_BYTES: usize = 8 << 20;

pub fn load(
    config: &ModelConfig,
    weights: &FileWeights<'_>,
    options: &CpuOptions,
    isa: Isa,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<CpuExecutor, Fault> {
    let device = Device::open(options.threads, isa)?;
    let options = &options.load;
    let mut placement = Placement::default();
    let tensors = weights.try_map(&mut placement)?;
    let max_tokens = options.batch_tokens();
    let fixed = placement.bytes() + Scratch::bytes_for(config, max_tokens);
    let shape = KvShape::of(config);
    let pages = kv_pages(shape, options, fixed)?;

    let weights = placement.fill(&device, tensors, progress)?;
    let kv = KvCache::new(shape, pages)?;
    let sequence_tokens = options.max_sequence_tokens as usize;
    let partials = Partials::new(config, device.pool.threads(), sequence_tokens);
    Ok(CpuExecutor {
        config: config.clone(),
        weights,
        kv,
        scratch: Scratch::new(config, max_tokens, partials),
        device,
    })
}

fn kv_pages(shape: KvShape, options: &LoadOptions, fixed: u64) -> Result<u32, Fault> {
    let room = memory::room();
    let budget = Budget {
        total: room.map_or(u64::MAX, |room| room.total),
        free: room.map_or(u64::MAX, |room| room.available),
        reserve: 0,
        fixed,
        page_bytes: shape.page_bytes(),
    };
    let unordered = |budget: &Budget| budget.by_sequences(options.sequence_pages());
    budget.pages(options, "cpu", unordered)
}

/// The weights before their arena is allocated: where every matrix goes, and from where.
#[derive(Default)]
struct Placement<'a> {
    layout: Layout<ALIGNMENT>,
    matrices: Vec<(TensorView<'a>, Placed)>,
    /// Bytes of norms and biases, which lie beside the arena.
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
    fn bytes(&self) -> u64 {
        self.layout.bytes() + self.vector_bytes
    }

    /// Allocates the arena and gets the weights in place.
    fn fill(
        self,
        device: &Device,
        tensors: ModelWeights<Placed, Vec<f32>>,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<CpuWeights, Fault> {
        let mut arena = Arena::new(Purpose::Weights, self.layout.bytes())?;
        let checksum = self.pack(&device.pool, arena.bytes_mut(), progress);
        Ok(CpuWeights {
            arena,
            vector_bytes: self.vector_bytes,
            checksum,
            tensors,
        })
    }

    /// Packs everything, on all threads. Gives the checksum of all weights: of the checksums of
    /// all groups in their order, each taken by the thread that has just written the group, and of
    /// what lies beside the arena.
    fn pack(&self, pool: &Pool, arena: &mut [u8], progress: &mut dyn FnMut(u64, u64)) -> u128 {
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
