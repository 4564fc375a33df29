//! Selection of the experts of a row (llama.cpp's `build_moe_ffn`): the most likely ones, and their weights.

use super::softmax::softmax;

/// Definition of an expert's weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub enum Weighing {
    /// Probability among all experts.
    Softmax = 0,
    /// Probability divided by the sum over the chosen experts, or by [`LEAST_SUM`].
    Renormalized = 1,
    /// Probability among the chosen experts (`LLAMA_EXPERT_GATING_FUNC_TYPE_SOFTMAX_WEIGHT`).
    OfChosen = 2,
    /// Sigmoid of the expert's own logit (`LLAMA_EXPERT_GATING_FUNC_TYPE_SIGMOID`).
    Sigmoid = 3,
    /// The same, divided by the sum over the chosen experts, or by [`LEAST_SUM`].
    RenormalizedSigmoid = 4,
}

/// Least divisor of weights, as in llama.cpp: 2⁻¹⁴. A sum of softmax probabilities is larger without a bias: the most likely
/// of at most 512 experts has at least 2⁻⁹.
pub const LEAST_SUM: f32 = 1.0 / 16384.0;

/// Computation behind a router's product.
#[derive(Debug, Clone, Copy)]
pub struct Router<'a> {
    pub weighing: Weighing,
    /// Added to the probability of each expert for the choice. Weights are without it.
    pub choice_bias: Option<&'a [f32]>,
    /// Factor of the weights.
    pub scale: f32,
}

impl Router<'_> {
    /// A router that chooses by probability.
    #[must_use]
    pub fn plain(weighing: Weighing) -> Self {
        Self {
            weighing,
            choice_bias: None,
            scale: 1.0,
        }
    }

    fn probabilities(&self, logits: &[f32]) -> Vec<f32> {
        match self.weighing {
            Weighing::Softmax | Weighing::Renormalized => softmax(logits),
            Weighing::OfChosen => logits.to_vec(),
            Weighing::Sigmoid | Weighing::RenormalizedSigmoid => {
                let sigmoid = |&x: &f32| (1.0 / (1.0 + (-f64::from(x)).exp())) as f32;
                logits.iter().map(sigmoid).collect()
            }
        }
    }

    /// Numbers whose order decides the choice.
    #[must_use]
    pub fn scores(&self, logits: &[f32]) -> Vec<f32> {
        let mut scores = self.probabilities(logits);
        if let Some(bias) = self.choice_bias {
            scores.iter_mut().zip(bias).for_each(|(x, bias)| *x += bias);
        }
        scores
    }
}

/// Expert and weight, the most likely first; of equally likely ones the lower index.
#[must_use]
pub fn route(logits: &[f32], used: usize, router: &Router<'_>) -> Vec<(usize, f32)> {
    let (probabilities, scores) = (router.probabilities(logits), router.scores(logits));
    let mut experts: Vec<usize> = (0..logits.len()).collect();
    // A stable sort: equals stay in order.
    experts.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
    experts.truncate(used);
    let weights: Vec<f32> = experts
        .iter()
        .map(|&expert| probabilities[expert])
        .collect();
    let weights = match router.weighing {
        Weighing::Softmax | Weighing::Sigmoid => weights,
        Weighing::Renormalized | Weighing::RenormalizedSigmoid => {
            let sum: f64 = weights.iter().map(|&weight| f64::from(weight)).sum();
            let sum = sum.max(f64::from(LEAST_SUM));
            let share = |&weight: &f32| (f64::from(weight) / sum) as f32;
            weights.iter().map(share).collect()
        }
        Weighing::OfChosen => softmax(&weights),
    };
    let weights = weights.into_iter().map(|weight| weight * router.scale);
    experts.into_iter().zip(weights).collect()
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
            (Weighing::Sigmoid, "SIGMOID"),
            (Weighing::RenormalizedSigmoid, "RENORMALIZED_SIGMOID"),
        ] {
            let line = format!("{name} = {},", weighing as i32);
            assert!(source.contains(&line), "{line}");
        }
        assert_eq!(LEAST_SUM, 2_f32.powi(-14));
        assert!(source.contains("LEAST_SUM = 0x1p-14f;"));
    }

    #[test]
    fn the_likely_ones_are_chosen_and_the_lower_of_equals() {
        let logits = [1.0, 3.0, 3.0, 0.0].map(f32::ln);
        let chosen = route(&logits, 3, &Router::plain(Weighing::Softmax));
        let expected = [(1, 3.0 / 7.0), (2, 3.0 / 7.0), (0, 1.0 / 7.0)];
        for ((expert, weight), (e, w)) in chosen.into_iter().zip(expected) {
            assert_eq!(expert, e);
            assert!((weight - w).abs() < 1e-6, "{weight}");
        }
        for weighing in [Weighing::Renormalized, Weighing::OfChosen] {
            let chosen = route(&logits, 2, &Router::plain(weighing));
            assert_eq!(chosen, [(1, 0.5), (2, 0.5)]);
        }
    }

    #[test]
    fn a_bias_chooses_and_weighs_nothing_and_a_scale_multiplies_weights() {
        // Sigmoids of 0.75, 0.5, 0.25 and 0.2.
        let logits = [3.0, 1.0, 1.0 / 3.0, 0.25].map(f32::ln);
        let router = |weighing| Router {
            weighing,
            choice_bias: Some(&[-0.6, 0.0, 0.2, 0.5]),
            scale: 2.0,
        };
        let close = |found: Vec<(usize, f32)>, expected: [(usize, f32); 2]| {
            for ((expert, weight), (e, w)) in found.into_iter().zip(expected) {
                assert_eq!(expert, e);
                assert!((weight - w).abs() < 1e-6, "{weight} {w}");
            }
        };
        let sigmoid = route(&logits, 2, &router(Weighing::Sigmoid));
        close(sigmoid, [(3, 0.4), (1, 1.0)]);
        let of_sum = route(&logits, 2, &router(Weighing::RenormalizedSigmoid));
        close(of_sum, [(3, 2.0 * 0.2 / 0.7), (1, 2.0 * 0.5 / 0.7)]);
        // Of unlikely ones the sum has a least value.
        let unlikely = route(
            &[-30.0; 4],
            1,
            &Router::plain(Weighing::RenormalizedSigmoid),
        );
        let expected = (-30_f32).exp() / LEAST_SUM;
        assert!((unlikely[0].1 / expected - 1.0).abs() < 1e-5);
    }
}
