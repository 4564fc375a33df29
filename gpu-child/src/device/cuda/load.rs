//! Uploading a model: what fits, then every tensor into its place, packed by the device itself.

use super::decode_step::DecodeStep;
use super::driver::Driver;
use super::flight::Flights;
use super::graph::Graphs;
use super::kernels::{Geometry, Kernel, Module, RepackArgs, are_at_hand};
use super::kv::{KvCache, KvShape};
use super::matmul::Matmul;
use super::memory::{Arena, Layout, Purpose, Registered, download, upload};
use super::ops::Ops;
use super::plan::PAGE_TOKENS;
use super::sample::Draws;
use super::scratch::{Scratch, Sizes};
use super::weights::{Layer, Linear, Matrix, TILE_ROWS, Vector, Weights, multiplied_as, units};
use super::{CudaExecutor, CudaOptions};
use crate::model::{self, ModelConfig, ModelWeights, RopeStyle, TensorView};
use worker_orcd_ipc::Fault;
use worker_orcd_kernels::reference::rope::{Rope, RopePairs};
use worker_orcd_kernels::{TensorType, dequantize_row};

/// Head sizes that attention.cu is compiled for.
const HEAD_DIMS: [usize; 5] = [16, 32, 64, 96, 128];
/// File bytes on the device at a time, waiting to be packed.
const STAGING_BYTES: usize = 64 << 20;
/// Left to the driver and to others, of what is free.
const RESERVE_BYTES: u64 = 256 << 20;

pub fn load(
    config: &ModelConfig,
    weights: &ModelWeights<'_>,
    file: Option<&[u8]>,
    options: &CudaOptions,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<CudaExecutor, Fault> {
    if !are_at_hand() {
        return Err(Fault::DeviceUnavailable {
            message: format!(
                "cuda:{} was asked for, but this build carries no kernels: run `cargo xtask \
                 kernels` and build again",
                options.ordinal
            ),
        });
    }
    refuse_unsupported(config)?;
    let driver = Driver::open(options.ordinal)?;
    let module = Module::load(&driver)?;
    let mut placement = Placement::default();
    let placed = placement.model(weights)?;
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
    let (token_embd, layers, output_norm, output) = placed;
    let turns = arena.at(turns_offset, turns.len());
    let weights = Weights {
        arena,
        token_embd,
        layers,
        output_norm,
        output,
    };
    let decode_step = DecodeStep::load(&driver, &module, config, &weights)?;
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
        draws,
        flights: Flights::new()?,
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
    let rope = Rope {
        pairs: match config.rope_style {
            RopeStyle::Adjacent => RopePairs::Adjacent,
            RopeStyle::HalfOffset => RopePairs::HalfOffset,
        },
        dims: config.rope_dims,
        base: config.rope_base,
        scale: config.rope_scale,
        factors: config.rope_factors.clone(),
        attn_factor: config.rope_attn_factor,
    };
    let frequencies: Vec<f64> = (0..rope.dims / 2).map(|i| rope.frequency(i)).collect();
    (0..positions as u32)
        .flat_map(|position| {
            let rope = &rope;
            frequencies
                .iter()
                .map(move |&frequency| rope.turn(position, frequency).into())
        })
        .collect()
}

/// How many pages the KV cache gets: what was ordered, or nearly all that is free.
fn kv_pages(
    driver: &Driver,
    config: &ModelConfig,
    options: &CudaOptions,
    fixed: u64,
) -> Result<u32, Fault> {
    let page_bytes = KvShape::of(config).page_bytes();
    let (free, _) = driver.memory()?;
    let spare = free.saturating_sub(fixed.saturating_add(RESERVE_BYTES));
    let kv_bytes = options.kv_cache_bytes.unwrap_or(spare - spare / 16);
    let pages = kv_bytes / page_bytes;
    let required = fixed
        .saturating_add(RESERVE_BYTES)
        .saturating_add(pages.max(1).saturating_mul(page_bytes));
    if pages == 0 || required > free {
        return Err(Fault::InsufficientMemory {
            required_bytes: required,
            available_bytes: free,
            device: driver.id(),
            model: options.model.clone(),
        });
    }
    Ok(u32::try_from(pages)
        .unwrap_or(u32::MAX)
        .min(i32::MAX as u32))
}

type Placed = (Matrix, Vec<Layer>, Vector, Linear);

/// Where everything goes, and what is to be copied there.
#[derive(Default)]
struct Placement<'a> {
    layout: Layout,
    matrices: Vec<(TensorView<'a>, Matrix)>,
    vectors: Vec<(TensorView<'a>, Vector)>,
}

impl<'a> Placement<'a> {
    fn model(&mut self, weights: &ModelWeights<'a>) -> Result<Placed, Fault> {
        let output = self.linear(&weights.output)?;
        let tied = weights.token_embd.data.as_ptr() == weights.output.weight.data.as_ptr();
        let token_embd = if tied {
            output.weight
        } else {
            self.matrix(&weights.token_embd)?
        };
        let mut layers = Vec::with_capacity(weights.layers.len());
        for layer in &weights.layers {
            layers.push(Layer {
                attn_norm: self.vector(&layer.attn_norm)?,
                qkv: [
                    self.linear(&layer.q)?,
                    self.linear(&layer.k)?,
                    self.linear(&layer.v)?,
                ],
                q_norm: layer.q_norm.as_ref().map(|v| self.vector(v)).transpose()?,
                k_norm: layer.k_norm.as_ref().map(|v| self.vector(v)).transpose()?,
                attn_output: self.linear(&layer.attn_output)?,
                ffn_norm: self.vector(&layer.ffn_norm)?,
                gate_up: [self.linear(&layer.ffn_gate)?, self.linear(&layer.ffn_up)?],
                ffn_down: self.linear(&layer.ffn_down)?,
            });
        }
        let output_norm = self.vector(&weights.output_norm)?;
        Ok((token_embd, layers, output_norm, output))
    }

    fn linear(&mut self, linear: &model::Linear<'a>) -> Result<Linear, Fault> {
        Ok(Linear {
            bias: linear
                .bias
                .as_ref()
                .map(|bias| self.vector(bias))
                .transpose()?,
            weight: self.matrix(&linear.weight)?,
        })
    }

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
            let mut values = vec![0.0_f32; vector.len];
            dequantize_row(tensor.ty, tensor.data, &mut values);
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

fn check_size(tensor: &TensorView<'_>) -> Result<(), Fault> {
    let bytes = tensor
        .ty
        .row_bytes(tensor.cols)
        .map(|bytes| bytes * tensor.rows);
    if bytes == Some(tensor.data.len()) {
        return Ok(());
    }
    Err(Fault::ModelLoad {
        message: format!(
            "{}: {} bytes are no {} x {} of {}",
            tensor.name,
            tensor.data.len(),
            tensor.rows,
            tensor.cols,
            multiplied_as(tensor.ty).name()
        ),
    })
}

/// A page is walked whole by attention: the two files must agree.
const _: () = assert!(PAGE_TOKENS == 32);
