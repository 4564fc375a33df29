//! Selection of the matmul kernel by tensor type, number of rows and amount of work.
//!
//! Every choice gives the same bits (`kernels/cuda/matmul.cuh`); only time differs.

use super::bounds::Power;
use super::context::Context;
use super::headers::constant;
use super::kernels::{Geometry, Kernel, MatmulArgs, Module, Part, WideArgs};
use super::memory::DevicePtr;
use super::tensor_map::TensorMap;
use super::weights::{
    Linear, TILE_ROWS, UNIT, Weights, multiplied_as, segments, unit_bytes, units,
};
use super::wide::{BLOCKS, Capacity, Cluster, Product, Tiling, tiling};
use worker_orcd_ipc::Fault;
use worker_orcd_kernels::{Activation, TensorType};

/// Maximum number of rows with a time that is bound by reading the weights.
const FEW: usize = 64;
/// Static shared memory of matmul_wgmma.cuh, and a reserve for NVIDIA's driver.
const RESERVED_SHARED: u32 = 2 << 10;
/// Maximum number of threads of a `matmul_few` block.
const FEW_THREADS: usize = constant!("matmul_few.cu", FEW_THREADS);
const MAX_PARTS: usize = constant!("common.cuh", MAX_PARTS);
const MANY_THREADS: u32 = constant!("matmul_many.cu", MANY_THREADS) as u32;

/// Kernels of one tensor type.
#[derive(Debug)]
struct OfType {
    ty: TensorType,
    /// Up to 16 and up to 64 rows.
    few: [Kernel<MatmulArgs>; 2],
    /// Blocks of 64 x 64 and, where shared memory allows, 128 x 128.
    many: [Option<Kernel<MatmulArgs>>; 2],
    /// Hopper's kernels, one for each of [`BLOCKS`] that multiplies the type, instead of all others.
    wide: Vec<Option<Kernel<WideArgs>>>,
}

#[derive(Debug)]
pub struct Matmul {
    kernels: Vec<OfType>,
    has_wide: bool,
}

/// Factors of products of rows.
#[derive(Debug, Clone, Copy)]
pub enum Scale {
    OfEach(DevicePtr<f32>),
    OfAll(Power),
}

/// Rows of F16 under powers of two.
#[derive(Debug, Clone, Copy)]
pub struct Input {
    pub x: DevicePtr<u16>,
    pub scale: Scale,
    pub rows: usize,
    pub cols: usize,
}

/// Destination of results: rows of F32, `stride` floats apart.
#[derive(Debug, Clone, Copy)]
pub struct Output {
    pub out: DevicePtr<f32>,
    pub stride: usize,
    /// Adds results to the destination instead of replacing it.
    pub add: bool,
    /// Packs the gated linear unit of two linears that [`Matmul::pairs`], under this power, as an input of a product.
    pub paired: Option<Power>,
}

impl Output {
    #[must_use]
    pub fn stored(out: DevicePtr<f32>, stride: usize) -> Self {
        Self {
            out,
            stride,
            add: false,
            paired: None,
        }
    }

    #[must_use]
    pub fn added(out: DevicePtr<f32>, stride: usize) -> Self {
        Self {
            add: true,
            ..Self::stored(out, stride)
        }
    }
}

impl Matmul {
    /// # Errors
    /// If a kernel is missing.
    pub fn load(
        context: &Context,
        module: &Module,
        types: impl Iterator<Item = TensorType>,
    ) -> Result<Self, Fault> {
        let mut kernels: Vec<OfType> = Vec::new();
        for ty in types.map(multiplied_as) {
            if kernels.iter().all(|known| known.ty != ty) {
                kernels.push(OfType::load(context, module, ty)?);
            }
        }
        Ok(Self {
            kernels,
            has_wide: context.has_wgmma(),
        })
    }

    /// Drops the architecture-specific kernels.
    pub fn use_portable(&mut self) {
        self.has_wide = false;
    }

    /// Groups of eight rows of the packed input for this number of rows; zero for a plain layout
    /// (`RowArgs` in `norm.cuh`).
    #[must_use]
    pub fn groups(&self, rows: usize) -> usize {
        if self.has_wide { rows.div_ceil(8) } else { 0 }
    }

    /// Gate and up run as one product: [`run`](Self::run) then gives their gated linear unit. SiLU only: a choice of
    /// activation in that kernel costs every model some microseconds a layer (bench/results/cuda.md).
    #[must_use]
    pub fn pairs(&self, activation: Activation, [gate, up]: &[Linear; 2]) -> bool {
        let is_silu = activation == Activation::Silu;
        let same_type = multiplied_as(gate.weight.ty) == multiplied_as(up.weight.ty);
        self.has_wide && is_silu && same_type && gate.weight.rows == up.weight.rows
    }

    /// `out[:, column of each] = input x its weight`; the linears share their number of columns
    /// and are at most three. Linears of one type share a launch.
    ///
    /// # Errors
    /// If a launch fails.
    ///
    /// # Safety
    /// `input` and `output` are on the device and have their stated sizes; `output` has room for the
    /// rows of all the linears.
    pub unsafe fn run(
        &self,
        context: &Context,
        weights: &Weights,
        linears: &[Linear],
        input: Input,
        output: Output,
    ) -> Result<(), Fault> {
        let (scale, scale_of_all) = match input.scale {
            Scale::OfEach(scale) => (scale, 1.0),
            Scale::OfAll(power) => (DevicePtr::NULL, power.down()),
        };
        for of_type in &self.kernels {
            let mut parts = [Part::NONE; 3];
            let (mut count, mut column) = (0, 0);
            for linear in linears {
                if multiplied_as(linear.weight.ty) == of_type.ty {
                    parts[count] = weights.part(linear, column);
                    count += 1;
                }
                column += linear.weight.rows;
            }
            if count == 0 {
                continue;
            }
            let arguments = MatmulArgs {
                parts,
                n_parts: count as i32,
                rows: input.rows as i32,
                units: units(input.cols) as i32,
                out_stride: output.stride as i32,
                add: i32::from(output.add),
                scale_of_all,
                x: input.x,
                scale,
                out: output.out,
            };
            // SAFETY: parts are matrices of the arena with `units` units a tile; the rest is the
            // caller's promise.
            unsafe {
                if self.has_wide {
                    of_type.launch_wide(context, arguments, output.paired)?;
                } else {
                    of_type.launch(context, &arguments)?;
                }
            }
        }
        Ok(())
    }
}

impl OfType {
    fn load(context: &Context, module: &Module, ty: TensorType) -> Result<Self, Fault> {
        let name = ty.name();
        // SAFETY: every kernel of matmul_few.cu takes MatmulArgs, and waits.
        let few = |rows: u32| unsafe {
            let kernel: Kernel<MatmulArgs> = module.kernel(&format!("matmul_few_{name}_{rows}"))?;
            Ok::<_, Fault>(kernel.overlapping())
        };
        let many = |side: usize| {
            let bytes = many_shared(ty, side);
            if bytes > context.shared_bytes() {
                return Ok(None);
            }
            let name = format!("matmul_many_{name}_{side}");
            // SAFETY: every kernel of matmul_many.cu takes MatmulArgs, and waits.
            let kernel: Kernel<MatmulArgs> = unsafe { module.kernel(&name)?.overlapping() };
            kernel.allow_shared(bytes)?;
            Ok(Some(kernel))
        };
        let few = [few(1)?, few(4)?];
        for kernel in &few {
            kernel.allow_shared(context.shared_bytes().min(few_shared_limit()))?;
        }
        let mut wide = Vec::new();
        for block in BLOCKS.iter().filter(|_| context.has_wgmma()) {
            let load = || {
                let name = block.kernel_name(ty);
                // SAFETY: every kernel of matmul_wgmma.cuh takes WideArgs, and waits.
                let kernel: Kernel<WideArgs> = unsafe { module.kernel(&name)?.overlapping() };
                kernel.allow_shared(context.shared_bytes() - RESERVED_SHARED)?;
                Ok::<_, Fault>(kernel)
            };
            wide.push(block.multiplies(ty).then(load).transpose()?);
        }
        Ok(Self {
            ty,
            few,
            many: [many(64)?, many(128)?],
            wide,
        })
    }

    /// # Safety
    /// The contract of [`Matmul::run`]; the input is packed.
    unsafe fn launch_wide(
        &self,
        context: &Context,
        matmul: MatmulArgs,
        paired: Option<Power>,
    ) -> Result<(), Fault> {
        let parts = &matmul.parts[..matmul.n_parts as usize];
        let tiles: Vec<usize> = parts.iter().map(|part| part.tiles as usize).collect();
        let product = Product {
            ty: self.ty,
            tiles: &tiles,
            units: matmul.units as usize,
            rows: matmul.rows as usize,
            paired: paired.is_some(),
        };
        let tiling = tiling(&product, capacity(context));
        // SAFETY: the caller's promise.
        unsafe { self.launch_tiling(context, matmul, paired, tiling) }
    }

    /// # Safety
    /// As for [`launch_wide`](Self::launch_wide); the tiling is one of this product.
    unsafe fn launch_tiling(
        &self,
        context: &Context,
        matmul: MatmulArgs,
        paired: Option<Power>,
        tiling: Tiling,
    ) -> Result<(), Fault> {
        let parts = &matmul.parts[..matmul.n_parts as usize];
        let arguments = WideArgs {
            matmul,
            stages: tiling.stages as i32,
            cluster_sums: tiling.cluster_sums as i32,
            paired: i32::from(paired.is_some()),
            shares: i32::from(tiling.cluster == Cluster::Weights),
            up: paired.map_or(0.0, Power::up),
            out_units: units(parts[0].rows as usize) as i32,
            weights: self.tensor_maps(&matmul, BLOCKS[tiling.block].tiles() / 2)?,
        };
        let geometry = Geometry {
            grid: [tiling.blocks as u32, 1],
            block: [BLOCKS[tiling.block].threads(), 1, 1],
            shared_bytes: tiling.shared_bytes as u32,
        };
        let kernel = self.wide[tiling.block].as_ref();
        let kernel = kernel.expect("a tiling for the type");
        // SAFETY: the geometry is what the kernel of that block was compiled for, with room for
        // its stages and for what its cluster exchanges.
        unsafe {
            kernel.launch_clusters(
                context,
                geometry,
                tiling.cluster.blocks() as u32,
                &arguments,
            )
        }
    }

    /// Tensor maps of the parts, with boxes of this number of tiles.
    fn tensor_maps(
        &self,
        matmul: &MatmulArgs,
        box_tiles: usize,
    ) -> Result<[TensorMap; MAX_PARTS], Fault> {
        let mut maps = [TensorMap::NONE; MAX_PARTS];
        let parts = &matmul.parts[..matmul.n_parts as usize];
        for (map, part) in maps.iter_mut().zip(parts) {
            *map = TensorMap::of_weight(part, self.ty, matmul.units as usize, box_tiles)?;
        }
        Ok(maps)
    }

    /// # Safety
    /// The contract of [`Matmul::run`].
    unsafe fn launch(&self, context: &Context, arguments: &MatmulArgs) -> Result<(), Fault> {
        let rows = arguments.rows as usize;
        let parts = &arguments.parts[..arguments.n_parts as usize];
        if rows <= FEW {
            let tiles: usize = parts.iter().map(|part| part.tiles as usize).sum();
            let geometry = few_geometry(tiles, segments(arguments.units as usize), rows);
            let kernel = &self.few[usize::from(rows > 16)];
            // SAFETY: shared memory holds the sums of every tile of a block.
            return unsafe { kernel.launch(context, geometry, arguments) };
        }
        let blocks = |side: usize| {
            let columns = |part: &Part| (part.tiles as usize).div_ceil(side / TILE_ROWS);
            let columns: usize = parts.iter().map(columns).sum();
            [rows.div_ceil(side) as u32, columns as u32]
        };
        let [large_x, large_y] = blocks(128);
        let is_large = large_x * large_y >= context.multiprocessors();
        let choice = match (&self.many[1], &self.many[0]) {
            (Some(large), _) if is_large => Some((large, 128)),
            (_, Some(small)) => Some((small, 64)),
            (Some(large), None) => Some((large, 128)),
            (None, None) => None,
        };
        let Some((kernel, side)) = choice else {
            return Err(Fault::DeviceUnavailable {
                message: format!(
                    "{} has too little shared memory for {}",
                    context.id(),
                    self.ty.name()
                ),
            });
        };
        let geometry = Geometry {
            grid: blocks(side),
            block: [MANY_THREADS, 1, 1],
            shared_bytes: many_shared(self.ty, side),
        };
        // SAFETY: the geometry is the one that matmul_many.cu was compiled for.
        unsafe { kernel.launch(context, geometry, arguments) }
    }
}

/// Room of the device for blocks of `matmul_wgmma.cuh`.
fn capacity(context: &Context) -> Capacity {
    Capacity {
        multiprocessors: context.multiprocessors() as usize,
        // A block can have all but what NVIDIA's driver takes for it.
        multiprocessor_bytes: context.shared_bytes() as usize + (1 << 10),
        block_bytes: (context.shared_bytes() - RESERVED_SHARED) as usize,
    }
}

/// Geometry with one warp per segment; a block of short rows has several tiles.
pub fn few_geometry(tiles: usize, segments: usize, rows: usize) -> Geometry {
    let in_block = (FEW_THREADS / 2 / (32 * segments)).clamp(1, tiles);
    Geometry {
        grid: [tiles.div_ceil(in_block) as u32, 1],
        block: [32, segments as u32, in_block as u32],
        shared_bytes: (in_block * segments * rows * TILE_ROWS * 4) as u32,
    }
}

/// Shared memory limit of [`few_geometry`]: sums of 64 rows for 16 warps.
fn few_shared_limit() -> u32 {
    (FEW_THREADS / 32 * FEW * TILE_ROWS * 4) as u32
}

/// Two stages of activations and weights of a `side` x `side` block.
fn many_shared(ty: TensorType, side: usize) -> u32 {
    (2 * (side * 2 * UNIT + side / TILE_ROWS * unit_bytes(ty))) as u32
}

#[cfg(test)]
mod tests;
