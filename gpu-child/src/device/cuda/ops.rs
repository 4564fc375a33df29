//! The kernels around the matmuls.

use super::kernels::{
    ArgmaxArgs, ArriveArgs, AttentionArgs, EmbedArgs, Kernel, MergeArgs, Module, RopeArgs, RowArgs,
};
use worker_orcd_ipc::Fault;

#[derive(Debug)]
pub struct Ops {
    pub arrive: Kernel<ArriveArgs>,
    pub embed: Kernel<EmbedArgs>,
    pub rmsnorm: Kernel<RowArgs>,
    pub scale_rows: Kernel<RowArgs>,
    pub silu_mul_rows: Kernel<RowArgs>,
    pub rope_kv: Kernel<RopeArgs>,
    pub attention_walk: Kernel<AttentionArgs>,
    pub attention_split: Kernel<AttentionArgs>,
    pub attention_merge: Kernel<MergeArgs>,
    pub argmax: Kernel<ArgmaxArgs>,
}

impl Ops {
    /// # Errors
    /// When a kernel is missing.
    pub fn load(module: &Module, head_dim: usize) -> Result<Self, Fault> {
        // SAFETY: each name's kernel takes the argument struct that it is bound to here.
        unsafe {
            Ok(Self {
                arrive: module.kernel("arrive")?,
                embed: module.kernel("embed")?,
                rmsnorm: module.kernel("rmsnorm")?,
                scale_rows: module.kernel("scale_rows")?,
                silu_mul_rows: module.kernel("silu_mul_rows")?,
                rope_kv: module.kernel("rope_kv")?,
                attention_walk: module.kernel(&format!("attention_walk_{head_dim}"))?,
                attention_split: module.kernel(&format!("attention_split_{head_dim}"))?,
                attention_merge: module.kernel("attention_merge")?,
                argmax: module.kernel("argmax")?,
            })
        }
    }
}
