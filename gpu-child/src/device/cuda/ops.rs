//! Kernels around the mixers and the products.

use super::context::Context;
use super::headers::constant;
use super::kernels::{
    ArgmaxArgs, EmbedArgs, GatedRowsArgs, Geometry, Kernel, Module, RowArgs, ScatterInputsArgs,
    SoftcapArgs,
};
use super::weights::units;
use worker_orcd_ipc::Fault;

#[derive(Debug)]
pub struct Ops {
    pub scatter_inputs: Kernel<ScatterInputsArgs>,
    pub embed: Kernel<EmbedArgs>,
    pub rmsnorm: RowKernel,
    pub scale_rows: RowKernel,
    pub glu_rows: RowKernel,
    /// Both kernels for bounded inputs.
    pub scale_bounded_rows: RowKernel,
    pub glu_bounded_rows: RowKernel,
    /// The same for units without a gate, of which up is its own.
    pub glu_own_rows: RowKernel,
    pub glu_own_bounded_rows: RowKernel,
    pub add_norm: RowKernel,
    /// A gated linear unit with gate and up in different places.
    pub glu_apart_rows: RowKernel<GatedRowsArgs>,
    pub softcap: Kernel<SoftcapArgs>,
    pub argmax: Kernel<ArgmaxArgs>,
}

impl Ops {
    /// # Errors
    /// If a kernel is missing.
    pub fn load(module: &Module) -> Result<Self, Fault> {
        // SAFETY: each name's kernel takes the argument struct that it is bound to here, and waits
        // for what is in front of it.
        unsafe {
            Ok(Self {
                scatter_inputs: module.kernel("scatter_inputs")?,
                embed: module.kernel("embed")?.overlapping(),
                rmsnorm: RowKernel::load(module, "rmsnorm")?,
                scale_rows: RowKernel::load(module, "scale_rows")?,
                glu_rows: RowKernel::load(module, "glu_rows")?,
                scale_bounded_rows: RowKernel::load_bounded(module, "scale_bounded_rows")?,
                glu_bounded_rows: RowKernel::load_bounded(module, "glu_bounded_rows")?,
                glu_own_rows: RowKernel::load(module, "glu_own_rows")?,
                glu_own_bounded_rows: RowKernel::load_bounded(module, "glu_own_bounded_rows")?,
                add_norm: RowKernel::load(module, "add_norm")?,
                glu_apart_rows: RowKernel::load(module, "glu_apart_rows")?,
                softcap: module.kernel("softcap")?.overlapping(),
                argmax: module.kernel("argmax")?.overlapping(),
            })
        }
    }
}

/// Chunks of a row that a warp of the kernels in norm.cu keeps in registers, and the maximum number of warps.
const KEPT_CHUNKS: usize = constant!("norm.cu", KEEP);
const MAX_ROW_WARPS: usize = constant!("norm.cu", MAX_ROW_THREADS) / 32;

/// Blocks that rows without many neighbours are spread over.
const SPREAD_BLOCKS: usize = 64;

/// A kernel of norm.cu or gated_rows.cu, which makes inputs of products.
#[derive(Debug)]
pub struct RowKernel<A = RowArgs> {
    kernel: Kernel<A>,
    /// No column waits for another, because rows have a bound: a row may have several blocks.
    is_bounded: bool,
}

impl<A> RowKernel<A> {
    /// # Errors
    /// If the kernel is missing.
    ///
    /// # Safety
    /// The kernel takes `A`, and waits for what is in front of it.
    pub unsafe fn load(module: &Module, name: &str) -> Result<Self, Fault> {
        Ok(Self {
            // SAFETY: the caller's promise.
            kernel: unsafe { module.kernel(name)?.overlapping() },
            is_bounded: false,
        })
    }

    /// Like [`load`](Self::load), for kernels of bounded rows.
    ///
    /// # Errors
    /// If the kernel is missing.
    ///
    /// # Safety
    /// The contract of [`load`](Self::load).
    pub unsafe fn load_bounded(module: &Module, name: &str) -> Result<Self, Fault> {
        Ok(Self {
            is_bounded: true,
            // SAFETY: the caller's promise.
            ..unsafe { Self::load(module, name)? }
        })
    }

    /// # Errors
    /// If the launch is refused, or an earlier launch has failed.
    ///
    /// # Safety
    /// The memory of the arguments is on the device and has room for these rows.
    pub unsafe fn launch(
        &self,
        context: &Context,
        (rows, cols): (usize, usize),
        arguments: &A,
    ) -> Result<(), Fault> {
        let blocks = if self.is_bounded { SPREAD_BLOCKS } else { 1 };
        let geometry = row_geometry(rows, cols, blocks);
        // SAFETY: the geometry covers the rows; the rest is the caller's promise.
        unsafe { self.kernel.launch(context, geometry, arguments) }
    }
}

/// Blocks of two rows: a warp for each chunk, or the maximum number of warps. Fewer rows have several blocks each, up to this number
/// together.
fn row_geometry(rows: usize, cols: usize, blocks: usize) -> Geometry {
    let (pairs, chunks) = (rows.div_ceil(2), units(cols));
    let spread = (blocks / pairs).clamp(1, chunks);
    let chunks = chunks.div_ceil(spread);
    let each = chunks.div_ceil(MAX_ROW_WARPS).min(KEPT_CHUNKS);
    let warps = chunks.div_ceil(each).min(MAX_ROW_WARPS);
    Geometry {
        grid: [pairs as u32, spread as u32],
        ..Geometry::line(pairs, 32 * warps as u32)
    }
}
