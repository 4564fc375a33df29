//! `p_i = exp(x_i - max) / sum`; the maximum is subtracted to avoid an overflow.

#[must_use]
pub fn softmax(x: &[f32]) -> Vec<f32> {
    let max = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let exps: Vec<f64> = x
        .iter()
        .map(|&v| (f64::from(v) - f64::from(max)).exp())
        .collect();
    let sum: f64 = exps.iter().sum();
    exps.iter().map(|e| (e / sum) as f32).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn large_values_do_not_overflow_and_masked_ones_vanish() {
        assert_eq!(
            super::softmax(&[1000.0, 1000.0, f32::NEG_INFINITY]),
            [0.5, 0.5, 0.0]
        );
    }
}
