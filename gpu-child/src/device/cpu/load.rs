//! Model load on an open device: sizes the KV cache, packs the weights or takes over retained ones, and allocates the
//! KV cache.

use super::CpuExecutor;
use super::attention::Partials;
use super::kv::KvCache;
use super::kv_transfer::KvSharing;
use super::linear::Device;
use super::memory;
use super::pool::{Disjoint, Pool};
use super::scratch::Scratch;
use super::sealed::{Draft, Sealed};
use super::weights::{CpuWeights, Matrix, Vector};
use crate::device::common::budget::Budget;
use crate::device::common::kv::KvLayout;
use crate::device::common::manifest::{WeightsLayout, verify};
use crate::device::common::placement::{check_size, values};
use crate::device::{LoadOptions, RetainedWeights, Source};
use crate::model::{Mapping, ModelConfig, TensorView};
use twox_hash::xxhash3_128::Hasher;
use worker_orcd_ipc::{Fault, WeightsManifest};
use worker_orcd_kernels::cpu::{PackedShape, ROWS};

/// Tensors start at cache lines.
const ALIGNMENT: u64 = 64;
/// Bytes packed or read between two progress reports.
const PROGRESS_BYTES: usize = 8 << 20;

pub fn load(
    device: Device,
    source: Source<'_>,
    options: &LoadOptions,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<CpuExecutor, Fault> {
    let config = source.config;
    refuse_unsupported(config)?;
    let layout = KvLayout::of(config, options);
    layout.check_states()?;
    let mut placement = Placement::default();
    let tensors = source.weights.try_map(&mut placement)?;
    let max_tokens = options.batch_tokens();
    let scratch_bytes = Scratch::bytes_for(config, max_tokens);
    let in_place = source
        .retained
        .as_ref()
        .map_or(0, |kept| kept.manifest.bytes);
    let fixed = placement.layout.bytes() + scratch_bytes + options.beside.promised;
    let pages = kv_pages(&layout, options, fixed, in_place)?;

    let (arena, manifest) = match source.retained {
        Some(kept) => placement.attach(kept, &device.pool, progress)?,
        None => placement.fill(&device.pool, progress)?,
    };
    let kv = KvCache::new(layout, pages, options.kv_readers.is_shared())?;
    let sequence_tokens = options.max_sequence_tokens as usize;
    let partials = Partials::new(config, device.pool.threads(), sequence_tokens);
    Ok(CpuExecutor {
        config: config.clone(),
        weights: CpuWeights {
            arena,
            tensors,
            manifest,
        },
        kv,
        kv_sharing: KvSharing::default(),
        scratch: Scratch::new(config, max_tokens, partials),
        open: None,
        drawn: Vec::new(),
        device,
    })
}

/// Refuses experts that would share a group of rows.
fn refuse_unsupported(config: &ModelConfig) -> Result<(), Fault> {
    let Some(experts) = &config.experts else {
        return Ok(());
    };
    for (what, width) in [("embedding", config.n_embd), ("expert", experts.n_ff)] {
        if !width.is_multiple_of(ROWS) {
            let message = format!(
                "a mixture of experts with an {what} width of {width} is not supported; \
                 multiples of {ROWS} are"
            );
            return Err(Fault::ModelLoad { message });
        }
    }
    Ok(())
}

/// Number of KV pages. `in_place`: the part of the `fixed` bytes that is allocated already.
fn kv_pages(
    layout: &KvLayout,
    options: &LoadOptions,
    fixed: u64,
    in_place: u64,
) -> Result<u32, Fault> {
    let room = memory::room();
    let budget = Budget {
        total: room.map_or(u64::MAX, |room| room.total),
        free: room.map_or(u64::MAX, |room| {
            room.available.saturating_add(in_place + options.lent)
        }),
        reserve: 0,
        fixed,
        page_bytes: layout.shape.page_bytes(),
        // Pages take memory at their first write, or are prepared while as much again is free.
        kv_caches: 1,
    };
    let unordered = |budget: &Budget| budget.by_sequences(layout.sequence_pages(options));
    budget.pages(options, "cpu", unordered)
}

/// Layout of the weights before their arena exists: source and place of each tensor.
#[derive(Default)]
struct Placement<'a> {
    layout: WeightsLayout<ALIGNMENT>,
    tensors: Vec<(TensorView<'a>, Place)>,
}

/// Place and format of a tensor.
#[derive(Clone, Copy)]
enum Place {
    Matrix(Matrix),
    Vector(Vector),
}

impl<'a> Mapping<TensorView<'a>, TensorView<'a>> for Placement<'a> {
    type Matrix = Matrix;
    type Vector = Vector;
    type Error = Fault;

    fn matrix(&mut self, tensor: &TensorView<'a>) -> Result<Matrix, Fault> {
        check_size(tensor)?;
        let TensorView { ty, rows, cols, .. } = *tensor;
        let shape = PackedShape { ty, rows, cols };
        let offset = self.layout.place(tensor, shape.bytes() as u64) as usize;
        let matrix = Matrix { shape, offset };
        self.tensors.push((*tensor, Place::Matrix(matrix)));
        Ok(matrix)
    }

    fn vector(&mut self, tensor: &TensorView<'a>) -> Result<Vector, Fault> {
        check_size(tensor)?;
        let len = tensor.rows * tensor.cols;
        let bytes = len * size_of::<f32>();
        let offset = self.layout.place(tensor, bytes as u64) as usize;
        let vector = Vector { len, offset };
        self.tensors.push((*tensor, Place::Vector(vector)));
        Ok(vector)
    }
}

impl Placement<'_> {
    /// Allocates the arena, packs the weights, and seals it.
    fn fill(
        self,
        pool: &Pool,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<(Sealed, WeightsManifest), Fault> {
        let mut draft = Draft::new(self.layout.bytes())?;
        let arena = draft.bytes_mut();
        let mut meter = Meter::new(&self.tensors, progress);
        let mut checksums = Vec::with_capacity(self.tensors.len());
        for (tensor, place) in &self.tensors {
            meter.begin(tensor);
            checksums.push(match place {
                Place::Matrix(Matrix { shape, offset }) => {
                    let out = &mut arena[*offset..][..shape.bytes()];
                    pack(tensor, *shape, out, pool, &mut meter)
                }
                Place::Vector(Vector { len, offset }) => {
                    let out = &mut arena[*offset..][..len * size_of::<f32>()];
                    write(&values(tensor)?, out)
                }
            });
            meter.is_at(1, 1);
        }
        #[cfg(feature = "fault-injection")]
        if crate::device::injected_fault::flip_ordered() {
            let first = &self.layout.tensors()[0];
            // The last byte of the last row: little depends on it.
            draft.bytes_mut()[(first.offset + first.bytes) as usize - 1] ^= 1;
        }
        Ok((draft.seal()?, self.layout.sign(&checksums)))
    }

    /// Maps the retained arena, and verifies it against its manifest.
    fn attach(
        self,
        RetainedWeights { memory, manifest }: RetainedWeights,
        pool: &Pool,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<(Sealed, WeightsManifest), Fault> {
        self.layout.compare(&manifest)?;
        let sealed = Sealed::attach(memory, manifest.bytes)?;
        let arena = sealed.bytes();
        let mut meter = Meter::new(&self.tensors, progress);
        let mut found = Vec::with_capacity(self.tensors.len());
        for (tensor, place) in &self.tensors {
            meter.begin(tensor);
            found.push(match place {
                Place::Matrix(Matrix { shape, offset }) => {
                    let bytes = &arena[*offset..][..shape.bytes()];
                    let group_bytes = shape.group_bytes();
                    let sum = |group: usize| checksum(&bytes[group * group_bytes..][..group_bytes]);
                    checksum_of_groups(*shape, &sum, pool, &mut meter)
                }
                Place::Vector(Vector { len, offset }) => {
                    checksum(&arena[*offset..][..len * size_of::<f32>()])
                }
            });
            meter.is_at(1, 1);
        }
        verify(&manifest, &found)?;
        Ok((sealed, manifest))
    }
}

/// Packs a matrix on all threads. Returns its checksum; the thread that has just written a part computes the part's
/// checksum.
fn pack(
    tensor: &TensorView<'_>,
    shape: PackedShape,
    out: &mut [u8],
    pool: &Pool,
    meter: &mut Meter<'_>,
) -> u128 {
    let group_bytes = shape.group_bytes();
    let out = Disjoint::new(out);
    let pack = |group: usize| {
        // SAFETY: each group has bytes of its own.
        let out = unsafe { out.part(group * group_bytes, group_bytes) };
        let first = group * ROWS;
        let rows = ROWS.min(tensor.rows - first);
        let part = tensor.row_range(first, rows).expect("rows of one expert");
        PackedShape { rows, ..shape }.pack_group(part.data, 0, out);
        checksum(out)
    };
    checksum_of_groups(shape, &pack, pool, meter)
}

/// Writes a vector. Returns its checksum.
fn write(values: &[f32], out: &mut [u8]) -> u128 {
    let (places, _) = out.as_chunks_mut();
    for (value, place) in values.iter().zip(places) {
        *place = value.to_ne_bytes();
    }
    checksum(out)
}

fn checksum(bytes: &[u8]) -> u128 {
    Hasher::oneshot(bytes)
}

/// Checksum of the checksums of all groups of a matrix, in their order.
fn checksum_of_groups(
    shape: PackedShape,
    of_group: &(dyn Fn(usize) -> u128 + Sync),
    pool: &Pool,
    meter: &mut Meter<'_>,
) -> u128 {
    let at_once = (PROGRESS_BYTES / shape.group_bytes()).max(1);
    let mut sums = vec![[0; 16]; shape.groups()];
    let places = Disjoint::new(&mut sums);
    for first in (0..shape.groups()).step_by(at_once) {
        let groups = at_once.min(shape.groups() - first);
        pool.run(groups, &|item| {
            let group = first + item;
            // SAFETY: each group has a checksum of its own.
            let sum = unsafe { places.part(group, 1) };
            sum[0] = of_group(group).to_le_bytes();
        });
        meter.is_at(first + groups, shape.groups());
    }
    checksum(sums.as_flattened())
}

/// Progress of the load, in bytes of the file.
struct Meter<'a> {
    progress: &'a mut dyn FnMut(u64, u64),
    total: u64,
    /// Bytes before the present tensor.
    done: u64,
    /// Bytes of the present tensor.
    tensor: u64,
}

impl<'a> Meter<'a> {
    fn new(tensors: &[(TensorView<'_>, Place)], progress: &'a mut dyn FnMut(u64, u64)) -> Self {
        let bytes = tensors.iter().map(|(tensor, _)| tensor.bytes() as u64);
        Self {
            progress,
            total: bytes.sum(),
            done: 0,
            tensor: 0,
        }
    }

    fn begin(&mut self, tensor: &TensorView<'_>) {
        self.done += self.tensor;
        self.tensor = tensor.bytes() as u64;
    }

    fn is_at(&mut self, part: usize, parts: usize) {
        let share = self.tensor * part as u64 / parts as u64;
        (self.progress)(self.done + share, self.total);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::common::kv::KvShape;
    use crate::device::common::layer_groups::{ByKind, LayerGroups};
    use crate::model::Positions;
    use worker_orcd_ipc::{KvReaders, Role};

    #[test]
    fn memory_that_another_process_gives_back_counts_as_free() {
        let total = memory::room().expect("the machine says").total;
        let shape = KvShape {
            layers: 30,
            n_kv_heads: 3,
            head_dim: 64,
            least: 0,
        };
        let groups = LayerGroups::of(shape.layers, &Positions::default(), ByKind::both(1), 1);
        let layout = KvLayout::of_attention(shape, groups);
        let pages = |lent| {
            let options = LoadOptions {
                kv_cache_bytes: Some(2 * total),
                max_batch_tokens: 1,
                max_sequence_tokens: 1,
                role: Role::Active,
                kv_readers: KvReaders::Successors,
                lent,
                beside: crate::device::Beside::default(),
                model: "none".to_owned(),
            };
            kv_pages(&layout, &options, 0, 0)
        };
        let refused = pages(0);
        assert!(
            matches!(refused, Err(Fault::InsufficientMemory { .. })),
            "{refused:?}"
        );
        assert_eq!(
            pages(4 * total).map(u64::from),
            Ok(2 * total / shape.page_bytes())
        );
    }
}
