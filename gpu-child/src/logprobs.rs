//! Log probabilities of sampled tokens; [`PromptRows`] are for those of a prompt.
//!
//! One function on one thread computes them from a row of raw logits, for every device. So they depend on that row
//! only: not on the batch, the threads, or the child that computed the row. A device passes its rows to a [`Tap`], and
//! requests without log probabilities cost nothing.

mod prompt;

use crate::device::{Checkpoint, Tap};
pub use prompt::{PromptRows, WantedPart};
use worker_orcd_ipc::{Drawn, DrawnLogprobs, Logprobs, RequestId, TokenId};

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
        top: top.map(|(id, logit)| (id, of(logit))).collect(),
    }
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

/// Rows of a step with requested log probabilities, until their sampled tokens are known.
#[derive(Debug, Default)]
pub struct WantedRows {
    rows: Vec<WantedRow>,
}

#[derive(Debug)]
struct WantedRow {
    request: RequestId,
    top: u8,
    /// Empty until the device has passed the row.
    logits: Vec<f32>,
}

impl WantedRows {
    /// Rows of these requests, each with its number of most likely tokens.
    #[must_use]
    pub fn of(wanted: impl Iterator<Item = (RequestId, u8)>) -> Self {
        let row = |(request, top)| WantedRow {
            request,
            top,
            logits: Vec::new(),
        };
        Self {
            rows: wanted.map(row).collect(),
        }
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// A tap that keeps these rows, and forwards the selection of an inner tap.
    pub fn keep<'a>(&'a mut self, inner: &'a mut dyn Tap) -> impl Tap + 'a {
        Keeping { rows: self, inner }
    }

    /// Log probabilities of the sampled tokens with kept rows, in the order of `drawn`.
    #[must_use]
    pub fn answer(&self, drawn: &[Drawn]) -> Vec<DrawnLogprobs> {
        let of = |drawn: &Drawn| {
            let is_it = |row: &&WantedRow| row.request == drawn.request && !row.logits.is_empty();
            let row = self.rows.iter().find(is_it)?;
            Some(DrawnLogprobs {
                request: drawn.request,
                index: drawn.index,
                logprobs: logprobs(&row.logits, drawn.token, row.top),
            })
        };
        drawn.iter().filter_map(of).collect()
    }

    fn of_request(&self, request: RequestId) -> Option<usize> {
        self.rows.iter().position(|row| row.request == request)
    }
}

struct Keeping<'a> {
    rows: &'a mut WantedRows,
    inner: &'a mut dyn Tap,
}

impl Tap for Keeping<'_> {
    fn wants(&self, request: RequestId, checkpoint: &Checkpoint) -> bool {
        let is_kept = *checkpoint == Checkpoint::Logits && self.rows.of_request(request).is_some();
        is_kept || self.inner.wants(request, checkpoint)
    }

    fn see(&mut self, request: RequestId, checkpoint: &Checkpoint, position: u32, values: &[f32]) {
        if *checkpoint == Checkpoint::Logits
            && let Some(at) = self.rows.of_request(request)
        {
            self.rows.rows[at].logits = values.to_vec();
        }
        if self.inner.wants(request, checkpoint) {
            self.inner.see(request, checkpoint, position, values);
        }
    }

    fn reached(&mut self, checkpoint: &Checkpoint) {
        self.inner.reached(checkpoint);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The definition, in its simplest form.
    fn simple(logits: &[f32], token: usize, top: usize) -> (f64, Vec<(usize, f64)>) {
        let sum: f64 = logits.iter().map(|logit| f64::from(*logit).exp()).sum();
        let of = |id: usize| f64::from(logits[id]) - sum.ln();
        let mut ids: Vec<usize> = (0..logits.len()).collect();
        ids.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]).then(a.cmp(b)));
        ids.truncate(top);
        (of(token), ids.into_iter().map(|id| (id, of(id))).collect())
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
            let (of_token, expected) = simple(&logits, token, top.into());
            prop_assert!(is_near(found.of_token, of_token));
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

    #[test]
    fn only_rows_that_are_wanted_are_kept_and_told_of_what_was_drawn() {
        struct Counter(u32);
        impl Tap for Counter {
            fn wants(&self, _: RequestId, checkpoint: &Checkpoint) -> bool {
                *checkpoint == Checkpoint::Embedding
            }
            fn see(&mut self, _: RequestId, _: &Checkpoint, _: u32, _: &[f32]) {
                self.0 += 1;
            }
        }
        let mut inner = Counter(0);
        let mut rows = WantedRows::of([(RequestId(1), 1), (RequestId(3), 0)].into_iter());
        let mut tap = rows.keep(&mut inner);
        for request in [1, 2, 3].map(RequestId) {
            for checkpoint in [Checkpoint::Embedding, Checkpoint::Logits] {
                if tap.wants(request, &checkpoint) {
                    tap.see(request, &checkpoint, 7, &[0.0, request.0 as f32]);
                }
            }
        }
        drop(tap);
        assert_eq!(inner.0, 3, "it sees what it wants and nothing else");
        let drawn = [1, 2, 3].map(|request| Drawn {
            request: RequestId(request),
            index: 5,
            token: TokenId(0),
        });
        let told = rows.answer(&drawn);
        let whose: Vec<_> = told.iter().map(|it| (it.request.0, it.index)).collect();
        assert_eq!(whose, [(1, 5), (3, 5)]);
        assert_eq!(told[0].logprobs, logprobs(&[0.0, 1.0], TokenId(0), 1));
        assert_eq!(told[1].logprobs.top, []);
        let unseen = WantedRows::of([(RequestId(1), 1)].into_iter());
        assert_eq!(unseen.answer(&drawn), [], "nothing is made up");
    }
}
