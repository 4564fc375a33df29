//! Hyperparameters, read from `{arch}.*` keys and checked before anything is uploaded.
//!
//! Defaults and meanings are llama.cpp's, because its converters write these files. Unsupported features are refused by
//! name, never ignored.

use super::architecture::{Architecture, AttentionScale, QkNorms};
use super::delta_net::DeltaNetConfig;
use super::error::ModelError;
use super::experts;
use super::experts::ExpertsConfig;
use super::gguf::{GgufError, Header, Value};
use super::heads::{self, Heads};
use super::mamba::MambaConfig;
use super::positions::{Positions, WindowedLayers};
use super::recurrent::{self, RecurrentLayers};
use super::short_conv::ShortConvConfig;
use super::{layer_inputs, rope, shared_kv};
use worker_orcd_kernels::Activation;
use worker_orcd_kernels::reference::rope::Rope;

#[derive(Debug, Clone, PartialEq)]
pub struct ModelConfig {
    pub architecture: Architecture,
    /// Layers of a step.
    pub n_layers: usize,
    /// Layers behind them that predict further tokens (MTP). They are not loaded.
    pub n_mtp_layers: usize,
    pub n_embd: usize,
    /// Width of a dense feed-forward part: the largest, if layers differ. Files with experts have the key too, but mostly no
    /// such part.
    pub n_ff: usize,
    /// Widths of the dense feed-forward parts of all layers, if they differ; 0 in layers without one.
    pub ff_widths: Option<Vec<usize>>,
    /// Layers of one block: true for those with a feed-forward part, the others have a mixer. `None`: all layers have both.
    pub feed_forward_layers: Option<Vec<bool>>,
    /// `None`: the feed-forward part is dense in all layers.
    pub experts: Option<ExpertsConfig>,
    pub n_heads: usize,
    /// Heads of keys and values, and values of a head, in layers with full attention.
    pub n_kv_heads: usize,
    pub head_dim: usize,
    /// Heads of sliding-window layers, if they differ.
    pub sliding_heads: Option<Heads>,
    pub vocab_size: usize,
    pub context_length: usize,
    pub norm_eps: f32,
    /// Rotation of layers with full attention.
    pub rope: Rope,
    pub positions: Positions,
    /// Values have an RMS norm without weights over each head.
    pub normalizes_values: bool,
    /// Factor of the logits, in front of their cap.
    pub logit_scale: f32,
    /// Logits are `cap * tanh(logit / cap)`.
    pub logit_cap: Option<f32>,
    /// Factor of the attention scores: mostly `1 / sqrt(head_dim)`.
    pub attention_scale: f64,
    /// Factor of a token's embedding. In a model whose blocks' outputs have a factor, the residual stream is divided by it
    /// instead: so is this one, and `norm_eps` by its square, which leaves norms of the stream what they are.
    pub embedding_scale: f32,
    /// Activation of the feed-forward part.
    pub activation: Activation,
    /// Norms of queries and keys are over all heads of a row.
    pub has_joint_norms: bool,
    /// Each head has an attention sink: a score in its softmax without a value.
    pub has_sinks: bool,
    /// Attention's output is multiplied by the sigmoid of gates, which are projected with the queries: of each head
    /// `head_dim` queries, then as many gates.
    pub gates_attention: bool,
    /// Layers with a recurrent state in place of attention. `None`: all layers have attention.
    pub recurrent: Option<RecurrentLayers>,
    /// The last layers without keys and values of their own: [`kv_layer`](Self::kv_layer).
    pub shared_kv_layers: usize,
    /// Width of the [per-layer inputs](super::LayerInputs) of each layer, if layers have them.
    pub layer_input: Option<usize>,
}

impl ModelConfig {
    /// Heads of layers with full attention, and, if they differ, of sliding-window layers.
    pub fn heads(&self) -> impl Iterator<Item = Heads> {
        let whole = Heads {
            count: self.n_heads,
            kv_count: self.n_kv_heads,
            dim: self.head_dim,
        };
        [whole].into_iter().chain(self.sliding_heads)
    }

    /// Index of a layer's heads among [`heads`](Self::heads).
    #[must_use]
    pub fn heads_place(&self, layer: usize) -> usize {
        let has_window = self.positions.window_of(layer).is_some();
        usize::from(has_window && self.sliding_heads.is_some())
    }

    /// Heads of a layer with attention.
    #[must_use]
    pub fn heads_of(&self, layer: usize) -> Heads {
        let heads = self.heads().nth(self.heads_place(layer));
        heads.expect("heads of the layer's kind")
    }

    /// Layers in front of those that share keys and values.
    #[must_use]
    pub fn kv_layers(&self) -> usize {
        self.n_layers - self.shared_kv_layers
    }

    /// The layer with the keys and values that this layer attends to: itself, or the last of its kind that has its own. As in
    /// llama.cpp, that is the last of all layers with full attention, and the one before it with a window.
    #[must_use]
    pub fn kv_layer(&self, layer: usize) -> usize {
        let own = self.kv_layers();
        match self.positions.window_of(layer) {
            _ if layer < own => layer,
            None => own - 1,
            Some(_) => own - 2,
        }
    }

    /// Width of the dense feed-forward part of a layer.
    #[must_use]
    pub fn n_ff_of(&self, layer: usize) -> usize {
        let widths = self.ff_widths.as_ref();
        widths.map_or(self.n_ff, |widths| widths[layer])
    }

    /// Width of the projection of queries of this width, and of their gates if there are any.
    #[must_use]
    pub fn queries_width_of(&self, width: usize) -> usize {
        width * if self.gates_attention { 2 } else { 1 }
    }

    /// The experts of a layer, if the layer has them.
    #[must_use]
    pub fn experts_of(&self, layer: usize) -> Option<&ExpertsConfig> {
        let experts = self.experts.as_ref().filter(|experts| experts.is_in(layer));
        experts.filter(|_| self.has_feed_forward(layer))
    }

    #[must_use]
    pub fn has_feed_forward(&self, layer: usize) -> bool {
        let layers = self.feed_forward_layers.as_ref();
        layers.is_none_or(|layers| layers[layer])
    }

    #[must_use]
    pub fn has_mixer(&self, layer: usize) -> bool {
        self.feed_forward_layers.is_none() || !self.has_feed_forward(layer)
    }

    #[must_use]
    pub fn has_attention(&self, layer: usize) -> bool {
        self.has_mixer(layer) && !self.is_recurrent(layer)
    }

    /// Width of the dense feed-forward parts, if any layer has one.
    #[must_use]
    pub fn dense_width(&self) -> Option<usize> {
        let has_dense = |experts: &ExpertsConfig| experts.beside_dense || experts.first_layer > 0;
        let is_there = self.experts.as_ref().is_none_or(has_dense);
        is_there.then_some(self.n_ff)
    }

    /// True if the layer has a recurrent state in place of attention.
    #[must_use]
    pub fn is_recurrent(&self, layer: usize) -> bool {
        let recurrent = self.recurrent.as_ref();
        recurrent.is_some_and(|recurrent| recurrent.is_in(layer))
    }

    /// The delta nets of the recurrent layers, if that is what they have.
    #[must_use]
    pub fn delta_net(&self) -> Option<&DeltaNetConfig> {
        self.recurrent.as_ref()?.delta_net()
    }

    /// The state-space layers among the recurrent layers, if that is what they have.
    #[must_use]
    pub fn mamba(&self) -> Option<&MambaConfig> {
        self.recurrent.as_ref()?.mamba()
    }

    /// The short convolutions of the recurrent layers, if that is what they have.
    #[must_use]
    pub fn short_conv(&self) -> Option<&ShortConvConfig> {
        self.recurrent.as_ref()?.short_conv()
    }

    /// Rotations: of layers with full attention, and, if different, of sliding-window layers.
    pub fn ropes(&self) -> impl Iterator<Item = &Rope> {
        let of_windows = self.positions.window.as_ref();
        let of_windows = of_windows.and_then(|window| window.rope.as_ref());
        [&self.rope].into_iter().chain(of_windows)
    }

    /// Index of a layer's rotation among [`ropes`](Self::ropes); `None` if the layer has no rotation.
    #[must_use]
    pub fn rope_of(&self, layer: usize) -> Option<usize> {
        let has_window = self.positions.window_of(layer).is_some();
        let last = self.ropes().count() - 1;
        let place = if has_window { last } else { 0 };
        self.positions.rotates(layer).then_some(place)
    }

    /// Configuration of a file. `max_sequence_tokens`: the longest served sequence, if it is not the model's context
    /// length; long-context models choose their RoPE factors by it.
    ///
    /// # Errors
    /// If the architecture is unknown, a key is missing or invalid, or the file requires an unsupported feature.
    pub fn from_gguf(
        header: &Header<'_>,
        max_sequence_tokens: Option<u32>,
    ) -> Result<Self, ModelError> {
        let keys = Keys::new(header)?;
        keys.refuse_unsupported()?;

        let n_mtp_layers = keys.mtp_layers()?;
        let n_layers = keys.positive("block_count")?;
        let n_layers = n_layers
            .checked_sub(n_mtp_layers)
            .filter(|layers| *layers > 0)
            .ok_or_else(|| {
                let message = format!("{n_mtp_layers} of {n_layers} layers leave none");
                ModelError::bad_value(keys.key(MTP_LAYERS), message)
            })?;
        let n_embd = keys.positive("embedding_length")?;
        let FeedForwardWidths {
            largest: n_ff,
            of_layers: ff_widths,
            layers: feed_forward_layers,
        } = keys.feed_forward(n_layers)?;
        let context_length = keys.positive("context_length")?;
        let windows = WindowedLayers::read(&keys, n_layers)?;
        let norm_eps = keys.norm_eps()?;
        let feed_forward = feed_forward_layers.as_deref();
        let recurrent = recurrent::read(&keys, (n_embd, n_layers), feed_forward, norm_eps)?;
        let residual_scale = keys.factor(RESIDUAL_SCALE)?;
        let residual_eps = keys.derived(RESIDUAL_SCALE, norm_eps / residual_scale.powi(2))?;
        let heads = heads::read(&keys, n_embd, n_layers, &windows)?;
        let Heads {
            count: n_heads,
            kv_count: n_kv_heads,
            dim: head_dim,
        } = heads.full;
        let rope = rope::read(&keys, head_dim, context_length, max_sequence_tokens)?;
        let sliding_dim = heads.sliding.map_or(head_dim, |heads| heads.dim);
        Ok(Self {
            architecture: keys.architecture,
            n_layers,
            n_mtp_layers,
            n_embd,
            n_ff,
            ff_widths,
            feed_forward_layers,
            experts: experts::read(&keys, n_ff, n_layers)?,
            n_heads,
            n_kv_heads,
            head_dim,
            sliding_heads: heads.sliding,
            vocab_size: vocab_size(header)?,
            context_length,
            norm_eps: residual_eps,
            positions: Positions::read(&keys, context_length, &windows, &rope, sliding_dim)?,
            rope,
            normalizes_values: keys.architecture.conventions().normalizes_values,
            logit_scale: keys.derived(LOGIT_SCALE, 1.0 / keys.factor(LOGIT_SCALE)?)?,
            logit_cap: keys.logit_cap()?,
            attention_scale: keys.attention_scale([n_layers, n_embd, n_heads, head_dim])?,
            embedding_scale: match keys.architecture.conventions().scales_embedding {
                true => (n_embd as f32).sqrt(),
                false => {
                    let scale = keys.factor(EMBEDDING_SCALE)? / residual_scale;
                    keys.derived(EMBEDDING_SCALE, scale)?
                }
            },
            activation: keys.architecture.conventions().activation,
            has_joint_norms: keys.architecture.conventions().qk_norms == QkNorms::Joint,
            has_sinks: keys.architecture.conventions().has_sinks,
            gates_attention: keys.architecture.conventions().gates_attention,
            recurrent,
            shared_kv_layers: shared_kv::read(&keys, n_layers, &windows)?,
            layer_input: layer_inputs::read(&keys)?,
        })
    }
}

const ATTENTION_SCALE: &str = "attention.scale";
const LOGIT_SCALE: &str = "logit_scale";
const RESIDUAL_SCALE: &str = "residual_scale";
const EMBEDDING_SCALE: &str = "embedding_scale";
const MTP_LAYERS: &str = "nextn_predict_layers";

/// Size of the vocabulary: the length of the tokenizer's list, as in llama.cpp.
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

/// Widths of the dense feed-forward parts.
struct FeedForwardWidths {
    largest: usize,
    /// [`ModelConfig::ff_widths`].
    of_layers: Option<Vec<usize>>,
    /// [`ModelConfig::feed_forward_layers`].
    layers: Option<Vec<bool>>,
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

    /// Refuses unsupported features that would change the arithmetic.
    fn refuse_unsupported(&self) -> Result<(), ModelError> {
        let scales = [
            (
                ATTENTION_SCALE,
                "an attention scale other than 1/sqrt(head_dim)",
            ),
            (LOGIT_SCALE, "a logit scale"),
            (RESIDUAL_SCALE, "a residual scale"),
            (EMBEDDING_SCALE, "an embedding scale"),
        ];
        let has_scales = self.architecture.conventions().has_scales;
        let scales = scales.into_iter().filter(|_| !has_scales);
        for (name, feature) in scales.chain([
            ("attention.clamp_kqv", "clamping of Q, K and V"),
            ("attention.output_scale", "a scale of what attention gives"),
            ("attn_logit_softcapping", "soft-capped attention"),
        ]) {
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

    /// A number; 0 if the key is missing.
    pub(super) fn count(&self, name: &str) -> Result<u32, ModelError> {
        Ok(self.header.u32(&self.key(name))?.unwrap_or(0))
    }

    pub(super) fn positive(&self, name: &str) -> Result<usize, ModelError> {
        let missing = || GgufError::MissingKey(self.key(name)).into();
        self.optional_positive(name)?.ok_or_else(missing)
    }

    /// A number, or an array with one number per layer if they are all equal.
    pub(super) fn optional_positive(&self, name: &str) -> Result<Option<usize>, ModelError> {
        self.optional_equal(name, &|_| true)
    }

    /// The same; zeros of an array do not count.
    pub(super) fn optional_positive_besides_zeros(
        &self,
        name: &str,
    ) -> Result<Option<usize>, ModelError> {
        self.optional_equal(name, &|value| value != Some(0))
    }

    fn optional_equal(
        &self,
        name: &str,
        counts: &dyn Fn(Option<u64>) -> bool,
    ) -> Result<Option<usize>, ModelError> {
        let key = self.key(name);
        let value = match self.header.get(&key) {
            Some(Value::Array(array)) => {
                let mut values = array.values().filter(|value| counts(value.as_u64()));
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

    /// Widths of the dense feed-forward parts. In layers of one block, those without a width have a mixer.
    fn feed_forward(&self, n_layers: usize) -> Result<FeedForwardWidths, ModelError> {
        const NAME: &str = "feed_forward_length";
        let key = self.key(NAME);
        let conventions = self.architecture.conventions();
        let one_block = conventions.has_layers_of_one_block;
        let array = match self.header.get(&key) {
            Some(Value::Array(array)) if conventions.has_ff_widths || one_block => array,
            Some(_) if one_block => {
                return Err(ModelError::bad_value(key, "must be a list of layers"));
            }
            _ => {
                return Ok(FeedForwardWidths {
                    largest: self.positive(NAME)?,
                    of_layers: None,
                    layers: None,
                });
            }
        };
        self.check_length(NAME, array.len, n_layers)?;
        let width = |value: Value<'_>| {
            let width = value.as_u64().and_then(|width| u32::try_from(width).ok());
            let width = width.filter(|width| one_block || *width > 0);
            width
                .map(|width| width as usize)
                .ok_or_else(|| ModelError::bad_value(&key, "must be positive numbers"))
        };
        let widths = array.values().map(width).take(n_layers);
        let widths: Vec<usize> = widths.collect::<Result<_, _>>()?;
        let largest = widths.iter().max().copied().unwrap_or_default();
        if largest == 0 {
            let feature = "no layer with a feed-forward part";
            return Err(ModelError::unsupported(key, feature));
        }
        let differ = widths.iter().any(|width| *width != largest);
        let layers = widths.iter().map(|width| *width > 0);
        Ok(FeedForwardWidths {
            largest,
            layers: one_block.then(|| layers.collect()),
            of_layers: differ.then_some(widths),
        })
    }

    /// Checks the length of a list with a value for each layer. Layers that predict further tokens may follow.
    pub(super) fn check_length(
        &self,
        name: &str,
        found: usize,
        n_layers: usize,
    ) -> Result<(), ModelError> {
        if found == n_layers || found == n_layers + self.mtp_layers()? {
            return Ok(());
        }
        let message = format!("{found} entries for {n_layers} layers");
        Err(ModelError::bad_value(self.key(name), message))
    }

    /// A positive factor; 1 if the key is missing or 0, as in llama.cpp.
    fn factor(&self, name: &str) -> Result<f32, ModelError> {
        let key = self.key(name);
        let factor = match self.header.f32(&key)? {
            None | Some(0.0) => 1.0,
            Some(factor) => factor,
        };
        match factor.is_finite() && factor > 0.0 {
            true => Ok(factor),
            false => Err(ModelError::bad_value(key, format!("{factor} is no factor"))),
        }
    }

    /// A number that is computed with a factor.
    fn derived(&self, name: &str, value: f32) -> Result<f32, ModelError> {
        match value.is_finite() {
            true => Ok(value),
            false => {
                let message = format!("a factor with which {value} is computed");
                Err(ModelError::bad_value(self.key(name), message))
            }
        }
    }

    fn attention_scale(
        &self,
        [n_layers, n_embd, n_heads, head_dim]: [usize; 4],
    ) -> Result<f64, ModelError> {
        // Another one is refused where the architecture has none.
        let scale = self.header.f32(&self.key(ATTENTION_SCALE))?;
        if scale.is_some_and(|scale| scale != 0.0) {
            return self.factor(ATTENTION_SCALE).map(f64::from);
        }
        let values = match self.architecture.conventions().attention_scale {
            AttentionScale::One => return Ok(1.0),
            AttentionScale::ByWidth { layers } if layers == n_layers => n_embd / n_heads,
            AttentionScale::ByWidth { .. } | AttentionScale::ByHead => head_dim,
        };
        Ok(1.0 / (values as f64).sqrt())
    }

    /// Soft cap of the logits; 0 means none.
    fn logit_cap(&self) -> Result<Option<f32>, ModelError> {
        let key = self.key("final_logit_softcapping");
        let cap = match self.header.f32(&key)? {
            None | Some(0.0) => return Ok(None),
            Some(cap) => cap,
        };
        if !self.architecture.conventions().caps_logits {
            return Err(ModelError::unsupported(key, "soft-capped logits"));
        }
        if !(cap.is_finite() && cap > 0.0) {
            return Err(ModelError::bad_value(key, format!("{cap} is no cap")));
        }
        Ok(Some(cap))
    }

    /// Layers that predict further tokens, which `block_count` includes.
    fn mtp_layers(&self) -> Result<usize, ModelError> {
        let layers = self.count(MTP_LAYERS)? as usize;
        if layers > 0 && !self.architecture.conventions().may_have_mtp {
            let feature = "layers that predict further tokens";
            return Err(ModelError::unsupported(self.key(MTP_LAYERS), feature));
        }
        Ok(layers)
    }

    fn norm_eps(&self) -> Result<f32, ModelError> {
        let mut key = self.key("attention.layer_norm_rms_epsilon");
        let mut eps = self.header.f32(&key)?;
        if eps.is_none() && self.architecture.conventions().may_have_eps_of_layer_norms {
            key = self.key("attention.layer_norm_epsilon");
            eps = self.header.f32(&key)?;
        }
        let eps = eps.ok_or_else(|| GgufError::MissingKey(key.clone()))?;
        if eps.is_finite() && eps >= 0.0 {
            Ok(eps)
        } else {
            Err(ModelError::bad_value(key, format!("{eps} is no epsilon")))
        }
    }
}

#[cfg(test)]
mod tests;
