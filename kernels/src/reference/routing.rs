//! Selection of the experts of a row (llama.cpp's `build_moe_ffn` with softmax): the most likely ones, and their
//! weights.

use super::softmax::softmax;

/// Definition of an expert's weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub enum Weighing {
    /// Probability among all experts.
    Softmax = 0,
    /// Probability divided by the sum over the chosen experts. llama.cpp does not divide by less than 2⁻¹⁴; the most
    /// likely of its at most 512 experts alone has at least 2⁻⁹.
    Renormalized = 1,
    /// Probability among the chosen experts (`LLAMA_EXPERT_GATING_FUNC_TYPE_SOFTMAX_WEIGHT`).
    OfChosen = 2,
}

/// Expert and weight, the most likely first; of equally likely ones the lower index.
#[must_use]
pub fn route(logits: &[f32], used: usize, weighing: Weighing) -> Vec<(usize, f32)> {
    let mut experts: Vec<(usize, f32)> = match weighing {
        Weighing::Softmax | Weighing::Renormalized => {
            softmax(logits).into_iter().enumerate().collect()
        }
        Weighing::OfChosen => logits.iter().copied().enumerate().collect(),
    };
    // A stable sort: equals stay in order.
    experts.sort_by(|(_, a), (_, b)| b.total_cmp(a));
    experts.truncate(used);
    let weights: Vec<f32> = experts.iter().map(|&(_, weight)| weight).collect();
    let weights = match weighing {
        Weighing::Softmax => weights,
        Weighing::Renormalized => {
            let sum: f64 = weights.iter().map(|&weight| f64::from(weight)).sum();
            let share = |&weight: &f32| (f64::from(weight) / sum) as f32;
            weights.iter().map(share).collect()
        }
        Weighing::OfChosen => softmax(&weights),
    };
    experts
        .iter()
        .map(|&(expert, _)| expert)
        .zip(weights)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_device_knows_it_by_the_same_number() {
        let source = include_str!("../../cuda/choice.cuh");
        for (weighing, name) in [
            (Weighing::Softmax, "SOFTMAX"),
            (Weighing::Renormalized, "RENORMALIZED"),
            (Weighing::OfChosen, "OF_CHOSEN"),
        ] {
            let line = format!("{name} = {},", weighing as i32);
            assert!(source.contains(&line), "{line}");
        }
    }

    #[test]
    fn the_likely_ones_are_chosen_and_the_lower_of_equals() {
        let logits = [1.0, 3.0, 3.0, 0.0].map(f32::ln);
        let chosen = route(&logits, 3, Weighing::Softmax);
        let expected = [(1, 3.0 / 7.0), (2, 3.0 / 7.0), (0, 1.0 / 7.0)];
        for ((expert, weight), (e, w)) in chosen.into_iter().zip(expected) {
            assert_eq!(expert, e);
            assert!((weight - w).abs() < 1e-6, "{weight}");
        }
        for weighing in [Weighing::Renormalized, Weighing::OfChosen] {
            assert_eq!(route(&logits, 2, weighing), [(1, 0.5), (2, 0.5)]);
        }
    }
}
