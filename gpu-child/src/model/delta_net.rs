//! Hyperparameters of gated delta nets: `{arch}.ssm.*`.
//!
//! Names and meanings are those of llama.cpp's `qwen35.cpp` and `qwen3next.cpp`.

use super::config::Keys;
use super::error::ModelError;
use super::short_conv;
use worker_orcd_kernels::cpu::DeltaUnit;
use worker_orcd_kernels::reference::delta_net::HeadOrder;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeltaNetConfig {
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
    /// A head of keys with its heads of values.
    #[must_use]
    pub fn unit(&self) -> DeltaUnit {
        DeltaUnit {
            head_dim: self.head_dim,
            v_heads: self.v_heads / self.k_heads,
            kernel: self.kernel,
        }
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

/// # Errors
/// If a key is missing or invalid, or requires an unsupported feature.
pub(super) fn read(keys: &Keys<'_, '_>, order: HeadOrder) -> Result<DeltaNetConfig, ModelError> {
    let config = DeltaNetConfig {
        kernel: short_conv::kernel(keys, "ssm.conv_kernel")?,
        head_dim: keys.positive("ssm.state_size")?,
        k_heads: keys.positive("ssm.group_count")?,
        v_heads: keys.positive("ssm.time_step_rank")?,
        order,
    };
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
    Ok(config)
}
