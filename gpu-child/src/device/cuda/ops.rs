//! Kernels around the mixers and the products.

use super::headers::constant;
use super::kernels::{
    ArgmaxArgs, EmbedArgs, Geometry, Kernel, Module, RowArgs, ScatterInputsArgs, SoftcapArgs,
};
use super::weights::units;
use worker_orcd_ipc::Fault;

#[derive(Debug)]
pub struct Ops {
    pub scatter_inputs: Kernel<ScatterInputsArgs>,
    pub embed: Kernel<EmbedArgs>,
    pub rmsnorm: Kernel<RowArgs>,
    pub scale_rows: Kernel<RowArgs>,
    pub glu_rows: Kernel<RowArgs>,
    /// Both kernels for bounded inputs.
    pub scale_bounded_rows: Kernel<RowArgs>,
    pub glu_bounded_rows: Kernel<RowArgs>,
    pub add_norm: Kernel<RowArgs>,
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
                rmsnorm: module.kernel("rmsnorm")?.overlapping(),
                scale_rows: module.kernel("scale_rows")?.overlapping(),
                glu_rows: module.kernel("glu_rows")?.overlapping(),
                scale_bounded_rows: module.kernel("scale_bounded_rows")?.overlapping(),
                glu_bounded_rows: module.kernel("glu_bounded_rows")?.overlapping(),
                add_norm: module.kernel("add_norm")?.overlapping(),
                softcap: module.kernel("softcap")?.overlapping(),
                argmax: module.kernel("argmax")?.overlapping(),
            })
        }
    }
}

/// Chunks of a row that a warp of the kernels in norm.cu keeps in registers, and the maximum number of warps.
const KEPT_CHUNKS: usize = constant!("norm.cu", KEEP);
const MAX_ROW_WARPS: usize = constant!("norm.cu", MAX_ROW_THREADS) / 32;

/// One block for two rows: a warp for each chunk, or the maximum number of warps.
pub fn row_geometry(rows: usize, cols: usize) -> Geometry {
    let chunks = units(cols);
    let each = chunks.div_ceil(MAX_ROW_WARPS).min(KEPT_CHUNKS);
    let warps = chunks.div_ceil(each).min(MAX_ROW_WARPS);
    Geometry::line(rows.div_ceil(2), 32 * warps as u32)
}
