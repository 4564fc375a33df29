//! Hyperparameters of short convolutions: `{arch}.shortconv.*`.
//!
//! Names and meanings are those of llama.cpp's `lfm2.cpp`.

use super::config::Keys;
use super::error::ModelError;
use worker_orcd_kernels::cpu::ConvUnit;

/// Maximum number of positions that a convolution in front of a recurrence sees.
pub(super) const MAX_KERNEL: usize = 8;

const KERNEL: &str = "shortconv.l_cache";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShortConvConfig {
    /// Positions that the convolution sees, including the present one.
    pub kernel: usize,
    /// Channels: the width of the embedding, a multiple of [`UNIT`](Self::UNIT).
    pub width: usize,
}

impl ShortConvConfig {
    /// Channels of a unit of the state.
    pub const UNIT: usize = 32;

    /// Width of everything that is projected from a row: the gates of the input, those of the output, and the input.
    #[must_use]
    pub fn projected_width(&self) -> usize {
        3 * self.width
    }

    /// Units of a layer.
    #[must_use]
    pub fn units(&self) -> usize {
        self.width / Self::UNIT
    }

    #[must_use]
    pub fn unit(&self) -> ConvUnit {
        ConvUnit {
            channels: Self::UNIT,
            kernel: self.kernel,
        }
    }
}

/// # Errors
/// If a key is missing or invalid, or requires an unsupported feature.
pub(super) fn read(keys: &Keys<'_, '_>, n_embd: usize) -> Result<ShortConvConfig, ModelError> {
    let config = ShortConvConfig {
        kernel: kernel(keys, KERNEL)?,
        width: n_embd,
    };
    if !n_embd.is_multiple_of(ShortConvConfig::UNIT) {
        let message = format!(
            "short convolutions of {n_embd} values; multiples of {} are supported",
            ShortConvConfig::UNIT
        );
        return Err(ModelError::bad_value(keys.key("embedding_length"), message));
    }
    Ok(config)
}

/// Positions that a convolution sees.
///
/// # Errors
/// If the key is missing, or the number is not supported.
pub(super) fn kernel(keys: &Keys<'_, '_>, name: &str) -> Result<usize, ModelError> {
    let kernel = keys.positive(name)?;
    if (2..=MAX_KERNEL).contains(&kernel) {
        return Ok(kernel);
    }
    let message = format!("a convolution over {kernel} positions; 2 to {MAX_KERNEL} are supported");
    Err(ModelError::bad_value(keys.key(name), message))
}
