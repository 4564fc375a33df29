//! Per-layer embeddings: `embedding_length_per_layer_input` ([`LayerInputs`](super::LayerInputs)).

use super::config::Keys;
use super::error::ModelError;

const KEY: &str = "embedding_length_per_layer_input";

/// Width of a layer's input, if layers have inputs. Zero means none.
///
/// # Errors
/// If the architecture has no such inputs, or both devices do not support the width.
pub(super) fn read(keys: &Keys<'_, '_>) -> Result<Option<usize>, ModelError> {
    let width = match keys.count(KEY)? as usize {
        0 => return Ok(None),
        width => width,
    };
    let unsupported = |feature| Err(ModelError::unsupported(keys.key(KEY), feature));
    if !keys.architecture.conventions().has_layer_inputs {
        return unsupported("embeddings for each layer");
    }
    if !width.is_multiple_of(8) {
        return unsupported("a width that is not a multiple of 8");
    }
    Ok(Some(width))
}
