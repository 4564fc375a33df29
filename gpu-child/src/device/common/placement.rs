//! Tensors on their way into an arena: where each goes, and whether its bytes are those of its
//! shape.

use crate::model::TensorView;
use worker_orcd_ipc::Fault;
use worker_orcd_kernels::dequantize_row;

/// Cuts one arena into pieces before it is allocated. Each starts at a multiple of `ALIGNMENT`.
#[derive(Debug, Default)]
pub struct Layout<const ALIGNMENT: u64> {
    bytes: u64,
}

impl<const ALIGNMENT: u64> Layout<ALIGNMENT> {
    /// The offset of the next `bytes`.
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
