//! Loading a model, a step at a time: the device is opened, what fits is decided, the weights get
//! into their places, packed by the device itself, the KV cache is made.

use super::board::Board;
use super::context::Context;
use super::decode_step::DecodeStep;
use super::graph::Graphs;
use super::kernels::{Geometry, Kernel, Module, RepackArgs};
use super::kv::KvCache;
use super::matmul::Matmul;
use super::memory::{Arena, Layout, Purpose, Registered, download, upload};
use super::ops::Ops;
use super::residency::Residency;
use super::sample::Draws;
use super::scratch::{Scratch, Sizes};
use super::step_queue::StepQueue;
use super::weights::{Matrix, TILE_ROWS, Vector, Weights, units};
use super::{CudaExecutor, CudaOptions};
use crate::device::common::budget::Budget;
use crate::device::common::kv::KvShape;
use crate::device::common::placement::{check_size, values};
use crate::model::{FileWeights, Mapping, ModelConfig, TensorView};
use worker_orcd_ipc::Fault;

/// Head sizes that attention.cu is compiled for.
pub const HEAD_DIMS: [usize; 5] = [16, 32, 64, 96, 128];
/// File bytes on the device at a time, waiting to be packed.
const STAGING_BYTES: usize = 64 << 20;
/// Memory kept free whatever was ordered: for graphs, and for what NVIDIA's driver takes beside our
/// allocations.
const RESERVE_BYTES: u64 = 256 << 20;

/// A card that is ready to take a model: a context on it, and the kernels in it.
struct Device {
    context: Context,
    module: Module,
}

impl Device {
    fn open(ordinal: u32) -> Result<Self, Fault> {
        let context = Context::open(ordinal)?;
        let module = Module::load(&context)?;
        Ok(Self { context, module })
    }
}

pub fn load(
    config: &ModelConfig,
    weights: &FileWeights<'_>,
    file: Option<&[u8]>,
    options: &CudaOptions,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<CudaExecutor, Fault> {
    refuse_unsupported(config)?;
    let device = Device::open(options.ordinal)?;
    let sequence_tokens = options.load.max_sequence_tokens.max(1) as usize;
    let sizes = Sizes::of(config, options.load.batch_tokens(), sequence_tokens);
    let mut placement = Placement::default();
    let tensors = weights.try_map(&mut placement)?;
    let table = rope_table(config, sequence_tokens);
    let table_offset = placement.layout.place(size_of_val(&*table) as u64);
    let fixed = placement.layout.bytes() + Scratch::bytes_for(&sizes) + STAGING_BYTES as u64;
    let shape = KvShape::of(config);
    let pages = kv_pages(&device.context, shape, options, fixed)?;

    let arena = placement.fill(&device, file, progress)?;
    let rope_table = arena.at(table_offset, table.len());
    // SAFETY: the layout placed a table of that length there; pageable memory has been read when this
    // returns.
    unsafe { upload(&device.context, rope_table, &table) }?;
    let weights = Weights {
        arena,
        tensors,
        rope_table,
    };
    let kv = KvCache::new(&device.context, shape, pages)?;
    let scratch = Scratch::new(&device.context, sizes)?;
    assemble(device, config, weights, kv, scratch, sequence_tokens)
}

/// Finds the kernels for a model that is in place.
fn assemble(
    Device { context, module }: Device,
    config: &ModelConfig,
    weights: Weights,
    kv: KvCache,
    scratch: Scratch,
    sequence_tokens: usize,
) -> Result<CudaExecutor, Fault> {
    let ops = Ops::load(&module, config.head_dim)?;
    let rows = (scratch.sizes.tokens, config.vocab_size);
    let draws = Draws::load(&context, &module, rows, sequence_tokens)?;
    let types = weights.tensors.matrices().map(|matrix| matrix.ty);
    let matmul = Matmul::load(&context, &module, types)?;
    let decode_step = DecodeStep::load(&context, &module, config, &weights)?;
    let board = Board::new(&context, config.n_layers)?;
    let residency = Residency::new(&context, &module, &weights.arena)?;
    context.synchronize("loading the model")?;
    Ok(CudaExecutor {
        config: config.clone(),
        weights,
        kv,
        scratch,
        ops,
        matmul,
        decode_step,
        graphs: Graphs::default(),
        #[cfg(feature = "fault-injection")]
        misdeeds: None,
        residency,
        draws,
        steps: StepQueue::new()?,
        board,
        context,
    })
}

fn refuse_unsupported(config: &ModelConfig) -> Result<(), Fault> {
    let refuse = |message: String| Err(Fault::ModelLoad { message });
    if !HEAD_DIMS.contains(&config.head_dim) {
        return refuse(format!(
            "heads of {} values are not supported on CUDA; {HEAD_DIMS:?} are",
            config.head_dim
        ));
    }
    for (what, width) in [("embedding", config.n_embd), ("feed-forward", config.n_ff)] {
        if !width.is_multiple_of(8) {
            return refuse(format!(
                "a {what} width of {width} is not supported on CUDA"
            ));
        }
    }
    if config.sliding_window.is_some() {
        return refuse("a sliding window is not supported on CUDA".to_owned());
    }
    Ok(())
}

/// cos and sin of every pair at every position.
fn rope_table(config: &ModelConfig, positions: usize) -> Vec<[f32; 2]> {
    let rope = &config.rope;
    let frequencies: Vec<f64> = (0..rope.dims / 2).map(|i| rope.frequency(i)).collect();
    (0..positions as u32)
        .flat_map(|position| {
            frequencies
                .iter()
                .map(move |&frequency| rope.turn(position, frequency).into())
        })
        .collect()
}

/// Pages of the KV cache: those that were ordered, or its share of the device.
fn kv_pages(
    context: &Context,
    shape: KvShape,
    options: &CudaOptions,
    fixed: u64,
) -> Result<u32, Fault> {
    let (free, total) = context.memory()?;
    let budget = Budget {
        total,
        free,
        reserve: RESERVE_BYTES,
        fixed,
        page_bytes: shape.page_bytes(),
    };
    let useful = options.load.sequence_pages() * u64::from(options.max_sequences);
    let share = |budget: &Budget| budget.by_share(options.memory_permille, useful);
    budget.pages(&options.load, &context.id(), share)
}

/// The weights before their arena is allocated: where everything goes, and from where.
#[derive(Default)]
struct Placement<'a> {
    layout: Layout,
    matrices: Vec<(TensorView<'a>, Matrix)>,
    vectors: Vec<(TensorView<'a>, Vector)>,
}

impl<'a> Mapping<TensorView<'a>, TensorView<'a>> for Placement<'a> {
    type Matrix = Matrix;
    type Vector = Vector;
    type Error = Fault;

    fn matrix(&mut self, tensor: &TensorView<'a>) -> Result<Matrix, Fault> {
        check_size(tensor)?;
        let mut matrix = Matrix {
            ty: tensor.ty,
            rows: tensor.rows,
            cols: tensor.cols,
            offset: 0,
        };
        matrix.offset = self.layout.place(matrix.bytes());
        self.matrices.push((*tensor, matrix));
        Ok(matrix)
    }

    fn vector(&mut self, tensor: &TensorView<'a>) -> Result<Vector, Fault> {
        check_size(tensor)?;
        let len = tensor.rows * tensor.cols;
        let offset = self.layout.place(4 * len as u64);
        let vector = Vector { len, offset };
        self.vectors.push((*tensor, vector));
        Ok(vector)
    }
}

impl Placement<'_> {
    /// Allocates the arena and gets the weights in place.
    fn fill(
        &self,
        Device { context, module }: &Device,
        file: Option<&[u8]>,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Arena, Fault> {
        let arena = Arena::new(context, Purpose::Weights, self.layout.bytes())?;
        // What lies between the weights is part of their checksums, and must be the same in the
        // next child.
        arena.clear(context)?;
        for (tensor, vector) in &self.vectors {
            let values = values(tensor)?;
            // SAFETY: the vector's own place; pageable memory has been read when this returns.
            unsafe { upload(context, arena.at(vector.offset, vector.len), &values) }?;
        }
        let registered = file.and_then(Registered::new);
        let packer = Packer::new(context, module, &arena)?;
        let total: u64 = self.matrices.iter().map(|(t, _)| t.data.len() as u64).sum();
        let mut done = 0;
        for (tensor, matrix) in &self.matrices {
            packer.pack(tensor, matrix, &mut |bytes| {
                done += bytes;
                progress(done, total);
            })?;
        }
        let overflows = packer.finish()?;
        drop(registered);
        if overflows {
            let message = "a weight is too large for F16".to_owned();
            return Err(Fault::ModelLoad { message });
        }
        Ok(arena)
    }
}

/// Copies file bytes to a staging buffer and packs them from there.
struct Packer<'a> {
    context: &'a Context,
    kernel: Kernel<RepackArgs>,
    arena: &'a Arena,
    staging: Arena,
    flags: Arena,
}

impl<'a> Packer<'a> {
    fn new(context: &'a Context, module: &Module, arena: &'a Arena) -> Result<Self, Fault> {
        let flags = Arena::new(context, Purpose::Scratch, 4)?;
        flags.clear(context)?;
        Ok(Self {
            context,
            // SAFETY: repack.cu takes RepackArgs.
            kernel: unsafe { module.kernel("repack") }?,
            arena,
            staging: Arena::new(context, Purpose::Scratch, STAGING_BYTES as u64)?,
            flags,
        })
    }

    fn pack(
        &self,
        tensor: &TensorView<'_>,
        matrix: &Matrix,
        packed: &mut dyn FnMut(u64),
    ) -> Result<(), Fault> {
        const THREADS: u32 = 256;
        let row_bytes = tensor.row_bytes();
        let tiles_at_once = STAGING_BYTES / (TILE_ROWS * row_bytes);
        if tiles_at_once == 0 {
            let message = format!("{}: rows of {row_bytes} bytes are too long", tensor.name);
            return Err(Fault::ModelLoad { message });
        }
        for tile in (0..matrix.tiles()).step_by(tiles_at_once) {
            let first = tile * TILE_ROWS;
            let rows = (matrix.rows - first).min(tiles_at_once * TILE_ROWS);
            let data = &tensor.data[first * row_bytes..][..rows * row_bytes];
            let tiles = rows.div_ceil(TILE_ROWS);
            let offset = matrix.offset + (tile * matrix.tile_bytes()) as u64;
            let arguments = RepackArgs {
                file: self.staging.at(0, data.len()),
                packed: self.arena.at(offset, tiles * matrix.tile_bytes()),
                flags: self.flags.at(0, 1),
                row_bytes: row_bytes as u64,
                ty: matrix.ty as i32,
                rows: rows as i32,
                cols: matrix.cols as i32,
                units: units(matrix.cols) as i32,
            };
            let warps = tiles * units(matrix.cols);
            let blocks = warps.div_ceil(THREADS as usize / 32);
            // SAFETY: staging and the matrix's place are as large as the slices taken of them;
            // stream order keeps a copy behind the kernel that read the one before.
            unsafe {
                upload(self.context, arguments.file, data)?;
                self.kernel
                    .launch(self.context, Geometry::line(blocks, THREADS), &arguments)?;
            }
            packed(data.len() as u64);
        }
        Ok(())
    }

    /// Waits; true when a weight did not fit F16.
    fn finish(&self) -> Result<bool, Fault> {
        let mut flags = [0_u32];
        // SAFETY: one word.
        unsafe { download(self.context, &mut flags, self.flags.at(0, 1)) }?;
        Ok(flags[0] != 0)
    }
}
