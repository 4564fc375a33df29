//! A request on its way: its tokens, how many of them are in the KV cache, and when it ends.

mod drawing;
mod paging;

use super::Limits;
use super::constraint::{Constraint, Wish};
use super::fair_queue::Candidate;
use super::page_table::PageTable;
use super::scoring::Scoring;
use super::thoughts::Thoughts;
use crate::device::PageId;
use crate::kv_pages::{ChainId, KvPages};
use crate::logprobs::WantedPart;
use crate::pooling::Pool;
pub(super) use drawing::MOST_FORCED;
use worker_orcd_ipc::{
    ClientId, FinishReason, MAX_LOGIT_BIASES, RequestId, Sampling, Submission, TokenId,
};

/// A block that is not full and holds positions from `start` on.
#[derive(Debug)]
pub(super) struct Tail {
    /// One for each group of layers.
    pub pages: Vec<PageId>,
    pub start: usize,
    pub tokens: usize,
}

#[derive(Debug)]
pub(super) struct Sequence {
    pub(super) request: RequestId,
    /// Place in the order of submissions: unlike the request's name, never given again.
    pub(super) serial: u64,
    pub(super) client: ClientId,
    /// Prompt, then completion; at the end one [`TO_BE_DRAWN`] for each step that was launched and
    /// has not said yet what it drew.
    tokens: Vec<TokenId>,
    unknown: usize,
    /// How the newest of those is drawn is not decided yet.
    is_open: bool,
    prompt_len: usize,
    sampling: Sampling,
    max_tokens: usize,
    ignore_eos: bool,
    /// As [`Submission::logprobs`].
    pub(super) logprobs: Option<u8>,
    /// Where log probabilities of its prompt are wanted.
    pub(super) scoring: Option<Scoring>,
    pub(super) constraint: Constraint,
    thoughts: Option<Thoughts>,
    /// As [`Submission::logit_bias`].
    logit_bias: Vec<(TokenId, f32)>,
    /// Where its embedding is wanted, and no token.
    pub(super) pool: Option<Pool>,
    /// Positions `0 .. computed` are in `table`, as far as they are still seen.
    computed: usize,
    table: PageTable,
    /// All it had when it was admitted is computed, and since then it is one token at a time.
    decodes: bool,
    /// Names the first `published` blocks.
    chain: ChainId,
    published: usize,
    /// Positions `0 .. told` are sealed, and the supervisor knows.
    told: usize,
    /// The supervisor was told of pages that were given up since.
    is_told_too_much: bool,
    /// What another child has computed of it beyond whole pages, until it is admitted.
    tail: Option<Tail>,
    /// A sequence that ran before and was parked: its prompt is already in the statistics.
    pub(super) was_running: bool,
    /// Once it was its turn and there were not enough pages: how many were admitted since.
    pub(super) passed_by: Option<u32>,
}

impl Sequence {
    pub(super) fn new(
        serial: u64,
        submission: Submission,
        tail: Option<Tail>,
        limits: &Limits,
    ) -> Self {
        let Submission {
            request,
            client,
            prompt,
            generated,
            sealed: _,
            sampling,
            max_tokens,
            ignore_eos,
            logprobs,
            prompt_logprobs,
            grammar,
            logit_bias,
            thinking,
            embeds,
        } = submission;
        let prompt_len = prompt.len();
        let thoughts = thinking.map(|budget| Thoughts::new(*budget, &generated, limits));
        let mut tokens = prompt;
        tokens.extend(generated);
        Self {
            request,
            serial,
            client,
            tokens,
            unknown: 0,
            is_open: false,
            prompt_len,
            sampling,
            max_tokens: max_tokens as usize,
            ignore_eos,
            logprobs,
            scoring: prompt_logprobs.map(|order| Scoring::new(order, prompt_len)),
            constraint: Constraint::of(grammar),
            thoughts,
            logit_bias,
            pool: embeds
                .map(|pooling| Pool::new(pooling, prompt_len).with_head(limits.rank_head.clone())),
            computed: 0,
            table: PageTable::default(),
            decodes: false,
            chain: ChainId::ROOT,
            published: 0,
            told: 0,
            is_told_too_much: false,
            tail,
            was_running: false,
            passed_by: None,
        }
    }

    pub(super) fn prompt_len(&self) -> usize {
        self.prompt_len
    }

    fn known(&self) -> &[TokenId] {
        &self.tokens[..self.tokens.len() - self.unknown]
    }

    pub(super) fn has_unknown(&self) -> bool {
        self.unknown > 0
    }

    /// Tokens that are not in the KV cache yet. At least 1 for as long as it runs: the newest
    /// token is always still to be run. 0 of a prompt that was all there is.
    pub(super) fn pending(&self) -> usize {
        self.tokens.len() - self.computed
    }

    /// Of those, what can be run now. A first token that is drawn waits for its mask, and so does one whose
    /// mask was late; other masks come while the step is computed. Whoever has bounded thoughts waits until it is known
    /// what may come next. And a prompt is run as far as it has pages.
    pub(super) fn runnable(&self, cache: &KvPages) -> usize {
        let comes_soon = self.decodes && self.constraint.expects_mask();
        let is_decided = |thoughts: &Thoughts| thoughts.is_decided(self.unknown);
        let waits = self.constraint.lacks_mask() && !comes_soon
            || !self.thoughts.as_ref().is_none_or(is_decided);
        let room = self.table.room(cache.geometry()) - self.computed;
        (self.pending() - usize::from(waits)).min(room)
    }

    /// Tokens generated so far.
    pub(super) fn generated(&self) -> &[TokenId] {
        &self.known()[self.prompt_len..]
    }

    /// Positions that are in the KV cache.
    pub(super) fn computed(&self) -> usize {
        self.computed
    }

    pub(super) fn candidate(&self, waits: bool, cache: &KvPages) -> Candidate {
        Candidate {
            client: self.client,
            serial: self.serial,
            // One that waits is given a slot, and asks for its mask then.
            left: match waits {
                true => self.pending(),
                false => self.runnable(cache),
            },
            waits,
            scores: self.scores_are_missing(),
        }
    }

    /// Log probabilities of its prompt are still to be told.
    pub(super) fn scores_are_missing(&self) -> bool {
        self.scoring.as_ref().is_some_and(|it| !it.is_over())
    }

    /// What the rows of the next `tokens` of what is pending tell of its prompt.
    pub(super) fn scored_part(&self, tokens: usize) -> Option<WantedPart> {
        let rows = self.computed..self.computed + tokens;
        self.scoring.as_ref()?.part(self, rows, &self.tokens)
    }

    /// Tokens that may be taken from elsewhere. The last is run in any case: its logits are what a next token is
    /// drawn from.
    fn reusable(&self) -> usize {
        let before_last = self.tokens.len() - 1;
        match &self.scoring {
            Some(scoring) if !scoring.is_over() => before_last.min(scoring.told()),
            _ => before_last,
        }
    }

    /// A step that ends with its newest token draws the next one.
    fn is_continued(&self) -> bool {
        self.pool.is_none() && self.max_tokens > 0
    }

    pub(super) fn decodes(&self) -> bool {
        self.decodes
    }

    /// Something of it can be in the next step.
    pub(super) fn runs(&self, limits: &Limits, cache: &KvPages) -> bool {
        !self.will_be_full(limits) && !self.lacks_pages(cache) && self.runnable(cache) > 0
    }

    /// Why it ends before anything is computed, if it does.
    pub(super) fn refusal(&self, limits: &Limits) -> Option<FinishReason> {
        let refused = |message| Some(FinishReason::Refused { message });
        if self.prompt_len == 0 {
            return refused("the prompt is empty".to_owned());
        }
        if let Some(token) = self
            .tokens
            .iter()
            .find(|token| token.0 >= limits.vocab_size)
        {
            return refused(format!(
                "token {token} is outside a vocabulary of {}",
                limits.vocab_size
            ));
        }
        if self.prompt_len >= limits.max_sequence_tokens as usize {
            return refused(format!(
                "a prompt of {} tokens leaves no room in a context of {}",
                self.prompt_len, limits.max_sequence_tokens
            ));
        }
        if self.pool.as_ref().is_some_and(Pool::lacks_head) {
            return refused("the model gives no scores".to_owned());
        }
        if !self.has_sound_biases(limits) {
            return refused("its biases are not those of tokens, in order and in range".to_owned());
        }
        if self
            .thoughts
            .as_ref()
            .is_some_and(|it| !it.is_sound(limits))
        {
            return refused("its thoughts are bounded by what cannot be written".to_owned());
        }
        self.ending(limits)
    }

    fn has_sound_biases(&self, limits: &Limits) -> bool {
        let biases = &self.logit_bias;
        let in_range = |(token, bias): &(TokenId, f32)| {
            token.0 < limits.vocab_size && Sampling::LOGIT_BIAS.contains(&f64::from(*bias))
        };
        biases.len() <= MAX_LOGIT_BIASES
            && biases.iter().all(in_range)
            && biases.is_sorted_by(|a, b| a.0 < b.0)
    }

    /// Why it ends with the tokens it is known to have, if it does.
    pub(super) fn ending(&self, limits: &Limits) -> Option<FinishReason> {
        if let Some(pool) = &self.pool {
            let embedded = || FinishReason::Embedded {
                values: pool.vector(),
            };
            return self.is_embedded().then(embedded);
        }
        if self.scores_are_missing() {
            return None;
        }
        let last = self.generated().last();
        if !self.ignore_eos && last.is_some_and(|token| limits.ends_generation(*token)) {
            return Some(FinishReason::EndOfSequence);
        }
        let is_full = self.holds(self.known().len(), limits);
        is_full.then_some(FinishReason::MaxTokens)
    }

    /// Whatever is drawn for it by the steps under way, it has no room for more.
    pub(super) fn will_be_full(&self, limits: &Limits) -> bool {
        match self.pool {
            Some(_) => self.is_embedded(),
            None if self.scores_are_missing() => false,
            None => self.holds(self.tokens.len(), limits),
        }
    }

    /// A prompt that becomes an embedding, all of which is computed.
    fn is_embedded(&self) -> bool {
        self.pool.is_some() && self.pending() == 0
    }

    /// Rows of the next `tokens` of what is pending are part of its embedding.
    pub(super) fn pools(&self, tokens: usize) -> bool {
        let rows = self.computed..self.computed + tokens;
        self.pool.as_ref().is_some_and(|pool| pool.wants(rows))
    }

    /// A sequence that may have no more than this many tokens.
    fn holds(&self, tokens: usize, limits: &Limits) -> bool {
        tokens - self.prompt_len >= self.max_tokens || tokens >= limits.max_sequence_tokens as usize
    }

    /// The mask behind that token, where another token is to follow.
    pub(super) fn next_wish(&self, token: TokenId, limits: &Limits) -> Option<Wish> {
        match self.ending(limits) {
            Some(_) => None,
            None => self.constraint.next(token, self.most_forced(limits)),
        }
    }

    /// Positions whose tokens are known, and that no step is going to run once more.
    fn settled(&self) -> usize {
        let again = usize::from(self.is_open);
        (self.computed - again).min(self.known().len())
    }
}
