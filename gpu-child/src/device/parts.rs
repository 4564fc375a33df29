//! What every device makes of a model in the same way.

use crate::model::{ModelConfig, ModelWeights, RopeStyle, TensorView};
use worker_orcd_ipc::Fault;
use worker_orcd_kernels::dequantize_row;
use worker_orcd_kernels::reference::rope::{Rope, RopePairs};

/// The output is the embedding table: one matrix, kept once.
pub fn is_tied(weights: &ModelWeights<'_>) -> bool {
    weights.token_embd.data.as_ptr() == weights.output.weight.data.as_ptr()
}

/// # Errors
/// [`Fault::ModelLoad`] when a tensor's bytes are not those of its shape.
pub fn check_size(tensor: &TensorView<'_>) -> Result<(), Fault> {
    let TensorView {
        name,
        ty,
        rows,
        cols,
        data,
    } = tensor;
    let bytes = ty.row_bytes(*cols).map(|bytes| bytes * rows);
    if bytes == Some(data.len()) {
        return Ok(());
    }
    let message = format!(
        "{name}: {} bytes are no {rows} x {cols} of {}",
        data.len(),
        ty.name()
    );
    Err(Fault::ModelLoad { message })
}

/// A norm or a bias, as floats.
///
/// # Errors
/// As for [`check_size`].
pub fn values(tensor: &TensorView<'_>) -> Result<Vec<f32>, Fault> {
    check_size(tensor)?;
    let mut values = vec![0.0; tensor.rows * tensor.cols];
    dequantize_row(tensor.ty, tensor.data, &mut values);
    Ok(values)
}

pub fn rope(config: &ModelConfig) -> Rope {
    Rope {
        pairs: match config.rope_style {
            RopeStyle::Adjacent => RopePairs::Adjacent,
            RopeStyle::HalfOffset => RopePairs::HalfOffset,
        },
        dims: config.rope_dims,
        base: config.rope_base,
        scale: config.rope_scale,
        factors: config.rope_factors.clone(),
        attn_factor: config.rope_attn_factor,
    }
}
