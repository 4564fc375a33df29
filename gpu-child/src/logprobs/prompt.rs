//! Log probabilities of a prompt's tokens.
//!
//! The row of a position yields the log probability of the next token. A device passes a few rows at a time, and only
//! their results are kept: a prompt as long as the context never has all its rows in memory.

use crate::device::{Checkpoint, Tap};
use worker_orcd_ipc::{Logprobs, RequestId, Scored, TokenId};
use worker_orcd_sampler::logprobs;

/// The rows of a prompt in one step, with their next tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PromptPart {
    pub request: RequestId,
    /// Same as [`PromptLogprobs::top`](worker_orcd_ipc::PromptLogprobs::top).
    pub top: u8,
    /// Position of the first row; earlier rows are reported already.
    pub first: u32,
    /// The token after each row.
    pub tokens: Vec<TokenId>,
}

/// Rows of a step that yield log probabilities of prompts.
#[derive(Debug, Default)]
pub struct PromptRows {
    parts: Vec<Part>,
    not_finite: Option<RequestId>,
}

#[derive(Debug)]
struct Part {
    wanted: PromptPart,
    found: Vec<Logprobs>,
}

impl PromptRows {
    #[must_use]
    pub fn of(wanted: impl Iterator<Item = PromptPart>) -> Self {
        let part = |wanted: PromptPart| Part {
            found: Vec::with_capacity(wanted.tokens.len()),
            wanted,
        };
        Self {
            parts: wanted.map(part).collect(),
            not_finite: None,
        }
    }

    #[must_use]
    pub fn is_wanted(&self) -> bool {
        !self.parts.is_empty()
    }

    /// A tap that reads these rows, and forwards the selection of an inner tap.
    pub fn read<'a>(&'a mut self, inner: &'a mut dyn Tap) -> impl Tap + 'a {
        Reading { rows: self, inner }
    }

    /// Results of the rows.
    ///
    /// # Errors
    /// The request of a row with a non-finite number.
    pub fn answer(self) -> Result<Vec<Scored>, RequestId> {
        if let Some(request) = self.not_finite {
            return Err(request);
        }
        let scored = |part: Part| Scored {
            request: part.wanted.request,
            first: part.wanted.first,
            logprobs: part.found,
        };
        Ok(self.parts.into_iter().map(scored).collect())
    }

    fn wants(&self, request: RequestId, checkpoint: &Checkpoint) -> bool {
        let mut parts = self.parts.iter();
        *checkpoint == Checkpoint::PromptLogits && parts.any(|it| it.wanted.request == request)
    }

    fn see(&mut self, request: RequestId, position: u32, logits: &[f32]) {
        let mut parts = self.parts.iter_mut();
        let Some(part) = parts.find(|it| it.wanted.request == request) else {
            return;
        };
        // Rows ascend.
        let next = part.wanted.first as usize + part.found.len();
        let token = part.wanted.tokens.get(part.found.len());
        if let Some(token) = token.filter(|_| next == position as usize) {
            if !logits.iter().all(|value| value.is_finite()) {
                self.not_finite.get_or_insert(request);
            }
            part.found.push(logprobs(logits, *token, part.wanted.top));
        }
    }
}

struct Reading<'a> {
    rows: &'a mut PromptRows,
    inner: &'a mut dyn Tap,
}

impl Tap for Reading<'_> {
    fn wants(&self, request: RequestId, checkpoint: &Checkpoint) -> bool {
        self.rows.wants(request, checkpoint) || self.inner.wants(request, checkpoint)
    }

    fn see(&mut self, request: RequestId, checkpoint: &Checkpoint, position: u32, values: &[f32]) {
        if self.rows.wants(request, checkpoint) {
            self.rows.see(request, position, values);
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
    use crate::device::NoTap;

    const REQUEST: RequestId = RequestId(2);

    fn show(rows: &mut PromptRows, positions: std::ops::Range<u32>, spoilt: Option<u32>) {
        let mut nobody = NoTap;
        let mut tap = rows.read(&mut nobody);
        for request in [1, 2].map(RequestId) {
            for checkpoint in [Checkpoint::Logits, Checkpoint::PromptLogits] {
                for position in positions.clone() {
                    let of_position = match spoilt == Some(position) {
                        true => f32::NAN,
                        false => position as f32,
                    };
                    if tap.wants(request, &checkpoint) {
                        tap.see(request, &checkpoint, position, &[0.0, of_position]);
                    }
                }
            }
        }
    }

    fn wanted() -> PromptRows {
        let part = PromptPart {
            request: REQUEST,
            top: 1,
            first: 5,
            tokens: vec![TokenId(1), TokenId(0)],
        };
        PromptRows::of([part].into_iter())
    }

    #[test]
    fn each_row_that_is_wanted_tells_of_the_token_behind_it_as_a_drawn_one_would() {
        let mut rows = wanted();
        assert!(rows.is_wanted());
        // One that is reported already, and one without a next token of the prompt.
        show(&mut rows, 4..8, None);
        let expected = Scored {
            request: REQUEST,
            first: 5,
            logprobs: vec![
                logprobs(&[0.0, 5.0], TokenId(1), 1),
                logprobs(&[0.0, 6.0], TokenId(0), 1),
            ],
        };
        assert_eq!(rows.answer(), Ok(vec![expected]));
    }

    #[test]
    fn a_row_that_is_no_number_names_its_request_where_it_counts() {
        for (spoilt, is_fault) in [(4, false), (5, true), (6, true), (7, false)] {
            let mut rows = wanted();
            show(&mut rows, 4..8, Some(spoilt));
            assert_eq!(rows.answer().err(), is_fault.then_some(REQUEST), "{spoilt}");
        }
    }
}
