//! Hyperparameters of a mixture of experts: `{arch}.expert_*`.
//!
//! The computation is llama.cpp's for these architectures (`build_moe_ffn`): top-k experts by a softmax, with weights
//! defined by the architecture, even against a key. A file with a contradicting key is refused.

use super::architecture::Experts;
use super::config::Keys;
use super::error::ModelError;
use worker_orcd_kernels::Weighing;

/// llama.cpp's `LLAMA_MAX_EXPERTS`.
pub const MAX_EXPERTS: usize = 512;
/// `expert_gating_func`: llama.cpp's `LLAMA_EXPERT_GATING_FUNC_TYPE_SOFTMAX`.
const SOFTMAX: u32 = 1;
/// `LLAMA_EXPERT_GATING_FUNC_TYPE_SOFTMAX_WEIGHT`.
const SOFTMAX_WEIGHT: u32 = 3;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpertsConfig {
    pub count: usize,
    /// Experts per token; at most `count`.
    pub used: usize,
    /// Width of an expert.
    pub n_ff: usize,
    /// Width of the shared expert, if there is one.
    pub shared_n_ff: Option<usize>,
    pub weighing: Weighing,
    /// The router and the experts have biases.
    pub has_biases: bool,
    /// A dense part is beside the experts ([`DenseBeside`](super::DenseBeside)).
    pub beside_dense: bool,
}

impl ExpertsConfig {
    /// Router outputs of a row: one for each expert, and one for the shared expert.
    #[must_use]
    pub fn logits(&self) -> usize {
        self.count + usize::from(self.shared_n_ff.is_some())
    }
}

/// Experts of a file. `n_ff`: the file's width of a dense feed-forward part.
///
/// # Errors
/// If a key is missing or invalid, or requires an unsupported feature.
pub(super) fn read(keys: &Keys<'_, '_>, n_ff: usize) -> Result<Option<ExpertsConfig>, ModelError> {
    let has_experts = keys.count("expert_count")? > 0;
    let (weighing, has_shared, has_biases) = match keys.architecture.conventions().experts {
        Experts::None if has_experts => {
            let key = keys.key("expert_count");
            return Err(ModelError::unsupported(key, "a mixture of experts"));
        }
        Experts::Optional | Experts::BesideDense if has_experts => {
            (Weighing::Renormalized, false, false)
        }
        Experts::None | Experts::Optional | Experts::BesideDense => return Ok(None),
        Experts::Always {
            weighing,
            has_shared,
            has_biases,
        } => (weighing, has_shared, has_biases),
    };
    refuse_unsupported(keys, weighing, has_shared)?;
    let count = keys.positive("expert_count")?;
    let used = keys.positive("expert_used_count")?;
    if count > MAX_EXPERTS {
        let message = format!("{count} experts are more than {MAX_EXPERTS}");
        return Err(ModelError::bad_value(keys.key("expert_count"), message));
    }
    if used > count {
        let message = format!("{used} of {count} experts cannot be used");
        let key = keys.key("expert_used_count");
        return Err(ModelError::bad_value(key, message));
    }
    let shared = keys.optional_positive("expert_shared_feed_forward_length")?;
    Ok(Some(ExpertsConfig {
        count,
        used,
        n_ff: width(keys, n_ff, used)?,
        shared_n_ff: has_shared.then(|| shared.unwrap_or(n_ff)),
        weighing,
        has_biases,
        beside_dense: keys.architecture.conventions().experts == Experts::BesideDense,
    }))
}

/// Width of an expert. llama.cpp does not read the key for `llama`, and derives a missing one for other architectures.
fn width(keys: &Keys<'_, '_>, n_ff: usize, used: usize) -> Result<usize, ModelError> {
    const KEY: &str = "expert_feed_forward_length";
    let told = keys.optional_positive(KEY)?;
    let is_optional = keys.architecture.conventions().experts == Experts::Optional;
    let width = match told {
        Some(width) if is_optional && width != n_ff => {
            let feature = "a width of experts other than feed_forward_length";
            return Err(ModelError::unsupported(keys.key(KEY), feature));
        }
        None if is_optional => n_ff,
        told => told.unwrap_or(n_ff / used),
    };
    match width {
        0 => Err(ModelError::bad_value(keys.key(KEY), "must not be zero")),
        width => Ok(width),
    }
}

fn refuse_unsupported(
    keys: &Keys<'_, '_>,
    weighing: Weighing,
    has_shared: bool,
) -> Result<(), ModelError> {
    let unsupported =
        |name: &str, feature: &str| Err(ModelError::unsupported(keys.key(name), feature));
    let gating = keys.header.u32(&keys.key("expert_gating_func"))?;
    let (computed, name) = match weighing {
        Weighing::OfChosen => (SOFTMAX_WEIGHT, "softmax over the chosen"),
        Weighing::Softmax | Weighing::Renormalized => (SOFTMAX, "softmax"),
    };
    if gating.is_some_and(|function| function != computed) {
        let feature = format!("a router other than {name}");
        return unsupported("expert_gating_func", &feature);
    }
    let norm = keys.header.bool(&keys.key("expert_weights_norm"))?;
    match (weighing, norm) {
        (Weighing::Softmax, Some(true)) => {
            let feature = "a router whose weights are renormalized";
            return unsupported("expert_weights_norm", feature);
        }
        (Weighing::Renormalized, Some(false)) => {
            let feature = "a router whose weights are not renormalized";
            return unsupported("expert_weights_norm", feature);
        }
        // A softmax adds up to 1 anyway.
        _ => {}
    }
    let scale = keys.header.f32(&keys.key("expert_weights_scale"))?;
    if scale.is_some_and(|scale| scale != 0.0 && scale != 1.0) {
        return unsupported("expert_weights_scale", "a scale of the router's weights");
    }
    if keys.count("expert_shared_count")? > u32::from(has_shared) {
        return unsupported("expert_shared_count", "so many shared experts");
    }
    if !has_shared && keys.count("expert_shared_feed_forward_length")? > 0 {
        return unsupported("expert_shared_feed_forward_length", "a shared expert");
    }
    if keys.count("expert_group_count")? > 1 {
        return unsupported("expert_group_count", "experts in groups");
    }
    for name in [
        "leading_dense_block_count",
        "moe_every_n_layers",
        "interleave_moe_layer_step",
    ] {
        if keys.count(name)? > 0 {
            return unsupported(name, "experts in some of the layers");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
