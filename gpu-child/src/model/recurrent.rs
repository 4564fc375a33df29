//! Layers with a recurrent state in place of attention: which ones they are, and their recurrence.
//!
//! A model has one kind of recurrence, in any of its layers but not in all.

use super::architecture::{Conventions, Recurrence as OfArchitecture};
use super::config::Keys;
use super::delta_net::{self, DeltaNetConfig};
use super::error::ModelError;
use super::gguf::Value;
use super::heads;
use super::mamba::{self, MambaConfig};
use super::short_conv::{self, ShortConvConfig};

/// A list of flags, by layer, in place of [`EVERY`].
const LAYERS: &str = "attention.recurrent_layers";
const WINDOW: &str = "attention.sliding_window";
const EVERY: &str = "full_attention_interval";

#[derive(Debug, Clone, PartialEq)]
pub struct RecurrentLayers {
    pub recurrence: Recurrence,
    /// True for layers with the recurrence. The others have attention, or no mixer.
    pub layers: Vec<bool>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Recurrence {
    DeltaNet(DeltaNetConfig),
    ShortConv(ShortConvConfig),
    Mamba(MambaConfig),
}

impl RecurrentLayers {
    /// The recurrence in all of so many layers but the last of each group of `every`, which have attention.
    #[must_use]
    pub fn beside_attention(recurrence: Recurrence, every: usize, n_layers: usize) -> Self {
        Self {
            recurrence,
            layers: all_but_every(every, n_layers).collect(),
        }
    }

    /// True if the layer has the recurrence.
    #[must_use]
    pub fn is_in(&self, layer: usize) -> bool {
        self.layers.get(layer).copied().unwrap_or(false)
    }

    #[must_use]
    pub fn delta_net(&self) -> Option<&DeltaNetConfig> {
        match &self.recurrence {
            Recurrence::DeltaNet(net) => Some(net),
            Recurrence::ShortConv(_) | Recurrence::Mamba(_) => None,
        }
    }

    #[must_use]
    pub fn short_conv(&self) -> Option<&ShortConvConfig> {
        match &self.recurrence {
            Recurrence::ShortConv(conv) => Some(conv),
            Recurrence::DeltaNet(_) | Recurrence::Mamba(_) => None,
        }
    }

    #[must_use]
    pub fn mamba(&self) -> Option<&MambaConfig> {
        match &self.recurrence {
            Recurrence::Mamba(mamba) => Some(mamba),
            Recurrence::DeltaNet(_) | Recurrence::ShortConv(_) => None,
        }
    }
}

fn all_but_every(every: usize, n_layers: usize) -> impl Iterator<Item = bool> {
    (1..=n_layers).map(move |layer| !layer.is_multiple_of(every))
}

/// Recurrent layers of a file; `None` if it has none. `feed_forward`: layers without a mixer, if there are any. `eps`: the
/// file's epsilon of norms.
///
/// # Errors
/// If a key is missing or invalid, or requires an unsupported feature.
pub(super) fn read(
    keys: &Keys<'_, '_>,
    (n_embd, n_layers): (usize, usize),
    feed_forward: Option<&[bool]>,
    eps: f32,
) -> Result<Option<RecurrentLayers>, ModelError> {
    let Conventions { recurrence, .. } = keys.architecture.conventions();
    let (key, layers, recurrence) = match recurrence {
        OfArchitecture::None => return Ok(None),
        OfArchitecture::DeltaNet(order) => {
            let (key, layers) = listed_or_every(keys, n_layers)?;
            let net = delta_net::read(keys, order)?;
            (key, layers, Recurrence::DeltaNet(net))
        }
        OfArchitecture::ShortConv => {
            if keys.count(WINDOW)? > 0 {
                let feature = "windows beside short convolutions";
                return Err(ModelError::unsupported(keys.key(WINDOW), feature));
            }
            let layers = without_kv_heads(keys, n_layers)?;
            if !layers.contains(&true) {
                return Ok(None);
            }
            let conv = short_conv::read(keys, n_embd)?;
            (heads::KV_COUNT, layers, Recurrence::ShortConv(conv))
        }
        OfArchitecture::Mamba => {
            let layers = without_kv_heads(keys, n_layers)?;
            let layers = with_mixers(keys, layers, feed_forward)?;
            if !layers.contains(&true) {
                let feature = "no state-space layers in front of or behind attention";
                return Err(ModelError::unsupported(keys.key(heads::KV_COUNT), feature));
            }
            let mamba = mamba::read(keys, eps)?;
            (heads::KV_COUNT, layers, Recurrence::Mamba(mamba))
        }
    };
    let has_mixer = |layer: usize| feed_forward.is_none_or(|layers| !layers[layer]);
    if (0..n_layers).all(|layer| layers[layer] || !has_mixer(layer)) {
        let message = format!("none of {n_layers} layers has attention");
        return Err(ModelError::unsupported(keys.key(key), message));
    }
    Ok(Some(RecurrentLayers { recurrence, layers }))
}

/// Layers of a list of flags, or all but the last of each group of some. With the key.
fn listed_or_every(
    keys: &Keys<'_, '_>,
    n_layers: usize,
) -> Result<(&'static str, Vec<bool>), ModelError> {
    let Some(Value::Array(array)) = keys.header.get(&keys.key(LAYERS)) else {
        let every = keys.optional_positive(EVERY)?.unwrap_or(4);
        return Ok((EVERY, all_but_every(every, n_layers).collect()));
    };
    // Layers that predict further tokens follow.
    let flags = array.values().take(n_layers).map(|value| value.as_flag());
    match flags.collect::<Option<Vec<_>>>() {
        Some(flags) if flags.len() == n_layers => Ok((LAYERS, flags)),
        Some(flags) => {
            let message = format!("{} entries for {n_layers} layers", flags.len());
            Err(ModelError::bad_value(keys.key(LAYERS), message))
        }
        None => Err(ModelError::bad_value(
            keys.key(LAYERS),
            "must be a list of flags",
        )),
    }
}

/// Layers without heads of keys and values.
fn without_kv_heads(keys: &Keys<'_, '_>, n_layers: usize) -> Result<Vec<bool>, ModelError> {
    let key = keys.key(heads::KV_COUNT);
    let Some(Value::Array(array)) = keys.header.get(&key) else {
        return Ok(vec![false; n_layers]);
    };
    keys.check_length(heads::KV_COUNT, array.len, n_layers)?;
    let layers = array.values().map(|value| value.as_u64() == Some(0));
    Ok(layers.take(n_layers).collect())
}

/// Recurrent layers among those `without_heads`, of which some have a feed-forward part in place of a mixer.
fn with_mixers(
    keys: &Keys<'_, '_>,
    without_heads: Vec<bool>,
    feed_forward: Option<&[bool]>,
) -> Result<Vec<bool>, ModelError> {
    let Some(feed_forward) = feed_forward else {
        return Ok(without_heads);
    };
    let mut layers = without_heads.iter().zip(feed_forward).enumerate();
    if let Some((layer, _)) = layers.find(|(_, (without, has_ff))| !**without && **has_ff) {
        let message = format!(
            "layer {layer} has a feed-forward part, and therefore no heads of keys and values"
        );
        return Err(ModelError::bad_value(keys.key(heads::KV_COUNT), message));
    }
    let layers = without_heads.iter().zip(feed_forward);
    Ok(layers
        .map(|(without, has_ff)| *without && !has_ff)
        .collect())
}
