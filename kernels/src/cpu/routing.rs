//! The choice of experts for a row, and the sum of what they say.
//!
//! Everything here is a function of one row: probabilities are added in the order of the experts,
//! weights and results in the order in which experts were chosen.

/// In place of a probability: this expert has been chosen.
const TAKEN: f32 = -1.0;

#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Choice {
    pub expert: usize,
    pub weight: f32,
}

/// Fills `chosen`, the most likely expert first; of equally likely ones the lower index. The weights
/// are the probabilities, or these divided by their sum. `logits` are lost.
///
/// Of logits that are not finite the choice is of different experts all the same, and weights are NaN.
///
/// # Panics
/// When more are to be chosen than there are.
pub fn route(logits: &mut [f32], renormalized: bool, chosen: &mut [Choice]) {
    assert!(chosen.len() <= logits.len(), "as many experts as are used");
    softmax(logits);
    for choice in chosen.iter_mut() {
        let mut best = None;
        for (expert, &probability) in logits.iter().enumerate() {
            let is_better = best.is_none_or(|best: usize| probability > logits[best]);
            if probability != TAKEN && is_better {
                best = Some(expert);
            }
        }
        let expert = best.expect("not all are taken");
        let weight = std::mem::replace(&mut logits[expert], TAKEN);
        *choice = Choice { expert, weight };
    }
    if renormalized {
        let sum: f32 = chosen.iter().map(|choice| choice.weight).sum();
        chosen.iter_mut().for_each(|choice| choice.weight /= sum);
    }
}

fn softmax(x: &mut [f32]) {
    let max = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut sum = 0.0;
    for value in x.iter_mut() {
        *value = (*value - max).exp();
        sum += *value;
    }
    x.iter_mut().for_each(|value| *value /= sum);
}

/// `out += weight * row`.
///
/// # Panics
/// When the lengths differ.
pub fn add_weighted(weight: f32, row: &[f32], out: &mut [f32]) {
    assert_eq!(row.len(), out.len(), "rows of one length");
    for (out, &value) in out.iter_mut().zip(row) {
        *out += weight * value;
    }
}

/// `1 / (1 + exp(-x))`.
#[must_use]
pub fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference::routing;
    use crate::synthetic::Noise;

    #[test]
    fn the_reference_chooses_the_same_experts() {
        let mut noise = Noise::new(3);
        for (experts, used) in [(1, 1), (2, 2), (8, 2), (60, 4), (128, 8), (512, 10)] {
            for renormalized in [false, true] {
                let logits: Vec<f32> = (0..experts).map(|_| 4.0 * noise.value()).collect();
                let mut chosen = vec![Choice::default(); used];
                route(&mut logits.clone(), renormalized, &mut chosen);
                let expected = routing::route(&logits, used, renormalized);
                for (choice, (expert, weight)) in chosen.iter().zip(expected) {
                    assert_eq!(choice.expert, expert);
                    assert!((choice.weight - weight).abs() <= 1e-6 * weight);
                }
            }
        }
    }

    #[test]
    fn of_equals_the_lower_one_is_chosen_first() {
        let mut chosen = [Choice::default(); 3];
        route(&mut [0.0, 1.0, 0.5, 1.0, 1.0], true, &mut chosen);
        assert_eq!(chosen.map(|choice| choice.expert), [1, 3, 4]);
    }

    #[test]
    fn what_is_not_finite_is_sent_to_different_experts_with_weights_that_show_it() {
        for bad in [f32::NAN, f32::INFINITY] {
            let mut chosen = [Choice::default(); 4];
            route(&mut [0.0, bad, 0.5, 1.0], true, &mut chosen);
            let mut experts = chosen.map(|choice| choice.expert);
            experts.sort_unstable();
            assert_eq!(experts, [0, 1, 2, 3]);
            assert!(chosen.iter().all(|choice| choice.weight.is_nan()), "{bad}");
        }
    }
}
