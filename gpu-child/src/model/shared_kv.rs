//! Layers that attend to keys and values of earlier ones: `attention.shared_kv_layers`.

use super::config::Keys;
use super::error::ModelError;
use super::positions::WindowedLayers;

const KEY: &str = "attention.shared_kv_layers";

/// Number of the last layers that share keys and values ([`ModelConfig::kv_layer`](super::ModelConfig::kv_layer)).
///
/// # Errors
/// If the architecture has no such layers, or a layer would attend to one of another kind.
pub(super) fn read(
    keys: &Keys<'_, '_>,
    n_layers: usize,
    windows: &WindowedLayers,
) -> Result<usize, ModelError> {
    let shared = keys.count(KEY)? as usize;
    if shared == 0 {
        return Ok(0);
    }
    if !keys.architecture.conventions().shares_kv {
        let feature = "layers with the keys and values of earlier ones";
        return Err(ModelError::unsupported(keys.key(KEY), feature));
    }
    // As llama.cpp asserts.
    let own = n_layers.checked_sub(shared).filter(|own| *own >= 2);
    let own = own.ok_or_else(|| {
        let message = format!("{shared} of {n_layers} layers leave fewer than two to share with");
        ModelError::bad_value(keys.key(KEY), message)
    })?;
    let is_far = |layer: usize| match windows.is_in(layer) {
        true => !windows.is_in(own - 2),
        false => windows.is_in(own - 1),
    };
    match (own..n_layers).find(|layer| is_far(*layer)) {
        None => Ok(shared),
        Some(layer) => {
            let feature = format!(
                "layer {layer} with keys and values of a layer that is not the last one or the one before it"
            );
            Err(ModelError::unsupported(keys.key(KEY), feature))
        }
    }
}
