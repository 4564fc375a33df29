//! Soft cap: `cap * tanh(x / cap)`, as the logits of Gemma have it.

#[must_use]
pub fn softcap(cap: f32, x: &[f32]) -> Vec<f32> {
    let cap = f64::from(cap);
    x.iter()
        .map(|&x| (cap * (f64::from(x) / cap).tanh()) as f32)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_values_stay_and_large_ones_end_at_the_cap() {
        let capped = softcap(30.0, &[0.0, 1e-3, -900.0, 900.0]);
        assert_eq!([capped[0], capped[2], capped[3]], [0.0, -30.0, 30.0]);
        assert!((capped[1] - 1e-3).abs() < 1e-9);
    }
}
