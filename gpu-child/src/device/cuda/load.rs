//! Uploading a model: what fits, then every tensor into its place, packed by the device itself.

use super::board::Board;
use super::budget::Budget;
use super::decode_step::DecodeStep;
use super::driver::Driver;
use super::flight::Flights;
use super::graph::Graphs;
use super::kernels::{Geometry, Kernel, Module, RepackArgs};
use super::kv::{KvCache, KvShape};
use super::matmul::Matmul;
use super::memory::{Arena, Layout, Purpose, Registered, download, upload};
use super::ops::Ops;
use super::plan::PAGE_TOKENS;
use super::residency::Residency;
use super::sample::Draws;
use super::scratch::{Scratch, Sizes};
use super::weights::{Matrix, TILE_ROWS, Vector, Weights, units};
use super::{CudaExecutor, CudaOptions, KvOrder};
use crate::device::common::placement::{check_size, values};
use crate::model::{FileWeights, Mapping, ModelConfig, TensorView};
use worker_orcd_ipc::Fault;
use worker_orcd_kernels::TensorType;

/// Head sizes that attention.cu is compiled for.
const HEAD_DIMS: [usize; 5] = [16, 32, 64, 96, 128];
/// File bytes on the device at a time, waiting to be packed.
const STAGING_BYTES: usize = 64 << 20;

pub fn load(
    config: &ModelConfig,
    weights: &FileWeights<'_>,
    file: Option<&[u8]>,
    options: &CudaOptions,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<CudaExecutor, Fault> {
    refuse_unsupported(config)?;
    let driver = Driver::open(options.ordinal)?;
    let module = Module::load(&driver)?;
    let mut placement = Placement::default();
    let tensors = weights.try_map(&mut placement)?;
    let sequence_tokens = options.max_sequence_tokens.max(1) as usize;
    let sizes = Sizes::of(
        config,
        options.max_batch_tokens.max(1) as usize,
        sequence_tokens,
    );
    let turns = turns(config, sequence_tokens);
    let turns_offset = placement.layout.place(size_of_val(&*turns) as u64);
    let fixed = placement.layout.bytes() + Scratch::bytes_for(&sizes) + STAGING_BYTES as u64;
    let pages = kv_pages(&driver, config, options, fixed)?;

    let arena = Arena::new(&driver, Purpose::Weights, placement.layout.bytes())?;
    // What lies between the weights is part of their checksums, and must be the same in the next
    // child.
    arena.clear(&driver)?;
    // SAFETY: the layout placed that many turns there; `turns` outlives the synchronization.
    unsafe { upload(&driver, arena.at(turns_offset, turns.len()), &turns) }?;
    placement.upload(&driver, &module, &arena, file, progress)?;
    let kv = KvCache::new(&driver, KvShape::of(config), pages)?;
    let scratch = Scratch::new(&driver, sizes)?;
    let ops = Ops::load(&module, config.head_dim)?;
    let draws = Draws::load(
        &driver,
        &module,
        (sizes.tokens, config.vocab_size),
        sequence_tokens,
    )?;
    let matmul = Matmul::load(&driver, &module, &placement.types())?;
    let turns = arena.at(turns_offset, turns.len());
    let weights = Weights { arena, tensors };
    let decode_step = DecodeStep::load(&driver, &module, config, &weights)?;
    let board = Board::new(&driver, config.n_layers)?;
    let residency = Residency::take(&driver, &module, &weights.arena)?;
    driver.synchronize("loading the model")?;
    Ok(CudaExecutor {
        config: config.clone(),
        turns,
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
        flights: Flights::new()?,
        board,
        driver,
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
fn turns(config: &ModelConfig, positions: usize) -> Vec<[f32; 2]> {
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

/// How many pages the KV cache gets: what was ordered, or its share of the device.
fn kv_pages(
    driver: &Driver,
    config: &ModelConfig,
    options: &CudaOptions,
    fixed: u64,
) -> Result<u32, Fault> {
    let page_bytes = KvShape::of(config).page_bytes();
    if let KvOrder::Bytes(bytes) = options.kv_cache
        && bytes < page_bytes
    {
        return Err(Fault::InsufficientMemory {
            required_bytes: page_bytes,
            available_bytes: bytes,
            device: format!("the KV cache ordered on {}", driver.id()),
            model: options.model.clone(),
        });
    }
    let (free, total) = driver.memory()?;
    let budget = Budget {
        total,
        free,
        fixed,
        page_bytes,
    };
    let sequence_pages = u64::from(options.max_sequence_tokens).div_ceil(PAGE_TOKENS as u64);
    let pages = match options.kv_cache {
        KvOrder::Bytes(bytes) => budget.ordered(bytes),
        KvOrder::Share {
            permille,
            sequences,
        } => budget.by_share(permille, sequence_pages * u64::from(sequences)),
    };
    pages.map_err(|too_little| Fault::InsufficientMemory {
        required_bytes: too_little.required,
        available_bytes: too_little.available,
        device: driver.id(),
        model: options.model.clone(),
    })
}

/// Where everything goes, and what is to be copied there.
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
    fn types(&self) -> Vec<TensorType> {
        self.matrices.iter().map(|(_, matrix)| matrix.ty).collect()
    }

    fn upload(
        &self,
        driver: &Driver,
        module: &Module,
        arena: &Arena,
        file: Option<&[u8]>,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<(), Fault> {
        for (tensor, vector) in &self.vectors {
            let values = values(tensor)?;
            // SAFETY: the vector's own place; pageable memory has been read when this returns.
            unsafe { upload(driver, arena.at(vector.offset, vector.len), &values) }?;
        }
        let registered = file.and_then(Registered::new);
        let packer = Packer::new(driver, module, arena)?;
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
        Ok(())
    }
}

/// Copies file bytes to a staging buffer and packs them from there.
struct Packer<'a> {
    driver: &'a Driver,
    kernel: Kernel<RepackArgs>,
    arena: &'a Arena,
    staging: Arena,
    flags: Arena,
}

impl<'a> Packer<'a> {
    fn new(driver: &'a Driver, module: &Module, arena: &'a Arena) -> Result<Self, Fault> {
        let flags = Arena::new(driver, Purpose::Scratch, 4)?;
        flags.clear(driver)?;
        Ok(Self {
            driver,
            // SAFETY: repack.cu takes RepackArgs.
            kernel: unsafe { module.kernel("repack") }?,
            arena,
            staging: Arena::new(driver, Purpose::Scratch, STAGING_BYTES as u64)?,
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
                upload(self.driver, arguments.file, data)?;
                self.kernel
                    .launch(self.driver, Geometry::line(blocks, THREADS), &arguments)?;
            }
            packed(data.len() as u64);
        }
        Ok(())
    }

    /// Waits; true when a weight did not fit F16.
    fn finish(&self) -> Result<bool, Fault> {
        let mut flags = [0_u32];
        // SAFETY: one word.
        unsafe { download(self.driver, &mut flags, self.flags.at(0, 1)) }?;
        Ok(flags[0] != 0)
    }
}

/// A page is walked whole by attention: the two files must agree.
const _: () = assert!(PAGE_TOKENS == 32);
