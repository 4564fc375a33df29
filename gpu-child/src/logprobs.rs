//! Log probabilities of sampled tokens; [`PromptRows`] are for those of a prompt.
//!
//! A device passes its rows of raw logits to a [`Tap`], and [`logprobs`] computes from a row. Requests without log
//! probabilities cost nothing.

mod prompt;

use crate::device::{Checkpoint, Tap};
pub use prompt::{PromptPart, PromptRows};
use worker_orcd_ipc::{Drawn, DrawnLogprobs, RequestId};
use worker_orcd_sampler::logprobs;

/// Rows of a step with requested log probabilities, until their sampled tokens are known.
#[derive(Debug, Default)]
pub struct LogprobRows {
    rows: Vec<LogprobRow>,
}

#[derive(Debug)]
struct LogprobRow {
    request: RequestId,
    top: u8,
    /// The rows that the device has passed, in order: one, and further ones behind drafts.
    logits: Vec<Vec<f32>>,
}

impl LogprobRows {
    /// Rows of these requests, each with its number of most likely tokens.
    #[must_use]
    pub fn of(wanted: impl Iterator<Item = (RequestId, u8)>) -> Self {
        let row = |(request, top)| LogprobRow {
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
        RowRecorder { rows: self, inner }
    }

    /// Log probabilities of the sampled tokens with kept rows, in the order of `drawn`.
    #[must_use]
    pub fn answer(&self, drawn: &[Drawn]) -> Vec<DrawnLogprobs> {
        let mut rows: Vec<_> = self.rows.iter().map(|row| row.logits.iter()).collect();
        let of = |drawn: &Drawn| {
            let at = self.of_request(drawn.request)?;
            let logits = rows[at].next()?;
            Some(DrawnLogprobs {
                request: drawn.request,
                index: drawn.index,
                logprobs: logprobs(logits, drawn.token, self.rows[at].top),
            })
        };
        drawn.iter().filter_map(of).collect()
    }

    fn of_request(&self, request: RequestId) -> Option<usize> {
        self.rows.iter().position(|row| row.request == request)
    }
}

struct RowRecorder<'a> {
    rows: &'a mut LogprobRows,
    inner: &'a mut dyn Tap,
}

impl Tap for RowRecorder<'_> {
    fn wants(&self, request: RequestId, checkpoint: &Checkpoint) -> bool {
        let is_kept = *checkpoint == Checkpoint::Logits && self.rows.of_request(request).is_some();
        is_kept || self.inner.wants(request, checkpoint)
    }

    fn see(&mut self, request: RequestId, checkpoint: &Checkpoint, position: u32, values: &[f32]) {
        if *checkpoint == Checkpoint::Logits
            && let Some(at) = self.rows.of_request(request)
        {
            self.rows.rows[at].logits.push(values.to_vec());
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
    use worker_orcd_ipc::TokenId;
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
        let mut rows = LogprobRows::of([(RequestId(1), 1), (RequestId(3), 0)].into_iter());
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
        let unseen = LogprobRows::of([(RequestId(1), 1)].into_iter());
        assert_eq!(unseen.answer(&drawn), [], "nothing is made up");
    }
}
