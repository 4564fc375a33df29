//! A sequence in a step: its rows, and the source of its next token: a sample that is decided once the step is
//! launched, or a token forced by its grammar.

use super::Sequence;
use crate::device::{PageId, SampleWork, SequenceWork, TO_BE_DRAWN};
use crate::kv_pages::KvPages;
use crate::scheduler::Limits;
use worker_orcd_grammar::{GrammarError, Mask};
use worker_orcd_ipc::{Drawn, TokenId};

/// Maximum forced tokens before the next mask request, and of their rows in a step.
pub(in crate::scheduler) const MOST_FORCED: usize = 16;

impl Sequence {
    /// The next `tokens` pending tokens, in the device's terms. The newest token is a sampling row even if its
    /// successor is known: a step of such rows alone is the fastest.
    pub(in crate::scheduler) fn work(&self, tokens: usize) -> SequenceWork<'_> {
        let end = self.computed + tokens;
        let draws = self.may_draw(tokens);
        let sample = draws.then(|| self.sample(end - self.prompt_len));
        SequenceWork {
            request: self.request,
            tokens: &self.tokens[self.computed..end],
            first_position: self.computed as u32,
            pages: self.table.pages(),
            sample,
        }
    }

    fn may_draw(&self, tokens: usize) -> bool {
        let is_newest = self.decodes && tokens == 1;
        self.is_continued() && (is_newest || tokens == self.pending())
    }

    /// Sampling parameters of the token after the first `index` generated ones.
    pub(in crate::scheduler) fn sample(&self, index: usize) -> SampleWork<'_> {
        SampleWork {
            sampling: self.params.sampling,
            prompt: &self.tokens[..self.prompt_len],
            generated: &self.tokens[self.prompt_len..][..index],
            allowed: self.allowed(index),
            bias: &self.params.logit_bias,
        }
    }

    /// Mask of the token after the first `index` generated ones, if not all tokens are allowed.
    fn allowed(&self, index: usize) -> Option<&[u32]> {
        let held = match (&self.rules, self.constraint.is_grammar()) {
            (Some(rules), false) => rules.mask(index),
            _ => self.constraint.allowed(),
        };
        match &self.thoughts {
            Some(thoughts) => thoughts.allowed(held),
            None => held,
        }
    }

    /// The grammar's mask of the next token, within the rules of the request.
    pub(in crate::scheduler) fn narrow(&self, mask: Mask) -> Result<Mask, GrammarError> {
        let Some(rules) = &self.rules else {
            return Ok(mask);
        };
        let none = || GrammarError::new("it allows none of allowed_token_ids");
        rules.narrow(mask, self.generated().len()).ok_or_else(none)
    }

    /// Records the launch of a step with `tokens` further tokens, up to its sampling. Returns whether it may sample,
    /// and the index of the sampled token among all generated ones, if it samples.
    pub(in crate::scheduler) fn launch(
        &mut self,
        tokens: usize,
        cache: &KvPages,
    ) -> (bool, Option<u32>) {
        debug_assert!(
            self.writes(tokens, cache)
                .all(|page| page.is_some_and(|page| cache.is_private(page))),
            "a page was written that is shared, or not there"
        );
        let may_draw = self.may_draw(tokens);
        let draws = tokens == self.pending() && self.is_continued();
        self.computed += tokens;
        let index = draws.then(|| {
            let index = self.tokens.len() - self.prompt_len;
            self.decodes = true;
            self.is_open = self.constraint.is_grammar();
            self.tokens.push(TO_BE_DRAWN);
            self.unknown += 1;
            index as u32
        });
        (may_draw, index)
    }

    /// Pages to which the next `tokens` are written.
    fn writes(&self, tokens: usize, cache: &KvPages) -> impl Iterator<Item = Option<PageId>> {
        let geometry = cache.geometry();
        let first = self.computed / geometry.page_tokens as usize;
        let blocks = first..geometry.blocks(self.computed + tokens);
        blocks.flat_map(move |block| self.table.of_block(block, geometry))
    }

    pub(in crate::scheduler) fn is_open(&self) -> bool {
        self.is_open
    }

    /// True if the last launched step samples this token.
    pub(in crate::scheduler) fn draws_at(&self, index: Option<u32>) -> bool {
        let newest = (self.tokens.len() - self.prompt_len).checked_sub(1);
        self.unknown > 0 && index.map(|index| index as usize) == newest
    }

    /// Records that the sampling is launched.
    pub(in crate::scheduler) fn close(&mut self) {
        if std::mem::take(&mut self.is_open) {
            self.constraint.used();
        }
    }

    /// Cancels the sample of the last launched step.
    pub(in crate::scheduler) fn undraw(&mut self) {
        debug_assert!(self.is_open && self.tokens.last() == Some(&TO_BE_DRAWN));
        self.is_open = false;
        self.tokens.pop();
        self.unknown -= 1;
    }

    /// Schedules the newest token to run again: all results of its step but its keys and values are lost.
    pub(in crate::scheduler) fn run_again(&mut self) {
        self.computed -= 1;
    }

    /// Appends a forced token, without sampling.
    pub(in crate::scheduler) fn take(&mut self, token: TokenId, limits: &Limits) -> Drawn {
        debug_assert_eq!(self.unknown, 0);
        let index = self.generated().len();
        self.tokens.push(token);
        self.think(token, limits);
        Drawn {
            request: self.request,
            index: index as u32,
            token,
        }
    }

    /// Maximum number of forced tokens now. 0 if log probabilities of generated tokens are requested or those of the
    /// prompt are missing, and for a request with rules on tokens, which a forced token may break.
    pub(in crate::scheduler) fn most_forced(&self, limits: &Limits) -> usize {
        let is_watched =
            self.params.logprobs.is_some() || limits.traces_logits || self.scores_are_missing();
        let left = (self.params.max_tokens as usize).saturating_sub(self.generated().len());
        if is_watched || self.rules.is_some() {
            0
        } else {
            left.min(MOST_FORCED)
        }
    }

    /// Records the token sampled by the oldest step in flight.
    pub(in crate::scheduler) fn learn(&mut self, token: TokenId, limits: &Limits) {
        let at = self.known().len();
        self.tokens[at] = token;
        self.unknown -= 1;
        self.think(token, limits);
    }

    fn think(&mut self, token: TokenId, limits: &Limits) {
        if let Some(thoughts) = &mut self.thoughts {
            thoughts.learn(token, limits);
        }
    }
}
