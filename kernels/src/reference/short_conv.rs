//! Short convolution with gates in front of it and behind it, as LFM2 computes it: `y = c * conv(b * x)`.

/// Output of one channel: `c` times a causal convolution without an activation. `inputs` are the last products `b * x`, the
/// present one last, and `weights` are in the same order. Inputs before the first position are zero.
#[must_use]
pub fn short_conv(c: f32, inputs: &[f32], weights: &[f32]) -> f32 {
    let products = inputs.iter().rev().zip(weights.iter().rev());
    let sum: f64 = products.map(|(&x, &w)| f64::from(x) * f64::from(w)).sum();
    (f64::from(c) * sum) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_convolution_ends_at_the_present_position_and_has_no_activation() {
        assert_eq!(short_conv(3.0, &[-2.0], &[9.0, 9.0, 0.5]), -3.0);
        assert_eq!(short_conv(-1.0, &[7.0, 2.0, 3.0], &[1.0, 2.0]), -8.0);
    }
}
