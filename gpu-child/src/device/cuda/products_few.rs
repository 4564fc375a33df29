//! Products of very few rows with inputs made in the same launch, for models without the one-launch step
//! (`kernels/cuda/products_few.cu`).

use super::context::Context;
use super::expert_arguments::ProductsArgs;
use super::headers::constant;
use super::kernels::{Geometry, Kernel, Module, Part, RowArgs};
use super::matmul::Output;
use super::weights::{Linear, UNIT, Weights, multiplied_as, unit_bytes, units};
use worker_orcd_ipc::Fault;
use worker_orcd_kernels::TensorType;

/// Maximum number of rows of such products, and of rows that each read the weights of their own experts. With more, the
/// products of larger batches are faster, and rows share some experts (`bench/results/experts.md`).
pub const ROWS_ALONE: usize = 2;
const _: () = assert!(ROWS_ALONE <= constant!("few_rows.cuh", FEW_ROWS));
const PRODUCT_WARPS: usize = constant!("products_few.cu", PRODUCT_WARPS);
const PRODUCT_STAGES: usize = constant!("products_few.cu", PRODUCT_STAGES);
const LARGE_STAGES: usize = constant!("products_few.cu", LARGE_STAGES);
const LARGE_BYTES: usize = constant!("products_few.cu", LARGE_BYTES);
/// Maximum bytes per tile in a ring, except for types with a unit of at least half of that.
const RING_UNIT_BYTES: usize = constant!("tile_ring.cuh", RING_BYTES);
/// Static shared memory of the kernels, and a reserve for NVIDIA's driver.
const RESERVED_SHARED: u32 = 16 << 10;

#[derive(Debug)]
pub struct FewProducts {
    kernel: Kernel<ProductsArgs>,
    /// Maximum shared memory of a block.
    most: usize,
}

impl FewProducts {
    /// # Errors
    /// If the kernel is missing.
    pub fn load(context: &Context, module: &Module) -> Result<Self, Fault> {
        // SAFETY: the kernel takes ProductsArgs, and waits.
        let kernel: Kernel<ProductsArgs> = unsafe { module.kernel("products_few")?.overlapping() };
        let most = context.shared_bytes() - RESERVED_SHARED;
        kernel.allow_shared(most)?;
        Ok(Self {
            kernel,
            most: most as usize,
        })
    }

    /// [`run`](Self::run) supports this number of rows for these matrices.
    #[must_use]
    pub fn takes(&self, linears: &[Linear], rows: usize) -> bool {
        rows <= ROWS_ALONE && shared_bytes(linears, rows) <= self.most
    }

    /// Makes an input of very few rows and multiplies it by matrices of any types.
    ///
    /// # Errors
    /// If the launch fails.
    ///
    /// # Safety
    /// The memory of the arguments is on the device and has the stated sizes, for rows that
    /// [`takes`](Self::takes) accepts.
    pub unsafe fn run(
        &self,
        context: &Context,
        weights: &Weights,
        linears: &[Linear],
        input: RowArgs,
        output: Output,
    ) -> Result<(), Fault> {
        let mut parts = [Part::NONE; 3];
        let (mut column, mut pairs) = (0, 0);
        for (part, linear) in parts.iter_mut().zip(linears) {
            *part = weights.part(linear, column);
            column += linear.weight.rows;
            pairs += linear.weight.tiles().div_ceil(2);
        }
        let arguments = ProductsArgs {
            input,
            parts,
            n_parts: linears.len() as i32,
            out_stride: output.stride as i32,
            add: i32::from(output.add),
            unused: 0,
            out: output.out,
        };
        let geometry = Geometry {
            grid: [pairs as u32, 1],
            block: [32, PRODUCT_WARPS as u32, 1],
            shared_bytes: shared_bytes(linears, input.rows as usize) as u32,
        };
        // SAFETY: a block two tiles, with room for its rows and rings; the rest is the caller's promise.
        unsafe { self.kernel.launch(context, geometry, &arguments) }
    }
}

/// Shared memory: rows, then rings of the type with the largest need.
fn shared_bytes(linears: &[Linear], rows: usize) -> usize {
    let of_linear = |linear: &Linear| {
        let ty = multiplied_as(linear.weight.ty);
        let stages = match unit_bytes(ty) < LARGE_BYTES {
            true => PRODUCT_STAGES,
            false => LARGE_STAGES,
        };
        let ring = ring_bytes(ty, 2, stages);
        rows * units(linear.weight.cols) * UNIT * size_of::<u16>() + PRODUCT_WARPS * ring
    };
    linears.iter().map(of_linear).max().unwrap_or_default()
}

/// `TileRing` of `tile_ring.cuh`: a warp's ring of this number of tiles.
#[must_use]
pub fn ring_bytes(ty: TensorType, tiles: usize, most_stages: usize) -> usize {
    let stages = (RING_UNIT_BYTES / unit_bytes(ty)).clamp(2, most_stages);
    stages * tiles * unit_bytes(ty)
}
