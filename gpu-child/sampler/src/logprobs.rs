//! Log probabilities of tokens in a row of logits.
//!
//! One function on one thread computes them for every device. So they depend on the row only: not on the batch, the
//! threads, or the child that computed the row.

use worker_orcd_ipc::{Logprobs, TokenId};

/// The log-softmax of a row of finite logits, at `token` and at the `top` most likely tokens. Sums go by ascending id,
/// in f64.
///
/// # Panics
/// If the token is outside the row.
#[must_use]
pub fn logprobs(logits: &[f32], token: TokenId, top: u8) -> Logprobs {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let below_max = |logit: f32| f64::from(logit) - f64::from(max);
    let sum: f64 = logits.iter().map(|logit| below_max(*logit).exp()).sum();
    let of = |logit: f32| (below_max(logit) - sum.ln()) as f32;
    let top = most_likely(logits, usize::from(top));
    Logprobs {
        of_token: of(logits[token.index()]),
        rank: rank(logits, token),
        top: top.map(|(id, logit)| (id, of(logit))).collect(),
    }
}

/// Position of the token in the order of [`most_likely`], counted from 1.
fn rank(logits: &[f32], token: TokenId) -> u32 {
    let own = logits[token.index()];
    let larger = logits.iter().filter(|logit| **logit > own).count();
    let before = &logits[..token.index()];
    let equal = before.iter().filter(|logit| **logit == own).count();
    (larger + equal + 1) as u32
}

/// The largest logits in descending order; of equals, the lower id first.
fn most_likely(logits: &[f32], count: usize) -> impl Iterator<Item = (TokenId, f32)> {
    let mut most: Vec<(TokenId, f32)> = Vec::with_capacity(count + 1);
    for (id, &logit) in (0..).map(TokenId).zip(logits) {
        let is_full = most.len() == count;
        if is_full && most.last().is_none_or(|(_, least)| logit <= *least) {
            continue;
        }
        // Ids ascend: a later one goes after its equals.
        let place = most.partition_point(|(_, other)| *other >= logit);
        most.insert(place, (id, logit));
        most.truncate(count);
    }
    most.into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The definition, in its simplest form.
    fn simple(logits: &[f32], token: usize, top: usize) -> (f64, usize, Vec<(usize, f64)>) {
        let sum: f64 = logits.iter().map(|logit| f64::from(*logit).exp()).sum();
        let of = |id: usize| f64::from(logits[id]) - sum.ln();
        let mut ids: Vec<usize> = (0..logits.len()).collect();
        ids.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]).then(a.cmp(b)));
        let rank = ids.iter().position(|id| *id == token).unwrap() + 1;
        ids.truncate(top);
        (
            of(token),
            rank,
            ids.into_iter().map(|id| (id, of(id))).collect(),
        )
    }

    fn is_near(a: f32, b: f64) -> bool {
        (f64::from(a) - b).abs() < 1e-5
    }

    proptest! {
        #[test]
        fn it_is_the_logarithm_of_softmax_with_equals_by_id(
            // Halves, so that there are equals; +0 only.
            halves in prop::collection::vec(-20_i8..20, 1..60),
            token in any::<prop::sample::Index>(),
            top in 0_u8..=20,
        ) {
            let logits: Vec<f32> = halves.iter().map(|half| f32::from(*half) / 2.0).collect();
            let token = token.index(logits.len());
            let found = logprobs(&logits, TokenId(token as u32), top);
            let (of_token, rank, expected) = simple(&logits, token, top.into());
            prop_assert!(is_near(found.of_token, of_token));
            prop_assert_eq!(found.rank as usize, rank);
            prop_assert_eq!(found.top.len(), expected.len());
            for ((id, found), (expected_id, expected)) in found.top.iter().zip(expected) {
                prop_assert_eq!(id.index(), expected_id);
                prop_assert!(is_near(*found, expected));
            }
        }
    }

    #[test]
    fn the_largest_numbers_there_are_overflow_nowhere() {
        let found = logprobs(&[f32::MAX, f32::MIN, 0.0], TokenId(0), 3);
        assert_eq!(found.of_token, 0.0);
        assert_eq!(found.top[1], (TokenId(2), f32::MIN));
        assert_eq!(found.top[2], (TokenId(1), f32::NEG_INFINITY));
    }
}
