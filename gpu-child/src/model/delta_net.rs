//! Hyperparameters of gated delta nets: `{arch}.ssm.*`, and which layers have one.
//!
//! Names and meanings are those of llama.cpp's `qwen35.cpp` and `qwen3next.cpp`.

use super::config::Keys;
use super::error::ModelError;
use super::gguf::Value;
use worker_orcd_kernels::reference::delta_net::HeadOrder;

/// Maximum number of positions that the convolution sees.
const MAX_KERNEL: usize = 8;
/// A list of flags, by layer, in place of [`EVERY`].
const LAYERS: &str = "attention.recurrent_layers";
const EVERY: &str = "full_attention_interval";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeltaNetConfig {
    /// The last of each group of this many layers has attention, the others have a delta net. Never zero.
    pub attention_every: usize,
    /// Positions that the convolution sees, including the present one.
    pub kernel: usize,
    /// Length of a head's query, key and value.
    pub head_dim: usize,
    /// Heads of queries and keys.
    pub k_heads: usize,
    /// Heads of values: a multiple of `k_heads`.
    pub v_heads: usize,
    pub order: HeadOrder,
}

impl DeltaNetConfig {
    /// True if the layer has a delta net.
    #[must_use]
    pub fn is_in(&self, layer: usize) -> bool {
        !(layer + 1).is_multiple_of(self.attention_every)
    }

    /// Width of all queries, and of all keys.
    #[must_use]
    pub fn k_width(&self) -> usize {
        self.k_heads * self.head_dim
    }

    /// Width of all values.
    #[must_use]
    pub fn v_width(&self) -> usize {
        self.v_heads * self.head_dim
    }

    /// Inputs of the convolution: queries, keys and values.
    #[must_use]
    pub fn channels(&self) -> usize {
        2 * self.k_width() + self.v_width()
    }

    /// Place of a head's strength among the strengths and decays of a row, and that of its decay.
    #[must_use]
    pub fn strength_and_decay(&self, v_head: usize) -> (usize, usize) {
        match self.order {
            HeadOrder::Tiled => (v_head, self.v_heads + v_head),
            HeadOrder::Grouped => {
                let each = self.v_heads / self.k_heads;
                let strength = v_head / each * 2 * each + v_head % each;
                (strength, strength + each)
            }
        }
    }

    /// Width of everything that is projected from a row: the channels, the gates of the output, and a strength and a
    /// decay for each head of values.
    #[must_use]
    pub fn projected_width(&self) -> usize {
        self.channels() + self.v_width() + 2 * self.v_heads
    }
}

/// Delta nets of a file; `None` if the architecture has none.
///
/// # Errors
/// If a key is missing or invalid, or requires an unsupported feature.
pub(super) fn read(
    keys: &Keys<'_, '_>,
    n_layers: usize,
) -> Result<Option<DeltaNetConfig>, ModelError> {
    let Some(order) = keys.architecture.conventions().delta_net else {
        return Ok(None);
    };
    let config = DeltaNetConfig {
        attention_every: attention_every(keys, n_layers)?,
        kernel: keys.positive("ssm.conv_kernel")?,
        head_dim: keys.positive("ssm.state_size")?,
        k_heads: keys.positive("ssm.group_count")?,
        v_heads: keys.positive("ssm.time_step_rank")?,
        order,
    };
    if !(2..=MAX_KERNEL).contains(&config.kernel) {
        let message = format!(
            "a convolution over {} positions; 2 to {MAX_KERNEL} are supported",
            config.kernel
        );
        return Err(ModelError::bad_value(keys.key("ssm.conv_kernel"), message));
    }
    if !config.v_heads.is_multiple_of(config.k_heads) {
        let message = format!(
            "{} heads of values cannot share {} of keys",
            config.v_heads, config.k_heads
        );
        return Err(ModelError::bad_value(
            keys.key("ssm.time_step_rank"),
            message,
        ));
    }
    if !config.head_dim.is_multiple_of(8) || config.head_dim > 256 {
        let message = format!(
            "heads of {} values; multiples of 8 up to 256 are supported",
            config.head_dim
        );
        return Err(ModelError::bad_value(keys.key("ssm.state_size"), message));
    }
    let inner = keys.positive("ssm.inner_size")?;
    if inner != config.v_width() {
        let message = format!(
            "{inner} is not the width of {} heads of {}",
            config.v_heads, config.head_dim
        );
        return Err(ModelError::bad_value(keys.key("ssm.inner_size"), message));
    }
    Ok(Some(config))
}

/// Reads which layers have attention.
fn attention_every(keys: &Keys<'_, '_>, n_layers: usize) -> Result<usize, ModelError> {
    let (key, every) = match keys.header.get(&keys.key(LAYERS)) {
        Some(Value::Array(array)) => {
            // Layers that predict further tokens follow.
            let flags = array.values().take(n_layers).map(|value| value.as_flag());
            let Some(flags) = flags.collect::<Option<Vec<_>>>() else {
                return Err(ModelError::bad_value(
                    keys.key(LAYERS),
                    "must be a list of flags",
                ));
            };
            let first = flags.iter().position(|is_recurrent| !is_recurrent);
            let every = first.map_or(n_layers + 1, |first| first + 1);
            let expected = (1..=n_layers).map(|layer| !layer.is_multiple_of(every));
            if !flags.into_iter().eq(expected) {
                let feature = "layers with attention at unequal distances";
                return Err(ModelError::unsupported(keys.key(LAYERS), feature));
            }
            (LAYERS, every)
        }
        _ => (EVERY, keys.optional_positive(EVERY)?.unwrap_or(4)),
    };
    if every > n_layers {
        let message = format!("none of {n_layers} layers has attention");
        return Err(ModelError::unsupported(keys.key(key), message));
    }
    Ok(every)
}
