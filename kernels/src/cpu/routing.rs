//! Selection of the experts of a row, and the weighted sum of their outputs.
//!
//! All results are functions of one row: probabilities are added in the order of the experts, weights and outputs in
//! the order of selection.

use crate::Weighing;

#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Choice {
    pub expert: usize,
    pub weight: f32,
}

/// Fills `chosen`, the most likely expert first; of equally likely ones the lower index. `logits` are overwritten.
///
/// For non-finite logits the chosen experts are still distinct, and weights are NaN.
///
/// # Panics
/// If more are to be chosen than there are.
pub fn route(logits: &mut [f32], weighing: Weighing, chosen: &mut [Choice]) {
    assert!(chosen.len() <= logits.len(), "as many experts as are used");
    match weighing {
        Weighing::Softmax => {
            softmax(logits);
            choose(logits, chosen);
        }
        Weighing::Renormalized => {
            softmax(logits);
            choose(logits, chosen);
            let sum: f32 = chosen.iter().map(|choice| choice.weight).sum();
            chosen.iter_mut().for_each(|choice| choice.weight /= sum);
        }
        Weighing::OfChosen => {
            let has_nan = logits.iter().any(|logit| logit.is_nan());
            choose(logits, chosen);
            softmax_of(chosen);
            if has_nan {
                // It may not be among the chosen.
                chosen.iter_mut().for_each(|it| it.weight = f32::NAN);
            }
        }
    }
}

/// The largest of `x`, the first of equals first, each with its value.
fn choose(x: &[f32], chosen: &mut [Choice]) {
    for n in 0..chosen.len() {
        let (before, rest) = chosen.split_at_mut(n);
        let is_taken = |expert| before.iter().any(|it| it.expert == expert);
        let mut best = None;
        for (expert, &value) in x.iter().enumerate() {
            if best.is_none_or(|best: usize| value > x[best]) && !is_taken(expert) {
                best = Some(expert);
            }
        }
        let expert = best.expect("not all are taken");
        let weight = x[expert];
        rest[0] = Choice { expert, weight };
    }
}

fn softmax_of(chosen: &mut [Choice]) {
    let max = chosen.iter().map(|it| it.weight);
    let max = max.fold(f32::NEG_INFINITY, f32::max);
    let mut sum = 0.0;
    for choice in chosen.iter_mut() {
        choice.weight = (choice.weight - max).exp();
        sum += choice.weight;
    }
    chosen.iter_mut().for_each(|it| it.weight /= sum);
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
/// If the lengths differ.
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

    const ALL: [Weighing; 3] = [
        Weighing::Softmax,
        Weighing::Renormalized,
        Weighing::OfChosen,
    ];

    #[test]
    fn the_reference_chooses_the_same_experts() {
        let mut noise = Noise::new(3);
        for (experts, used) in [(1, 1), (2, 2), (8, 2), (60, 4), (128, 8), (512, 10)] {
            for weighing in ALL {
                let logits: Vec<f32> = (0..experts).map(|_| 4.0 * noise.value()).collect();
                let mut chosen = vec![Choice::default(); used];
                route(&mut logits.clone(), weighing, &mut chosen);
                let expected = routing::route(&logits, used, weighing);
                for (choice, (expert, weight)) in chosen.iter().zip(expected) {
                    assert_eq!(choice.expert, expert);
                    assert!((choice.weight - weight).abs() <= 1e-6 * weight);
                }
            }
        }
    }

    #[test]
    fn of_equals_the_lower_one_is_chosen_first() {
        for weighing in ALL {
            let mut chosen = [Choice::default(); 3];
            route(&mut [0.0, 1.0, 0.5, 1.0, 1.0], weighing, &mut chosen);
            assert_eq!(chosen.map(|choice| choice.expert), [1, 3, 4]);
        }
    }

    #[test]
    fn what_is_not_finite_is_sent_to_different_experts_with_weights_that_show_it() {
        for (bad, weighing) in ALL
            .map(|it| [(f32::NAN, it), (f32::INFINITY, it)])
            .as_flattened()
        {
            let mut chosen = [Choice::default(); 4];
            route(&mut [0.0, *bad, 0.5, 1.0], *weighing, &mut chosen);
            let mut experts = chosen.map(|choice| choice.expert);
            experts.sort_unstable();
            assert_eq!(experts, [0, 1, 2, 3]);
            assert!(
                chosen.iter().any(|it| it.weight.is_nan()),
                "{bad} {weighing:?}"
            );
        }
        for weighing in ALL {
            let mut chosen = [Choice::default(); 2];
            route(&mut [0.0, f32::NAN, 0.5, 1.0], weighing, &mut chosen);
            assert!(chosen.iter().all(|it| it.weight.is_nan()), "{weighing:?}");
        }
    }

    /// Probabilities over all experts would be zero for all but the first.
    #[test]
    fn of_unlikely_ones_the_more_likely_is_chosen_where_only_the_chosen_are_weighed() {
        let mut chosen = [Choice::default(); 3];
        let logits = [-300.0, 0.0, -200.0, -250.0];
        route(&mut logits.clone(), Weighing::OfChosen, &mut chosen);
        assert_eq!(chosen.map(|choice| choice.expert), [1, 2, 3]);
    }
}
