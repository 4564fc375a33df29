//! What every device knows in the same way.

pub mod placement;

use crate::model::{ModelConfig, RopeStyle};
use worker_orcd_kernels::reference::rope::{Rope, RopePairs};

pub fn rope(config: &ModelConfig) -> Rope {
    Rope {
        pairs: match config.rope_style {
            RopeStyle::Adjacent => RopePairs::Adjacent,
            RopeStyle::HalfOffset => RopePairs::HalfOffset,
        },
        dims: config.rope_dims,
        base: config.rope_base,
        scale: config.rope_scale,
        factors: config.rope_factors.clone(),
        attn_factor: config.rope_attn_factor,
    }
}
