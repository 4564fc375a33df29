//! Root mean square normalization (Zhang and Sennrich, arXiv:1910.07467, equation 4):
//! `y_i = x_i / sqrt(mean(x²) + eps) * w_i`.

#[must_use]
pub fn rmsnorm(x: &[f32], weight: &[f32], eps: f32) -> Vec<f32> {
    assert_eq!(x.len(), weight.len());
    let mean = x.iter().map(|&v| f64::from(v) * f64::from(v)).sum::<f64>() / x.len() as f64;
    let inverse = 1.0 / (mean + f64::from(eps)).sqrt();
    x.iter()
        .zip(weight)
        .map(|(&x, &w)| (f64::from(x) * inverse * f64::from(w)) as f32)
        .collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_row_of_equal_values_becomes_the_weight() {
        let y = super::rmsnorm(&[3.0, 3.0, -3.0], &[1.0, 2.0, 4.0], 0.0);
        assert_eq!(y, [1.0, 2.0, -4.0]);
    }
}
