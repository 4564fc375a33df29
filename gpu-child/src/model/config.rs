//! Hyperparameters, read from `{arch}.*` keys and checked before anything is uploaded.
//!
//! Defaults and meanings are llama.cpp's, because its converters write these files. What this
//! project does not compute is refused by name, never ignored.

use super::architecture::Architecture;
use super::error::ModelError;
use super::experts;
use super::experts::ExpertsConfig;
use super::gguf::{GgufError, Header, Value};
use super::rope;
use worker_orcd_kernels::Activation;
use worker_orcd_kernels::reference::rope::Rope;

#[derive(Debug, Clone, PartialEq)]
pub struct ModelConfig {
    pub architecture: Architecture,
    pub n_layers: usize,
    pub n_embd: usize,
    /// Width of a dense feed-forward part. Files with experts say it too, and have none.
    pub n_ff: usize,
    /// `None` where the feed-forward part is dense.
    pub experts: Option<ExpertsConfig>,
    pub n_heads: usize,
    pub n_kv_heads: usize,
    pub head_dim: usize,
    pub vocab_size: usize,
    pub context_length: usize,
    pub norm_eps: f32,
    pub rope: Rope,
    /// The activation of the feed-forward part.
    pub activation: Activation,
    /// A score of each head that takes part in its softmax and has no value.
    pub has_sinks: bool,
    pub windows: Option<Windows>,
}

/// Layers whose queries see the newest positions only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Windows {
    /// Positions that a query sees at most, itself included.
    pub tokens: usize,
    /// The last of so many layers, and of the next so many, sees everything; never zero.
    pub sees_all_every: usize,
}

impl ModelConfig {
    /// `max_sequence_tokens` is the longest sequence that will be served, when that is not the
    /// model's context length: long-context models choose their RoPE factors by it.
    ///
    /// # Errors
    /// When the architecture is unknown, a key is missing or makes no sense, or the file asks for
    /// something that is not implemented.
    pub fn from_gguf(
        header: &Header<'_>,
        max_sequence_tokens: Option<u32>,
    ) -> Result<Self, ModelError> {
        let keys = Keys::new(header)?;
        keys.refuse_unsupported()?;

        let n_layers = keys.positive("block_count")?;
        let n_embd = keys.positive("embedding_length")?;
        let n_ff = keys.positive("feed_forward_length")?;
        let n_heads = keys.positive("attention.head_count")?;
        let n_kv_heads = keys
            .optional_positive("attention.head_count_kv")?
            .unwrap_or(n_heads);
        let context_length = keys.positive("context_length")?;
        if n_heads % n_kv_heads != 0 {
            let message = format!("{n_heads} heads cannot share {n_kv_heads} of keys and values");
            return Err(ModelError::bad_value(
                keys.key("attention.head_count_kv"),
                message,
            ));
        }
        let head_dim = keys.head_dim(n_embd, n_heads)?;
        Ok(Self {
            architecture: keys.architecture,
            n_layers,
            n_embd,
            n_ff,
            experts: experts::read(&keys, n_ff)?,
            n_heads,
            n_kv_heads,
            head_dim,
            vocab_size: vocab_size(header)?,
            context_length,
            norm_eps: keys.norm_eps()?,
            rope: rope::read(&keys, head_dim, context_length, max_sequence_tokens)?,
            activation: keys.architecture.conventions().activation,
            has_sinks: keys.architecture.conventions().has_sinks,
            windows: windows(&keys)?,
        })
    }

    /// What a query of the layer sees at most, itself included; `None` is everything.
    #[must_use]
    pub fn window_of(&self, layer: usize) -> Option<usize> {
        let windows = self.windows?;
        let sees_all = (layer + 1).is_multiple_of(windows.sees_all_every);
        (!sees_all).then_some(windows.tokens)
    }
}

/// `attention.sliding_window` counts for architectures with windows alone, as for llama.cpp: of phi3 it ignores the key (its
/// pull request 13676), because files in the wild carry wrong values.
fn windows(keys: &Keys<'_, '_>) -> Result<Option<Windows>, ModelError> {
    const PATTERN: &str = "attention.sliding_window_pattern";
    const BASE: &str = "rope.freq_base_swa";
    let Some(sees_all_every) = keys.architecture.conventions().sees_all_every else {
        return Ok(None);
    };
    if keys.header.get(&keys.key(PATTERN)).is_some()
        && keys.optional_positive(PATTERN)? != Some(sees_all_every)
    {
        return Err(ModelError::unsupported(
            keys.key(PATTERN),
            format!("windows in other layers than but the last of {sees_all_every}"),
        ));
    }
    let of_windows = keys.header.f32(&keys.key(BASE))?;
    if of_windows.is_some() && of_windows != keys.header.f32(&keys.key("rope.freq_base"))? {
        return Err(ModelError::unsupported(
            keys.key(BASE),
            "another rotation in layers with a window",
        ));
    }
    Ok(Some(Windows {
        tokens: keys.positive("attention.sliding_window")?,
        sees_all_every,
    }))
}

/// The vocabulary is as long as the tokenizer's list, which llama.cpp takes for the truth too.
fn vocab_size(header: &Header<'_>) -> Result<usize, ModelError> {
    const KEY: &str = "tokenizer.ggml.tokens";
    let tokens = header
        .array(KEY)?
        .ok_or_else(|| GgufError::MissingKey(KEY.to_owned()))?;
    match tokens.len {
        0 => Err(ModelError::bad_value(KEY, "the vocabulary is empty")),
        len => Ok(len),
    }
}

/// The header, seen through one architecture's prefix.
pub(super) struct Keys<'h, 'a> {
    pub(super) header: &'h Header<'a>,
    pub(super) architecture: Architecture,
}

impl<'h, 'a> Keys<'h, 'a> {
    fn new(header: &'h Header<'a>) -> Result<Self, ModelError> {
        const KEY: &str = "general.architecture";
        let name = header
            .str(KEY)?
            .ok_or_else(|| GgufError::MissingKey(KEY.to_owned()))?;
        let architecture = Architecture::ALL
            .into_iter()
            .find(|known| known.name() == name)
            .ok_or_else(|| ModelError::UnknownArchitecture(name.to_owned()))?;
        Ok(Self {
            header,
            architecture,
        })
    }

    pub(super) fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.architecture.name())
    }

    /// Things that would change the arithmetic and are not implemented.
    fn refuse_unsupported(&self) -> Result<(), ModelError> {
        for (name, feature) in [
            (
                "attention.scale",
                "an attention scale other than 1/sqrt(head_dim)",
            ),
            ("logit_scale", "a logit scale"),
            ("residual_scale", "a residual scale"),
            ("embedding_scale", "an embedding scale"),
            ("attention.clamp_kqv", "clamping of Q, K and V"),
            ("final_logit_softcapping", "soft-capped logits"),
            ("attn_logit_softcapping", "soft-capped attention"),
        ] {
            let key = self.key(name);
            if self.header.f32(&key)?.is_some_and(|value| value != 0.0) {
                return Err(ModelError::unsupported(key, feature));
            }
        }
        let causal = self.key("attention.causal");
        if self.header.bool(&causal)? == Some(false) {
            return Err(ModelError::unsupported(
                causal,
                "attention that is not causal",
            ));
        }
        Ok(())
    }

    /// A number, zero where it is not there.
    pub(super) fn count(&self, name: &str) -> Result<u32, ModelError> {
        Ok(self.header.u32(&self.key(name))?.unwrap_or(0))
    }

    pub(super) fn positive(&self, name: &str) -> Result<usize, ModelError> {
        let missing = || GgufError::MissingKey(self.key(name)).into();
        self.optional_positive(name)?.ok_or_else(missing)
    }

    /// A number, or an array of one number a layer when they are all the same.
    pub(super) fn optional_positive(&self, name: &str) -> Result<Option<usize>, ModelError> {
        let key = self.key(name);
        let value = match self.header.get(&key) {
            Some(Value::Array(array)) => {
                let mut values = array.values();
                let first = values.next().and_then(|value| value.as_u64());
                if first.is_none() || values.any(|value| value.as_u64() != first) {
                    return Err(ModelError::unsupported(
                        key,
                        "a value that differs by layer",
                    ));
                }
                first.and_then(|value| u32::try_from(value).ok())
            }
            _ => self.header.u32(&key)?,
        };
        match value {
            Some(0) => Err(ModelError::bad_value(key, "must not be zero")),
            value => Ok(value.map(|value| value as usize)),
        }
    }

    fn head_dim(&self, n_embd: usize, n_heads: usize) -> Result<usize, ModelError> {
        let key_length = self.optional_positive("attention.key_length")?;
        let value_length = self.optional_positive("attention.value_length")?;
        let even_split = n_embd.is_multiple_of(n_heads).then(|| n_embd / n_heads);
        let head_dim = key_length.or(even_split).ok_or_else(|| {
            let message = format!("{n_embd} values cannot be split over {n_heads} heads");
            ModelError::bad_value(self.key("attention.head_count"), message)
        })?;
        if value_length.or(even_split) != Some(head_dim) {
            let key = self.key("attention.value_length");
            return Err(ModelError::unsupported(
                key,
                "values of another length than keys",
            ));
        }
        Ok(head_dim)
    }

    fn norm_eps(&self) -> Result<f32, ModelError> {
        let key = self.key("attention.layer_norm_rms_epsilon");
        let eps = self
            .header
            .f32(&key)?
            .ok_or_else(|| GgufError::MissingKey(key.clone()))?;
        if eps.is_finite() && eps >= 0.0 {
            Ok(eps)
        } else {
            Err(ModelError::bad_value(key, format!("{eps} is no epsilon")))
        }
    }
}

#[cfg(test)]
mod tests;
