//! RoPE's parameters: base, rotated dimensions, and the kinds of scaling.
//!
//! The interpretation is llama.cpp's: `none`, `linear`, and per-pair factors from a tensor (llama 3's `rope_freqs`;
//! phi3's `rope_factors_short` and `_long`, selected by the served sequence length), and `yarn`, with
//! computed per-pair factors.

use super::architecture::RopeFactors;
use super::config::Keys;
use super::error::ModelError;
use super::yarn::{self, Yarn};
use worker_orcd_kernels::TensorType;
use worker_orcd_kernels::reference::rope::Rope;

pub(super) const FREQS: &str = "rope_freqs.weight";
pub(super) const FACTORS_SHORT: &str = "rope_factors_short.weight";
pub(super) const FACTORS_LONG: &str = "rope_factors_long.weight";

#[derive(PartialEq, Eq)]
enum Scaling {
    None,
    Linear,
    LongRope,
    Yarn,
}

pub(super) fn read(
    keys: &Keys<'_, '_>,
    head_dim: usize,
    context_length: usize,
    max_sequence_tokens: Option<u32>,
) -> Result<Rope, ModelError> {
    const DIMS: &str = "rope.dimension_count";
    let dims = dims(keys, DIMS, head_dim, head_dim)?;
    let scaling = scaling(keys)?;
    let original = keys.optional_positive("rope.scaling.original_context_length")?;
    let served = max_sequence_tokens.map_or(context_length, |tokens| tokens as usize);
    let original = original.unwrap_or(context_length);
    let rope = Rope {
        pairs: keys.architecture.conventions().rope_pairs,
        base: positive_f32(keys, "rope.freq_base")?.unwrap_or(10_000.0),
        dims,
        scale: if scaling == Scaling::None {
            1.0
        } else {
            scale(keys)?
        },
        factors: factors(keys, &scaling, dims, served > original)?,
        attn_factor: positive_f32(keys, "rope.scaling.attn_factor")?.unwrap_or(1.0),
    };
    let windows = keys.architecture.conventions().windows;
    match scaling {
        Scaling::Yarn if windows.is_some_and(|windows| windows.have_rotation) => {
            let key = keys.key("rope.scaling.type");
            Err(ModelError::unsupported(
                key,
                "YaRN beside windows with a rotation of their own",
            ))
        }
        Scaling::Yarn => {
            let rope = Yarn::read(keys, original)?.stretch(rope);
            if !yarn::is_a_rotation(&rope) {
                let message = "YaRN cannot make a rotation of these numbers";
                let key = keys.key("rope.scaling.type");
                return Err(ModelError::bad_value(key, message));
            }
            Ok(rope)
        }
        Scaling::None | Scaling::Linear | Scaling::LongRope => Ok(rope),
    }
}

/// Rotation of sliding-window layers, if they have their own, which is not scaled. `rope`: rotation of the other
/// layers. `head_dim`: values of a head of sliding-window layers.
pub(super) fn of_windows(
    keys: &Keys<'_, '_>,
    rope: &Rope,
    head_dim: usize,
    is_own: bool,
) -> Result<Option<Rope>, ModelError> {
    const BASE: &str = "rope.freq_base_swa";
    let base = positive_f32(keys, BASE)?;
    if is_own {
        let base = base.unwrap_or(10_000.0);
        return Ok(Some(Rope {
            base,
            dims: dims(keys, "rope.dimension_count_swa", rope.dims, head_dim)?,
            scale: 1.0,
            factors: None,
            ..rope.clone()
        }));
    }
    if base.is_some_and(|base| base != rope.base) {
        let feature = "another rotation in layers with a window";
        return Err(ModelError::unsupported(keys.key(BASE), feature));
    }
    Ok(None)
}

fn dims(
    keys: &Keys<'_, '_>,
    key: &str,
    default: usize,
    head_dim: usize,
) -> Result<usize, ModelError> {
    let dims = keys.optional_positive(key)?.unwrap_or(default);
    let full_head = keys.architecture.conventions().rotates_whole_heads;
    if dims > head_dim || !dims.is_multiple_of(2) || (full_head && dims != head_dim) {
        let message = format!("{dims} values of a head of {head_dim} cannot be rotated");
        return Err(ModelError::bad_value(keys.key(key), message));
    }
    Ok(dims)
}

fn scaling(keys: &Keys<'_, '_>) -> Result<Scaling, ModelError> {
    let key = keys.key("rope.scaling.type");
    match keys.header.str(&key)? {
        Some("none") => Ok(Scaling::None),
        None | Some("linear") => Ok(Scaling::Linear),
        Some("longrope") => Ok(Scaling::LongRope),
        Some("yarn") => Ok(Scaling::Yarn),
        Some(other) => Err(ModelError::unsupported(
            key,
            format!("RoPE scaling of type {other}"),
        )),
    }
}

/// Linear scale. `scale_linear` is the key's old name; 0 means none.
fn scale(keys: &Keys<'_, '_>) -> Result<f32, ModelError> {
    for name in ["rope.scaling.factor", "rope.scale_linear"] {
        let key = keys.key(name);
        match keys.header.f32(&key)? {
            None => {}
            Some(0.0) => return Ok(1.0),
            Some(scale) if scale.is_finite() && scale > 0.0 => return Ok(scale),
            Some(scale) => return Err(ModelError::bad_value(key, format!("{scale} is no factor"))),
        }
    }
    Ok(1.0)
}

fn factors(
    keys: &Keys<'_, '_>,
    scaling: &Scaling,
    dims: usize,
    is_long: bool,
) -> Result<Option<Vec<f32>>, ModelError> {
    let by_length = if is_long { FACTORS_LONG } else { FACTORS_SHORT };
    let conventions = keys.architecture.conventions().rope_factors;
    let name = match (conventions, scaling) {
        (None, _) => return Ok(None),
        (Some(RopeFactors::OfWholeLayers), _)
        | (Some(RopeFactors::ByScaling), Scaling::None | Scaling::Linear | Scaling::Yarn) => FREQS,
        (Some(RopeFactors::ByScaling | RopeFactors::ByLength), _) => by_length,
    };
    let Some(tensor) = keys.header.tensor(name) else {
        return match conventions {
            Some(RopeFactors::OfWholeLayers) => Err(ModelError::MissingTensor(name.to_owned())),
            _ => Ok(None),
        };
    };
    if tensor.ty != TensorType::F32 {
        let (expected, found) = ("F32", tensor.ty.name());
        return Err(ModelError::TensorType {
            tensor: name.to_owned(),
            expected,
            found,
        });
    }
    if (tensor.rows, tensor.cols) != (1, dims / 2) {
        let (expected, found) = (vec![dims / 2], vec![tensor.cols, tensor.rows]);
        return Err(ModelError::Shape {
            tensor: name.to_owned(),
            expected,
            found,
        });
    }
    let factors = tensor.to_f32().unwrap_or_default();
    if factors
        .iter()
        .any(|factor| !factor.is_finite() || *factor <= 0.0)
    {
        return Err(ModelError::bad_value(
            name,
            "a factor is not a positive number",
        ));
    }
    Ok(Some(factors))
}

fn positive_f32(keys: &Keys<'_, '_>, name: &str) -> Result<Option<f32>, ModelError> {
    let key = keys.key(name);
    match keys.header.f32(&key)? {
        Some(value) if !(value.is_finite() && value > 0.0) => Err(ModelError::bad_value(
            key,
            format!("{value} is not a positive number"),
        )),
        value => Ok(value),
    }
}
