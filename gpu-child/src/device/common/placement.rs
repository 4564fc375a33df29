//! Placement of tensors in an arena, and checks of their sizes.

use crate::model::TensorView;
use worker_orcd_ipc::Fault;
use worker_orcd_kernels::dequantize_row;

/// Layout of one arena before its allocation. Each piece starts at a multiple of `ALIGNMENT`.
#[derive(Debug, Default)]
pub struct Layout<const ALIGNMENT: u64> {
    bytes: u64,
}

impl<const ALIGNMENT: u64> Layout<ALIGNMENT> {
    /// Offset of the next `bytes`.
    pub fn place(&mut self, bytes: u64) -> u64 {
        let offset = self.bytes;
        self.bytes = (offset + bytes).next_multiple_of(ALIGNMENT);
        offset
    }

    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// Checks a tensor's bytes against its shape.
///
/// # Errors
/// [`Fault::ModelLoad`] if they differ.
pub fn check_size(tensor: &TensorView<'_>) -> Result<(), Fault> {
    let TensorView {
        name,
        ty,
        rows,
        cols,
        data,
        runs,
    } = tensor;
    let bytes = ty.row_bytes(*cols).map(|bytes| match runs {
        None => bytes * rows,
        Some(runs) => (rows / runs.rows - 1) * runs.stride + bytes * runs.rows,
    });
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
/// Those of [`check_size`].
pub fn values(tensor: &TensorView<'_>) -> Result<Vec<f32>, Fault> {
    check_size(tensor)?;
    let mut values = vec![0.0; tensor.rows * tensor.cols];
    dequantize_row(tensor.ty, tensor.data, &mut values);
    Ok(values)
}
