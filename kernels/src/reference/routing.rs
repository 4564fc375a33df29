//! The choice of experts for a row (llama.cpp's `build_moe_ffn` with softmax): probabilities over all
//! experts, the most likely ones, and their probabilities as weights, or divided by their sum.

use super::softmax::softmax;

/// Expert and weight, the most likely first; of equally likely ones the lower index. llama.cpp does
/// not divide by less than 2⁻¹⁴; the most likely of its 512 experts at most has 2⁻⁹ alone.
#[must_use]
pub fn route(logits: &[f32], used: usize, renormalized: bool) -> Vec<(usize, f32)> {
    let mut experts: Vec<(usize, f32)> = softmax(logits).into_iter().enumerate().collect();
    // A stable sort: what is equal stays in order.
    experts.sort_by(|(_, a), (_, b)| b.total_cmp(a));
    experts.truncate(used);
    if renormalized {
        let sum: f64 = experts.iter().map(|&(_, weight)| f64::from(weight)).sum();
        for (_, weight) in &mut experts {
            *weight = (f64::from(*weight) / sum) as f32;
        }
    }
    experts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_likely_ones_are_chosen_and_the_lower_of_equals() {
        let logits = [1.0, 3.0, 3.0, 0.0].map(f32::ln);
        let chosen = route(&logits, 3, false);
        let expected = [(1, 3.0 / 7.0), (2, 3.0 / 7.0), (0, 1.0 / 7.0)];
        for ((expert, weight), (e, w)) in chosen.into_iter().zip(expected) {
            assert_eq!(expert, e);
            assert!((weight - w).abs() < 1e-6, "{weight}");
        }
        assert_eq!(route(&logits, 2, true), [(1, 0.5), (2, 0.5)]);
    }
}
