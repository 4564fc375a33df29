//! One request in progress: its tokens, the number of them in the KV cache, and its end.

mod drawing;
mod paging;

use super::Limits;
use super::constraint::{Constraint, MaskRequest};
use super::draft_model::Proposal;
use super::drafts::{Drafter, Source};
use super::fair_queue::Candidate;
use super::page_table::PageTable;
use super::reasoning_budget::ReasoningBudget;
use super::scoring::Scoring;
use super::token_rules::TokenRules;
use crate::device::PageId;
use crate::kv_pages::{ChainId, KvPages};
use crate::logprobs::PromptPart;
use crate::pooling::Pool;
pub(super) use drawing::MOST_FORCED;
use std::sync::Arc;
use worker_orcd_ipc::{
    ClientId, FinishReason, GenerationParams, MAX_LOGIT_BIASES, RequestId, Sampling, Submission,
    TokenId,
};

/// Partial block with positions from `start` on.
#[derive(Debug)]
pub(super) struct Tail {
    /// One page for each group of layers.
    pub pages: Vec<PageId>,
    pub start: usize,
    pub tokens: usize,
}

#[derive(Debug)]
pub(super) struct Sequence {
    pub(super) request: RequestId,
    /// Index in the order of submissions. Unlike the request id, it is never reused.
    pub(super) serial: u64,
    pub(super) client: ClientId,
    /// Prompt, then completion, then one `TO_BE_DRAWN` for each launched step with an outstanding sample, or drafts.
    tokens: Vec<TokenId>,
    unknown: usize,
    /// Drafts at the end of `tokens`, in the planned step or the one in flight.
    drafts: usize,
    /// Drafts of the step in flight, including those that were removed from it for lack of a mask.
    offered: usize,
    drafter: Drafter,
    /// Drafts for the step that is planned next, and the source of those in the last planned one.
    proposal: Option<Proposal>,
    source: Source,
    /// The sampling of the newest `TO_BE_DRAWN` is not decided yet.
    is_open: bool,
    prompt_len: usize,
    pub(super) params: Arc<GenerationParams>,
    /// State of the prompt's log probabilities, if requested.
    pub(super) scoring: Option<Scoring>,
    pub(super) constraint: Constraint,
    reasoning: Option<ReasoningBudget>,
    rules: Option<TokenRules>,
    /// State of the embedding, if one is requested in place of tokens.
    pub(super) pool: Option<Pool>,
    /// Positions `0 .. computed` are in `table`, except released ones.
    computed: usize,
    table: PageTable,
    /// The prefill since admission is complete: one token per step from now on.
    decodes: bool,
    /// Identifier of the first `published` blocks, and of those before the last block that this sequence has published.
    chain: ChainId,
    parent: Option<ChainId>,
    published: usize,
    /// Positions `0 .. sent` are sealed and reported to the supervisor.
    sent: usize,
    /// Pages reported to the supervisor were released since.
    is_sent_too_much: bool,
    /// Partial block that another child has computed, until admission.
    tail: Option<Tail>,
    /// The sequence ran before and was parked: the statistics already count its prompt.
    pub(super) was_running: bool,
    /// Number of requests admitted since this one's turn came without enough pages.
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
            params,
            prompt_logprobs,
            embeds,
        } = submission;
        let prompt_len = prompt.len();
        let budget = params.thinking.clone();
        let reasoning = budget.map(|budget| ReasoningBudget::new(budget, &generated, limits));
        let mut tokens = prompt;
        tokens.extend(generated);
        Self {
            request,
            serial,
            client,
            tokens,
            unknown: 0,
            drafts: 0,
            offered: 0,
            drafter: Drafter::new(prompt_len, Arc::clone(&params.prediction)),
            proposal: None,
            source: Source::Text,
            is_open: false,
            prompt_len,
            scoring: prompt_logprobs.map(|order| Scoring::new(order, prompt_len)),
            constraint: Constraint::of(params.grammar.clone()),
            reasoning,
            rules: TokenRules::new(&params, limits),
            params,
            pool: embeds
                .map(|pooling| Pool::new(pooling, prompt_len).with_head(limits.rank_head.clone())),
            computed: 0,
            table: PageTable::default(),
            decodes: false,
            chain: ChainId::ROOT,
            parent: None,
            published: 0,
            sent: 0,
            is_sent_too_much: false,
            tail,
            was_running: false,
            passed_by: None,
        }
    }

    pub(super) fn prompt_len(&self) -> usize {
        self.prompt_len
    }

    /// All tokens, also those in flight and drafts.
    pub(super) fn tokens(&self) -> &[TokenId] {
        &self.tokens
    }

    fn known(&self) -> &[TokenId] {
        &self.tokens[..self.tokens.len() - self.unknown - self.drafts]
    }

    pub(super) fn has_unknown(&self) -> bool {
        self.unknown > 0
    }

    /// Tokens that are not in the KV cache yet. At least 1 while running: the newest token is always still to be run. 0
    /// for a fully computed prompt without a completion.
    pub(super) fn pending(&self) -> usize {
        self.tokens.len() - self.computed
    }

    /// Pending tokens that can run now. The first sample waits for its mask, as does one with a late mask; other masks
    /// arrive during the step. A sequence with a reasoning budget waits until its next allowed token is known. Prefill
    /// is limited by the pages at hand.
    pub(super) fn runnable(&self, cache: &KvPages) -> usize {
        let comes_soon = self.decodes && self.constraint.expects_mask();
        let is_decided = |reasoning: &ReasoningBudget| self.unknown <= reasoning.decided();
        let waits = self.constraint.lacks_mask() && !comes_soon
            || !self.reasoning.as_ref().is_none_or(is_decided);
        let room = self.table.room(cache.geometry()) - self.computed;
        (self.pending() - usize::from(waits)).min(room)
    }

    /// Tokens generated so far.
    pub(super) fn generated(&self) -> &[TokenId] {
        &self.known()[self.prompt_len..]
    }

    /// Positions in the KV cache.
    pub(super) fn computed(&self) -> usize {
        self.computed
    }

    pub(super) fn candidate(&self, waits: bool, cache: &KvPages) -> Candidate {
        Candidate {
            client: self.client,
            serial: self.serial,
            // A waiting sequence gets a slot first, and then requests its mask.
            left: match waits {
                true => self.pending(),
                false => self.runnable(cache),
            },
            waits,
            scores: self.scores_are_missing(),
        }
    }

    /// True if log probabilities of the prompt are still missing.
    pub(super) fn scores_are_missing(&self) -> bool {
        self.scoring.as_ref().is_some_and(|it| !it.is_over())
    }

    /// Part of the prompt's log probabilities that the next `tokens` pending rows yield.
    pub(super) fn scored_part(&self, tokens: usize) -> Option<PromptPart> {
        let rows = self.computed..self.computed + tokens;
        self.scoring.as_ref()?.part(self, rows, &self.tokens)
    }

    /// Tokens that may come from the cache. The last one is always computed: the next token is sampled from its logits.
    fn reusable(&self) -> usize {
        let before_last = self.tokens.len() - 1;
        match &self.scoring {
            Some(scoring) if !scoring.is_over() => before_last.min(scoring.reported()),
            _ => before_last,
        }
    }

    /// True if a step that ends with the newest token samples the next one.
    fn is_continued(&self) -> bool {
        self.pool.is_none() && self.params.max_tokens > 0
    }

    pub(super) fn decodes(&self) -> bool {
        self.decodes
    }

    /// True if a token of the sequence can be in the next step.
    pub(super) fn runs(&self, limits: &Limits, cache: &KvPages) -> bool {
        !self.will_be_full(limits) && !self.lacks_pages(cache) && self.runnable(cache) > 0
    }

    /// Reason to end before any computation, if there is one.
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
        if !TokenRules::are_sound(&self.params, limits) {
            return refused(
                "its stop tokens and allowed tokens are not tokens, in order".to_owned(),
            );
        }
        if self
            .params
            .prediction
            .iter()
            .any(|it| it.0 >= limits.vocab_size)
        {
            return refused("its prediction has tokens outside the vocabulary".to_owned());
        }
        if self
            .reasoning
            .as_ref()
            .is_some_and(|it| !it.is_sound(limits))
        {
            return refused("its reasoning is bounded by what cannot be written".to_owned());
        }
        self.ending(limits)
    }

    fn has_sound_biases(&self, limits: &Limits) -> bool {
        let biases = &self.params.logit_bias;
        let in_range = |(token, bias): &(TokenId, f32)| {
            token.0 < limits.vocab_size && Sampling::LOGIT_BIAS.contains(&f64::from(*bias))
        };
        biases.len() <= MAX_LOGIT_BIASES
            && biases.iter().all(in_range)
            && biases.is_sorted_by(|a, b| a.0 < b.0)
    }

    /// Reason to end with the tokens known so far, if there is one.
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
        if self
            .generated()
            .last()
            .is_some_and(|last| self.ends_at(*last, limits))
        {
            return Some(FinishReason::EndOfSequence);
        }
        let is_full = self.holds(self.known().len(), limits);
        is_full.then_some(FinishReason::MaxTokens)
    }

    fn ends_at(&self, token: TokenId, limits: &Limits) -> bool {
        let is_end = !self.params.ignore_eos && limits.ends_generation(token);
        is_end || self.params.stops_at(token)
    }

    /// True if the sequence has no room for a further token, regardless of the samples in flight.
    pub(super) fn will_be_full(&self, limits: &Limits) -> bool {
        match self.pool {
            Some(_) => self.is_embedded(),
            None if self.scores_are_missing() => false,
            None => self.holds(self.tokens.len(), limits),
        }
    }

    /// True for a fully computed prompt of an embedding.
    fn is_embedded(&self) -> bool {
        self.pool.is_some() && self.pending() == 0
    }

    /// True if rows of the next `tokens` pending tokens are part of the embedding.
    pub(super) fn pools(&self, tokens: usize) -> bool {
        let rows = self.computed..self.computed + tokens;
        self.pool.as_ref().is_some_and(|pool| pool.wants(rows))
    }

    /// True if the sequence may have at most this many tokens.
    fn holds(&self, tokens: usize, limits: &Limits) -> bool {
        tokens - self.prompt_len >= self.params.max_tokens as usize
            || tokens >= limits.max_sequence_tokens as usize
    }

    /// Request for the mask after the newest tokens, and for those behind the drafts, if a further token follows.
    pub(super) fn next_mask_request(&mut self, limits: &Limits) -> Option<MaskRequest> {
        if !self.constraint.has_unsent() || self.ending(limits).is_some() {
            return None;
        }
        let drafts = &self.tokens[self.tokens.len() - self.drafts..];
        let most_forced = self.most_forced(limits);
        self.constraint.next(most_forced, drafts)
    }

    /// Positions with known tokens that no step will recompute.
    fn settled(&self) -> usize {
        let again = usize::from(self.is_open);
        (self.computed - again).min(self.known().len())
    }
}
