//! Position-dependent attention parameters besides RoPE's: rotated layers, sliding windows, and the temperature of
//! queries.

use super::architecture::FullEvery;
use super::config::Keys;
use super::error::ModelError;
use super::gguf::{GgufError, Value};
use super::rope;
use worker_orcd_kernels::reference::rope::Rope;

/// Position-dependent parameters, equal in all layers unless a field states otherwise.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Positions {
    /// The last of each group of this many layers has no rotation. Never zero.
    pub unrotated_every: Option<usize>,
    pub temperature: Option<Temperature>,
    pub window: Option<Window>,
}

/// Most layers have a sliding window.
#[derive(Debug, Clone, PartialEq)]
pub struct Window {
    /// Positions that a query sees, including its own.
    pub positions: usize,
    /// The last of each group of this many layers has full attention; `None`: no layer has. Never zero.
    pub full_every: Option<usize>,
    /// Rotation of sliding-window layers, if it differs from that of layers with full attention.
    pub rope: Option<Rope>,
}

/// Attention temperature scaling at long positions (Llama 4's "temperature tuning", as llama.cpp computes it in
/// `llm_graph_input_attn_temp`).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Temperature {
    pub scale: f32,
    /// Positions of the original context: queries within it are not scaled.
    pub original: usize,
}

impl Positions {
    /// Parameters of a file. `rope`: rotation of layers with full attention. `sliding_dim`: values of a head of
    /// sliding-window layers.
    ///
    /// # Errors
    /// If a key is invalid, or requires a feature that the architecture does not have.
    pub(super) fn read(
        keys: &Keys<'_, '_>,
        context_length: usize,
        windows: &WindowedLayers,
        rope: &Rope,
        sliding_dim: usize,
    ) -> Result<Self, ModelError> {
        Ok(Self {
            unrotated_every: unrotated_every(keys)?,
            temperature: temperature(keys, context_length)?,
            window: window(keys, windows, rope, sliding_dim)?,
        })
    }

    /// True if queries and keys of the layer are rotated.
    #[must_use]
    pub fn rotates(&self, layer: usize) -> bool {
        self.unrotated_every
            .is_none_or(|every| !(layer + 1).is_multiple_of(every))
    }

    /// Positions that a query of the layer sees at most, including its own; `None`: full attention.
    #[must_use]
    pub fn window_of(&self, layer: usize) -> Option<usize> {
        let window = self.window.as_ref()?;
        (!is_full(window.full_every, layer)).then_some(window.positions)
    }

    /// Factor of a query at this position.
    #[must_use]
    pub fn temperature_at(&self, position: u32) -> f32 {
        self.temperature
            .map_or(1.0, |temperature| temperature.at(position))
    }
}

impl Temperature {
    #[must_use]
    pub fn at(self, position: u32) -> f32 {
        let contexts = position as usize / self.original;
        let stretch = (contexts as f64 + 1.0).ln() * f64::from(self.scale);
        (stretch + 1.0) as f32
    }
}

const FINETUNED: &str = "rope.scaling.finetuned";

/// Granite's files have a key about the training of a rotation, and llama.cpp rotates no layer if it is false.
fn unrotated_every(keys: &Keys<'_, '_>) -> Result<Option<usize>, ModelError> {
    let conventions = keys.architecture.conventions();
    let is_trained = keys.header.bool(&keys.key(FINETUNED))?;
    if conventions.may_not_rotate && is_trained == Some(false) {
        return Ok(Some(1));
    }
    Ok(conventions.unrotated_every)
}

fn temperature(
    keys: &Keys<'_, '_>,
    context_length: usize,
) -> Result<Option<Temperature>, ModelError> {
    const SCALE: &str = "attention.temperature_scale";
    // Another model's way.
    const LENGTH: &str = "attention.temperature_length";
    if keys.count(LENGTH)? > 0 {
        let feature = "a temperature of attention from a length on";
        return Err(ModelError::unsupported(keys.key(LENGTH), feature));
    }
    let scale = match keys.header.f32(&keys.key(SCALE))? {
        None | Some(0.0) => return Ok(None),
        Some(scale) => scale,
    };
    if !keys.architecture.conventions().has_temperature {
        return Err(ModelError::unsupported(
            keys.key(SCALE),
            "a temperature of attention by position",
        ));
    }
    if !scale.is_finite() {
        return Err(ModelError::bad_value(
            keys.key(SCALE),
            format!("{scale} is no factor"),
        ));
    }
    let original = keys.optional_positive("rope.scaling.original_context_length")?;
    Ok(Some(Temperature {
        scale,
        original: original.unwrap_or(context_length),
    }))
}

const PATTERN: &str = "attention.sliding_window_pattern";

/// Layers with a window. As in llama.cpp, `attention.sliding_window` counts only for architectures with windows. It
/// ignores phi3's key (its pull request 13676), because existing files have wrong values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WindowedLayers {
    None,
    /// [`Window::full_every`].
    FullEvery(Option<usize>),
}

impl WindowedLayers {
    pub(super) fn read(keys: &Keys<'_, '_>, n_layers: usize) -> Result<Self, ModelError> {
        let Some(windows) = keys.architecture.conventions().windows else {
            return Ok(Self::None);
        };
        Ok(Self::FullEvery(match windows.full_every {
            FullEvery::Default(every) => Some(keys.optional_positive(PATTERN)?.unwrap_or(every)),
            FullEvery::Listed => listed(keys, n_layers)?,
        }))
    }

    pub(super) fn is_in(self, layer: usize) -> bool {
        match self {
            Self::None => false,
            Self::FullEvery(every) => !is_full(every, layer),
        }
    }
}

fn is_full(every: Option<usize>, layer: usize) -> bool {
    every.is_some_and(|every| (layer + 1).is_multiple_of(every))
}

/// Distance of the layers that a list marks as without a window; `None`: there is none.
fn listed(keys: &Keys<'_, '_>, n_layers: usize) -> Result<Option<usize>, ModelError> {
    let key = keys.key(PATTERN);
    let array = match keys.header.get(&key) {
        Some(Value::Array(array)) => array,
        Some(_) => return Err(ModelError::bad_value(key, "must be a list of layers")),
        None => return Err(GgufError::MissingKey(key).into()),
    };
    let flags: Option<Vec<_>> = array.values().map(|value| value.as_flag()).collect();
    let Some(flags) = flags else {
        return Err(ModelError::bad_value(key, "must be a list of flags"));
    };
    if flags.len() != n_layers {
        let message = format!("{} entries for {n_layers} layers", flags.len());
        return Err(ModelError::bad_value(key, message));
    }
    let every = flags.iter().position(|has_window| !has_window);
    let every = every.map(|first| first + 1);
    if !flags
        .into_iter()
        .eq((0..n_layers).map(|layer| !is_full(every, layer)))
    {
        let feature = "layers with full attention at unequal distances";
        return Err(ModelError::unsupported(key, feature));
    }
    Ok(every)
}

fn window(
    keys: &Keys<'_, '_>,
    windows: &WindowedLayers,
    rope: &Rope,
    sliding_dim: usize,
) -> Result<Option<Window>, ModelError> {
    let conventions = keys.architecture.conventions().windows;
    let (Some(conventions), WindowedLayers::FullEvery(full_every)) = (conventions, *windows) else {
        return Ok(None);
    };
    let positions = keys.positive("attention.sliding_window")?;
    Ok(Some(Window {
        positions,
        full_every,
        rope: rope::of_windows(keys, rope, sliding_dim, conventions.have_rotation)?,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_grow_with_each_original_context_in_front_of_them() {
        let temperature = Temperature {
            scale: 0.1,
            original: 16_384,
        };
        let at = |position| temperature.at(position);
        assert_eq!([at(0), at(16_383)], [1.0, 1.0]);
        assert!((at(16_384) - (1.0 + 0.1 * 2_f32.ln())).abs() < 1e-6);
        assert_eq!(at(16_384), at(32_767));
        assert!((at(262_143) - (1.0 + 0.1 * 16_f32.ln())).abs() < 1e-6);
    }
}
