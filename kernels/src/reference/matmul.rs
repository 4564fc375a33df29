//! `y = W x + b` for one row of activations.

/// Product of a matrix and a row. `weight` is `[n_out, n_in]` row-major, already dequantized; sizes follow from the
/// slices.
///
/// # Panics
/// If the sizes are inconsistent.
#[must_use]
pub fn matmul(weight: &[f32], x: &[f32], bias: Option<&[f32]>) -> Vec<f32> {
    assert!(
        weight.len().is_multiple_of(x.len()),
        "weight rows of another length than x"
    );
    let rows = weight.chunks_exact(x.len());
    let dot = |row: &[f32]| {
        row.iter()
            .zip(x)
            .map(|(&w, &x)| f64::from(w) * f64::from(x))
            .sum()
    };
    rows.enumerate()
        .map(|(i, row)| {
            let sum: f64 = dot(row);
            (sum + bias.map_or(0.0, |b| f64::from(b[i]))) as f32
        })
        .collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn two_by_three() {
        let y = super::matmul(
            &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
            &[1.0, 0.5, -1.0],
            Some(&[10.0, 0.0]),
        );
        assert_eq!(y, [9.0, 0.5]);
    }
}
