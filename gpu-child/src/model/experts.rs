//! Hyperparameters of a mixture of experts: `{arch}.expert_*`.
//!
//! The computation is llama.cpp's for these architectures (`build_moe_ffn`): top-k experts, with weights defined by the
//! architecture, even against a key. A file with a contradicting key is refused.

use super::architecture::{ChoiceBias, Experts, MIXTURE, Mixture, Shared};
use super::config::Keys;
use super::error::ModelError;
use super::gguf::GgufError;
use worker_orcd_kernels::Weighing;

/// llama.cpp's `LLAMA_MAX_EXPERTS`.
pub const MAX_EXPERTS: usize = 512;
/// `expert_gating_func`: llama.cpp's `LLAMA_EXPERT_GATING_FUNC_TYPE_SOFTMAX`.
const SOFTMAX: u32 = 1;
/// `LLAMA_EXPERT_GATING_FUNC_TYPE_SIGMOID`.
const SIGMOID: u32 = 2;
/// `LLAMA_EXPERT_GATING_FUNC_TYPE_SOFTMAX_WEIGHT`.
const SOFTMAX_WEIGHT: u32 = 3;

const FIRST_LAYER: &str = "leading_dense_block_count";

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ExpertsConfig {
    pub count: usize,
    /// Experts per token; at most `count`.
    pub used: usize,
    /// Width of an expert.
    pub n_ff: usize,
    /// Width of the shared expert, if there is one.
    pub shared_n_ff: Option<usize>,
    /// The shared expert's output is weighted by the sigmoid of a product.
    pub gates_shared: bool,
    pub weighing: Weighing,
    /// Factor of the weights.
    pub scale: f32,
    /// Each expert has a bias that only chooses.
    pub has_choice_bias: bool,
    /// The router and the experts have biases.
    pub has_biases: bool,
    /// A dense part is beside the experts ([`DenseBeside`](super::DenseBeside)).
    pub beside_dense: bool,
    /// Layers before this one have a dense part in place of experts.
    pub first_layer: usize,
}

impl ExpertsConfig {
    /// Experts in every layer, by a softmax whose weights are renormalized.
    #[must_use]
    pub const fn plain(count: usize, used: usize, n_ff: usize) -> Self {
        Self {
            count,
            used,
            n_ff,
            shared_n_ff: None,
            gates_shared: false,
            weighing: Weighing::Renormalized,
            scale: 1.0,
            has_choice_bias: false,
            has_biases: false,
            beside_dense: false,
            first_layer: 0,
        }
    }

    /// Router outputs of a row: one for each expert, and one for the gate of the shared expert.
    #[must_use]
    pub fn logits(&self) -> usize {
        self.count + usize::from(self.gates_shared)
    }

    #[must_use]
    pub fn is_in(&self, layer: usize) -> bool {
        layer >= self.first_layer
    }
}

/// Experts of a file. `n_ff`: the file's width of a dense feed-forward part.
///
/// # Errors
/// If a key is missing or invalid, or requires an unsupported feature.
pub(super) fn read(
    keys: &Keys<'_, '_>,
    n_ff: usize,
    n_layers: usize,
) -> Result<Option<ExpertsConfig>, ModelError> {
    let has_experts = keys.count("expert_count")? > 0;
    let conventions = keys.architecture.conventions().experts;
    let mixture = match conventions {
        Experts::None if has_experts => {
            let key = keys.key("expert_count");
            return Err(ModelError::unsupported(key, "a mixture of experts"));
        }
        Experts::Optional if has_experts => Mixture {
            has_dense_width: true,
            ..MIXTURE
        },
        Experts::BesideDense if has_experts => MIXTURE,
        Experts::OptionalMixture(mixture) if has_experts => mixture,
        Experts::None | Experts::Optional | Experts::OptionalMixture(_) | Experts::BesideDense => {
            return Ok(None);
        }
        Experts::Always(mixture) => mixture,
    };
    refuse_unsupported(keys, &mixture)?;
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
    let width = width(keys, &mixture, n_ff, used)?;
    let first_layer = first_layer(keys, n_layers)?;
    Ok(Some(ExpertsConfig {
        shared_n_ff: shared_width(keys, mixture.shared, n_ff, width)?,
        gates_shared: mixture.shared == Shared::Gated,
        weighing: weighing(keys, &mixture)?,
        scale: scale(keys, &mixture)?,
        has_choice_bias: match mixture.choice_bias {
            ChoiceBias::None => false,
            ChoiceBias::Optional => {
                let tensor = format!("blk.{first_layer}.{CHOICE_BIAS}");
                keys.header.tensor_info(&tensor).is_some()
            }
            ChoiceBias::Required => true,
        },
        has_biases: mixture.has_biases,
        beside_dense: conventions == Experts::BesideDense,
        first_layer,
        ..ExpertsConfig::plain(count, used, width)
    }))
}

/// The bias that only chooses, in each layer with experts.
pub(super) const CHOICE_BIAS: &str = "exp_probs_b.bias";

/// First layer with experts.
fn first_layer(keys: &Keys<'_, '_>, n_layers: usize) -> Result<usize, ModelError> {
    let first = keys.count(FIRST_LAYER)? as usize;
    if first >= n_layers {
        let message = format!("{first} of {n_layers} layers leave none with experts");
        return Err(ModelError::bad_value(keys.key(FIRST_LAYER), message));
    }
    Ok(first)
}

/// Width of an expert. llama.cpp does not read the key for `llama` and `minimax-m2`, and derives a missing one for other
/// architectures.
fn width(
    keys: &Keys<'_, '_>,
    mixture: &Mixture,
    n_ff: usize,
    used: usize,
) -> Result<usize, ModelError> {
    const KEY: &str = "expert_feed_forward_length";
    let told = keys.optional_positive(KEY)?;
    let width = match told {
        Some(width) if mixture.has_dense_width && width != n_ff => {
            let feature = "a width of experts other than feed_forward_length";
            return Err(ModelError::unsupported(keys.key(KEY), feature));
        }
        None if mixture.has_dense_width => n_ff,
        told => told.unwrap_or(n_ff / used),
    };
    match width {
        0 => Err(ModelError::bad_value(keys.key(KEY), "must not be zero")),
        width => Ok(width),
    }
}

/// Width of the shared expert. `width`: that of the others.
fn shared_width(
    keys: &Keys<'_, '_>,
    shared: Shared,
    n_ff: usize,
    width: usize,
) -> Result<Option<usize>, ModelError> {
    const KEY: &str = "expert_shared_feed_forward_length";
    const COUNT: &str = "expert_shared_count";
    let told = keys.optional_positive(KEY)?;
    match shared {
        Shared::None => Ok(None),
        Shared::Gated => Ok(Some(told.unwrap_or(n_ff))),
        Shared::Optional => Ok(told),
        Shared::OfExperts => {
            let count = keys.positive(COUNT)?;
            let all = width.checked_mul(count);
            if all.is_none() || told.is_some_and(|told| Some(told) != all) {
                let message = format!("{count} shared experts of {width} have another width");
                return Err(ModelError::bad_value(keys.key(KEY), message));
            }
            Ok(all)
        }
    }
}

fn weighing(keys: &Keys<'_, '_>, mixture: &Mixture) -> Result<Weighing, ModelError> {
    let norm = keys.header.bool(&keys.key("expert_weights_norm"))?;
    Ok(match mixture.weighing {
        Weighing::Sigmoid if mixture.has_options && norm == Some(true) => {
            Weighing::RenormalizedSigmoid
        }
        weighing => weighing,
    })
}

/// Factor of the weights; 0 means none, as in llama.cpp.
fn scale(keys: &Keys<'_, '_>, mixture: &Mixture) -> Result<f32, ModelError> {
    const KEY: &str = "expert_weights_scale";
    let scale = match keys.header.f32(&keys.key(KEY))? {
        None | Some(0.0) => 1.0,
        Some(scale) => scale,
    };
    if scale != 1.0 && !mixture.has_options {
        let feature = "a scale of the router's weights";
        return Err(ModelError::unsupported(keys.key(KEY), feature));
    }
    if !scale.is_finite() {
        let message = format!("{scale} is no factor");
        return Err(ModelError::bad_value(keys.key(KEY), message));
    }
    Ok(scale)
}

fn refuse_unsupported(keys: &Keys<'_, '_>, mixture: &Mixture) -> Result<(), ModelError> {
    let unsupported =
        |name: &str, feature: &str| Err(ModelError::unsupported(keys.key(name), feature));
    let key = keys.key("expert_gating_func");
    let gating = keys.header.u32(&key)?;
    if mixture.needs_gating && gating.is_none() {
        return Err(GgufError::MissingKey(key).into());
    }
    let (computed, name) = match mixture.weighing {
        Weighing::OfChosen => (SOFTMAX_WEIGHT, "softmax over the chosen"),
        Weighing::Softmax | Weighing::Renormalized => (SOFTMAX, "softmax"),
        Weighing::Sigmoid | Weighing::RenormalizedSigmoid => (SIGMOID, "sigmoid"),
    };
    if gating.is_some_and(|function| function != computed) {
        let feature = format!("a router other than {name}");
        return unsupported("expert_gating_func", &feature);
    }
    let norm = keys.header.bool(&keys.key("expert_weights_norm"))?;
    match (mixture.weighing, norm) {
        (Weighing::Softmax, Some(true)) => {
            let feature = "a router whose weights are renormalized";
            return unsupported("expert_weights_norm", feature);
        }
        (Weighing::Renormalized | Weighing::RenormalizedSigmoid, Some(false)) => {
            let feature = "a router whose weights are not renormalized";
            return unsupported("expert_weights_norm", feature);
        }
        // A key decides for sigmoids, and a softmax of the chosen adds up to 1 anyway.
        _ => {}
    }
    let most_shared = match mixture.shared {
        Shared::None => 0,
        Shared::Gated => 1,
        Shared::OfExperts | Shared::Optional => u32::MAX,
    };
    if keys.count("expert_shared_count")? > most_shared {
        return unsupported("expert_shared_count", "so many shared experts");
    }
    let has_shared = mixture.shared != Shared::None;
    if !has_shared && keys.count("expert_shared_feed_forward_length")? > 0 {
        return unsupported("expert_shared_feed_forward_length", "a shared expert");
    }
    if keys.count("expert_group_count")? > 1 {
        return unsupported("expert_group_count", "experts in groups");
    }
    if keys.count("moe_latent_size")? > 0 {
        return unsupported("moe_latent_size", "experts of a latent width");
    }
    // Experts in the last of each group of this many layers.
    let every = keys.count("interleave_moe_layer_step")?;
    let is_known = every == 0 || every == 1 && mixture.may_begin_dense;
    for (name, is_refused) in [
        (
            FIRST_LAYER,
            !mixture.may_begin_dense && keys.count(FIRST_LAYER)? > 0,
        ),
        ("moe_every_n_layers", keys.count("moe_every_n_layers")? > 0),
        ("interleave_moe_layer_step", !is_known),
    ] {
        if is_refused {
            return unsupported(name, "experts in some of the layers");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
