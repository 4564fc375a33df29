//! Hyperparameters of state-space layers (Mamba-2): `{arch}.ssm.*`.
//!
//! Names and meanings are those of llama.cpp's `mamba-base.cpp`.

use super::config::Keys;
use super::error::ModelError;
use super::short_conv;
use worker_orcd_kernels::cpu::ScanUnit;

/// Units of a layer, if its groups have enough heads.
const MOST_UNITS: usize = 8;
const MAX_STATE: usize = 256;

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MambaConfig {
    /// Positions that the convolution sees, including the present one.
    pub kernel: usize,
    /// Values of the state for each value of a head.
    pub state: usize,
    pub head_dim: usize,
    pub heads: usize,
    /// Heads of a group share what is stored under and what reads it. `heads` is a multiple.
    pub groups: usize,
    /// Epsilon of the norm of the output.
    pub eps: f32,
}

impl MambaConfig {
    /// Width of all heads.
    #[must_use]
    pub fn width(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Inputs of the convolution: `x` of all heads, then `b` and `c` of all groups.
    #[must_use]
    pub fn channels(&self) -> usize {
        self.width() + 2 * self.groups * self.state
    }

    /// Width of everything that is projected from a row: the gates of the output, the channels, and the length of a step for
    /// each head.
    #[must_use]
    pub fn projected_width(&self) -> usize {
        self.width() + self.channels() + self.heads
    }

    /// Heads of a unit, all of one group: as few as leave the layer [`MOST_UNITS`].
    #[must_use]
    pub fn unit_heads(&self) -> usize {
        let in_group = self.heads / self.groups;
        let divisors = (1..in_group).filter(|heads| in_group.is_multiple_of(*heads));
        let mut few = divisors.filter(|heads| self.heads / heads <= MOST_UNITS);
        few.next().unwrap_or(in_group)
    }

    #[must_use]
    pub fn units(&self) -> usize {
        self.heads / self.unit_heads()
    }

    #[must_use]
    pub fn unit(&self) -> ScanUnit {
        ScanUnit {
            state: self.state,
            head_dim: self.head_dim,
            heads: self.unit_heads(),
            kernel: self.kernel,
        }
    }
}

/// # Errors
/// If a key is missing or invalid, or requires an unsupported feature.
pub(super) fn read(keys: &Keys<'_, '_>, eps: f32) -> Result<MambaConfig, ModelError> {
    let inner = keys.positive("ssm.inner_size")?;
    let heads = keys.positive("ssm.time_step_rank")?;
    let config = MambaConfig {
        kernel: short_conv::kernel(keys, "ssm.conv_kernel")?,
        state: keys.positive("ssm.state_size")?,
        head_dim: inner / heads,
        heads,
        groups: keys.positive("ssm.group_count")?,
        eps,
    };
    if config.width() != inner || config.head_dim == 0 {
        let message = format!("{inner} values cannot be split over {heads} heads");
        return Err(ModelError::bad_value(keys.key("ssm.inner_size"), message));
    }
    if !heads.is_multiple_of(config.groups) {
        let message = format!("{heads} heads cannot be in {} groups", config.groups);
        return Err(ModelError::bad_value(keys.key("ssm.group_count"), message));
    }
    if !config.state.is_multiple_of(8) || config.state > MAX_STATE {
        let message = format!(
            "states of {} values; multiples of 8 up to {MAX_STATE} are supported",
            config.state
        );
        return Err(ModelError::bad_value(keys.key("ssm.state_size"), message));
    }
    Ok(config)
}
