//! Selection of the experts of a row, and the weighted sum of their outputs.
//!
//! All results are functions of one row: probabilities are added in the order of the experts, weights and outputs in
//! the order of selection.

use crate::reference::routing::LEAST_SUM;
use crate::{Router, Weighing};

#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Choice {
    pub expert: usize,
    pub weight: f32,
}

/// Fills `chosen`, the most likely expert first; of equally likely ones the lower index. `logits` are overwritten.
///
/// For logits that are no numbers the chosen experts are still distinct, and weights are NaN. An infinite one is NaN in a
/// softmax, and 0 or 1 as a sigmoid.
///
/// # Panics
/// If more are to be chosen than there are, or the bias has another length.
pub fn route(logits: &mut [f32], router: &Router<'_>, chosen: &mut [Choice]) {
    assert!(chosen.len() <= logits.len(), "as many experts as are used");
    let bias = router.choice_bias.unwrap_or_default();
    assert!(bias.is_empty() || bias.len() == logits.len());
    // It may not be among the chosen.
    let has_nan = logits.iter().chain(bias).any(|it| it.is_nan());
    match router.weighing {
        Weighing::Softmax | Weighing::Renormalized => softmax(logits),
        Weighing::Sigmoid | Weighing::RenormalizedSigmoid => {
            logits.iter_mut().for_each(|it| *it = sigmoid(*it));
        }
        Weighing::OfChosen => {}
    }
    choose(logits, bias, chosen);
    match router.weighing {
        Weighing::Softmax | Weighing::Sigmoid => {}
        Weighing::Renormalized | Weighing::RenormalizedSigmoid => {
            let sum: f32 = chosen.iter().map(|choice| choice.weight).sum();
            let sum = sum.max(LEAST_SUM);
            chosen.iter_mut().for_each(|choice| choice.weight /= sum);
        }
        Weighing::OfChosen => softmax_of(chosen),
    }
    for choice in chosen {
        choice.weight = match has_nan {
            true => f32::NAN,
            false => choice.weight * router.scale,
        };
    }
}

/// The largest of `x`, with a bias added if there is one, the first of equals first, each with its value without the bias.
fn choose(x: &[f32], bias: &[f32], chosen: &mut [Choice]) {
    for n in 0..chosen.len() {
        let (before, rest) = chosen.split_at_mut(n);
        let is_taken = |expert| before.iter().any(|it| it.expert == expert);
        let mut best = None;
        for (expert, &value) in x.iter().enumerate() {
            let score = value + bias.get(expert).unwrap_or(&0.0);
            if best.is_none_or(|(_, best)| score > best) && !is_taken(expert) {
                best = Some((expert, score));
            }
        }
        let (expert, _) = best.expect("not all are taken");
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

    const OF_SOFTMAX: [Weighing; 3] = [
        Weighing::Softmax,
        Weighing::Renormalized,
        Weighing::OfChosen,
    ];
    const OF_SIGMOID: [Weighing; 2] = [Weighing::Sigmoid, Weighing::RenormalizedSigmoid];

    fn all() -> impl Iterator<Item = Weighing> {
        OF_SOFTMAX.into_iter().chain(OF_SIGMOID)
    }

    #[test]
    fn the_reference_chooses_the_same_experts() {
        let mut noise = Noise::new(3);
        for (experts, used) in [(1, 1), (2, 2), (8, 2), (60, 4), (128, 8), (512, 10)] {
            let bias: Vec<f32> = (0..experts).map(|_| noise.value()).collect();
            for (weighing, bias) in all().flat_map(|it| [(it, None), (it, Some(&*bias))]) {
                let logits: Vec<f32> = (0..experts).map(|_| 4.0 * noise.value()).collect();
                let router = Router {
                    weighing,
                    choice_bias: bias,
                    scale: if bias.is_some() { 2.5 } else { 1.0 },
                };
                let mut chosen = vec![Choice::default(); used];
                route(&mut logits.clone(), &router, &mut chosen);
                let expected = routing::route(&logits, used, &router);
                for (choice, (expert, weight)) in chosen.iter().zip(expected) {
                    assert_eq!(choice.expert, expert, "{router:?}");
                    assert!((choice.weight - weight).abs() <= 1e-6 * weight);
                }
            }
        }
    }

    #[test]
    fn of_equals_the_lower_one_is_chosen_first() {
        for weighing in all() {
            let (mut chosen, router) = ([Choice::default(); 3], Router::plain(weighing));
            route(&mut [0.0, 1.0, 0.5, 1.0, 1.0], &router, &mut chosen);
            assert_eq!(chosen.map(|choice| choice.expert), [1, 3, 4]);
        }
    }

    #[test]
    fn what_is_not_finite_is_sent_to_different_experts_with_weights_that_show_it() {
        let infinite = OF_SOFTMAX.map(|it| (f32::INFINITY, it));
        for (bad, weighing) in all().map(|it| (f32::NAN, it)).chain(infinite) {
            let (mut chosen, router) = ([Choice::default(); 4], Router::plain(weighing));
            route(&mut [0.0, bad, 0.5, 1.0], &router, &mut chosen);
            let mut experts = chosen.map(|choice| choice.expert);
            experts.sort_unstable();
            assert_eq!(experts, [0, 1, 2, 3]);
            assert!(
                chosen.iter().any(|it| it.weight.is_nan()),
                "{bad} {weighing:?}"
            );
        }
        for weighing in all() {
            for (bad, bias) in [(f32::NAN, [0.0; 4]), (1.0, [0.0, f32::NAN, 0.0, 0.0])] {
                let router = Router {
                    choice_bias: Some(&bias),
                    ..Router::plain(weighing)
                };
                let mut chosen = [Choice::default(); 2];
                route(&mut [0.0, bad, 0.5, 1.0], &router, &mut chosen);
                assert!(chosen.iter().all(|it| it.weight.is_nan()), "{weighing:?}");
            }
        }
        for weighing in OF_SIGMOID {
            let (mut chosen, router) = ([Choice::default()], Router::plain(weighing));
            route(&mut [0.0, f32::INFINITY], &router, &mut chosen);
            assert_eq!((chosen[0].expert, chosen[0].weight), (1, 1.0));
        }
    }

    /// Probabilities over all experts would be zero for all but the first.
    #[test]
    fn of_unlikely_ones_the_more_likely_is_chosen_where_only_the_chosen_are_weighed() {
        let mut chosen = [Choice::default(); 3];
        let logits = [-300.0, 0.0, -200.0, -250.0];
        let router = Router::plain(Weighing::OfChosen);
        route(&mut logits.clone(), &router, &mut chosen);
        assert_eq!(chosen.map(|choice| choice.expert), [1, 2, 3]);
    }
}
