//! Drafts from a draft model: a second, smaller model with the tokens of the first.
//!
//! ```text
//!   turn    step 1 of the model: tokens it has not computed ──► draft 1
//!           step 2:              draft 1                    ──► draft 2          all sequences together
//!           …
//!   plan    the newest token and its drafts: one step of the served model
//! ```
//!
//! A turn comes before the plan of a step, while no step is in flight. The model samples with the parameters, the seed and the
//! position with which the served model will, so its drafts are right about as often at any temperature. It knows the rules
//! of the request on tokens, and not the mask of a grammar.
//!
//! A draft changes no token, so nothing here is part of a promise: no page is sealed, adopted or parked. A sequence that begins, or
//! continues after a death, is computed by the model in chunks beside the steps of the served model, and has no drafts until
//! that is done. Its pages are in a cache of their own, with the prefixes of other sequences. Positions behind a rejected
//! draft are computed again: a sequence keeps the positions of tokens that became its own.

use super::draft_lengths::{Offer, StepSeconds, choose};
use super::drafts::{Allowance, Source, rounded};
use super::page_table::{PageDemand, PageTable};
use super::planned_drafts::draft_rows;
use super::sequence::Sequence;
use super::{Limits, SchedulerError};
use crate::device::{SampleWork, SequenceWork};
use crate::kv_pages::{ChainId, KvPages};
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use worker_orcd_ipc::{Drawn, RequestId, TokenId};

/// Limits of the draft model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DraftModelLimits {
    pub vocab_size: u32,
    /// Maximum tokens of a sequence.
    pub max_sequence_tokens: u32,
    /// Maximum tokens of one batch.
    pub max_batch_tokens: u32,
}

/// Rows of a sequence that follows the served model: those of its drafts, and the token behind them.
const FOLLOWING_ROWS: usize = 16;

#[derive(Debug)]
pub(super) struct DraftModel {
    limits: DraftModelLimits,
    cache: KvPages,
    /// Sequences by serial number.
    sequences: HashMap<u64, Computed>,
    /// The sequences of the present turn.
    turn: Vec<Part>,
}

/// Positions of a sequence that the model has computed.
#[derive(Debug)]
struct Computed {
    table: PageTable,
    /// Positions with tokens of the sequence.
    settled: usize,
    /// Drafts at the positions behind them.
    ahead: Vec<TokenId>,
    published: usize,
    chain: ChainId,
}

/// A sequence in a turn.
#[derive(Debug)]
struct Part {
    /// Index among the running sequences.
    index: usize,
    serial: u64,
    /// Positions of the next step; none: its turn is over.
    rows: Range<usize>,
    /// Number of drafts; 0 for a part of its text that does not reach its end.
    wanted: usize,
}

impl DraftModel {
    pub(super) fn new(limits: DraftModelLimits, cache: KvPages) -> Self {
        Self {
            limits,
            cache,
            sequences: HashMap::new(),
            turn: Vec::new(),
        }
    }

    /// Tokens of the sequence that the model has not computed.
    fn lag(&self, sequence: &Sequence) -> usize {
        let computed = self.sequences.get(&sequence.serial);
        sequence.tokens().len() - computed.map_or(0, |it| it.settled)
    }

    /// Maximum tokens of a sequence.
    pub(super) fn reach(&self) -> usize {
        self.limits.max_sequence_tokens as usize
    }

    /// Releases the pages of sequences that do not run.
    fn keep(&mut self, running: &HashSet<u64>) {
        let cache = &mut self.cache;
        self.sequences.retain(|serial, computed| {
            let runs = running.contains(serial);
            if !runs {
                computed.table.release(cache);
            }
            runs
        });
    }

    /// Releases the pages of a sequence.
    fn forget(&mut self, serial: u64) {
        if let Some(mut computed) = self.sequences.remove(&serial) {
            computed.table.release(&mut self.cache);
        }
    }

    /// Plans a sequence's part of the turn, with at most `chunk` tokens if it is far behind, and `left` in any case.
    fn part(&mut self, sequence: &Sequence, wanted: usize, chunk: usize, left: usize) -> Fit {
        let Self {
            limits,
            cache,
            sequences,
            ..
        } = self;
        let tokens = sequence.tokens();
        let computed = sequences.entry(sequence.serial).or_insert_with(|| {
            // The last token is computed in any case.
            Computed::with_prefix_of(&tokens[..tokens.len() - 1], cache)
        });
        computed.settle(tokens);
        let pending = &tokens[computed.settled..];
        if pending.iter().any(|token| token.0 >= limits.vocab_size) {
            return Fit::Never;
        }
        let most = match pending.len() <= FOLLOWING_ROWS {
            true => left,
            false => left.min(chunk),
        };
        let mut rows = pending.len().min(most);
        let reaches_end = rows == pending.len();
        let mut wanted = if reaches_end { wanted } else { 0 };
        if rows == 0 {
            return Fit::Later;
        }
        let start = computed.settled;
        computed.table.slide(cache, start);
        let geometry = cache.geometry();
        if geometry.least_pages(tokens.len()) > geometry.pages as usize {
            return Fit::Never;
        }
        loop {
            // A position for each draft but the last.
            let ahead = rows + wanted.saturating_sub(1);
            let demand = PageDemand {
                tokens: start + ahead,
                computed: start,
                ahead,
            };
            if computed.table.fill(cache, demand) {
                return Fit::Rows(start..start + rows, wanted);
            }
            // Pages of windows are released behind the rows, so fewer rows at a time need fewer pages.
            if geometry.groups.sliding.is_none() || rows + wanted <= 1 {
                return Fit::Never;
            }
            match wanted > 1 {
                true => wanted /= 2,
                false => (rows, wanted) = ((rows / 2).max(1), 0),
            }
        }
    }
}

/// Outcome of [`DraftModel::part`].
enum Fit {
    /// Positions of its first step, and number of its drafts.
    Rows(Range<usize>, usize),
    /// The turn is full.
    Later,
    /// The cache has no room for the sequence, or it has a token outside the vocabulary.
    Never,
}

impl Computed {
    fn with_prefix_of(tokens: &[TokenId], cache: &mut KvPages) -> Self {
        let geometry = cache.geometry();
        let prefix = cache.find(tokens);
        Self {
            settled: prefix.blocks * geometry.page_tokens as usize,
            ahead: Vec::new(),
            published: prefix.blocks,
            chain: prefix.chain,
            table: PageTable::of(prefix, geometry),
        }
    }

    /// Keeps the positions of drafts that became tokens of the sequence.
    fn settle(&mut self, tokens: &[TokenId]) {
        let own = tokens[self.settled..].iter().zip(&self.ahead);
        // The last token is computed in any case.
        let most = (tokens.len() - 1).saturating_sub(self.settled);
        let right = own.take_while(|(token, draft)| token == draft).count();
        self.settled += right.min(most);
        self.ahead.clear();
    }

    /// Records the computation of these positions.
    fn computed(&mut self, rows: Range<usize>, tokens: &[TokenId], drafts_from: usize) {
        let known = rows.end.min(drafts_from);
        self.settled = self.settled.max(known);
        self.ahead.extend(&tokens[rows.start.max(known)..rows.end]);
    }

    /// Publishes the full blocks with tokens of the sequence.
    fn publish(&mut self, tokens: &[TokenId], cache: &mut KvPages) {
        let geometry = cache.geometry();
        let page_tokens = geometry.page_tokens as usize;
        // Pages of windows and states are released soon; a prefix needs them.
        while geometry.groups.sliding.is_none() && self.published < self.settled / page_tokens {
            let tokens = &tokens[self.published * page_tokens..][..page_tokens];
            let pages: Vec<_> = self.table.of_block(self.published, geometry).collect();
            self.chain = cache.publish(self.chain, tokens, &pages);
            self.published += 1;
        }
    }
}

/// A turn of the draft model.
#[derive(Debug)]
pub struct DraftTurn<'a> {
    pub(super) model: &'a mut DraftModel,
    pub(super) running: &'a mut [Sequence],
    pub(super) limits: &'a Limits,
    pub(super) allowance: Allowance,
    pub(super) seconds: StepSeconds,
}

impl DraftTurn<'_> {
    /// Begins with at most `chunk` tokens of sequences that the model follows from afar. False if it has nothing to compute.
    pub fn begin(&mut self, chunk: usize) -> bool {
        let lengths = self.lengths();
        let Self { model, running, .. } = self;
        model.keep(&running.iter().map(|it| it.serial).collect());
        model.turn.clear();
        let (mut chunk, mut left) = (chunk.max(1), model.limits.max_batch_tokens as usize);
        for (index, wanted) in lengths {
            let sequence = &mut running[index];
            match model.part(sequence, wanted, chunk, left) {
                Fit::Rows(rows, wanted) => {
                    left -= rows.len();
                    if rows.len() > FOLLOWING_ROWS || wanted == 0 {
                        chunk = chunk.saturating_sub(rows.len());
                    }
                    let serial = sequence.serial;
                    model.turn.push(Part {
                        index,
                        serial,
                        rows,
                        wanted,
                    });
                }
                Fit::Later => {}
                Fit::Never => {
                    model.forget(sequence.serial);
                    sequence.goes_without_model(model.limits.vocab_size);
                }
            }
        }
        !model.turn.is_empty()
    }

    /// Running sequences with drafts of the model, and their number: 0 for one that the model only follows.
    fn lengths(&mut self) -> Vec<(usize, usize)> {
        let Self {
            model,
            running,
            limits,
            allowance,
            seconds,
        } = self;
        let mut offers: Vec<(usize, Offer)> = Vec::new();
        for (index, sequence) in running.iter_mut().enumerate() {
            sequence.drop_drafts();
            if sequence.decodes() {
                offers.push((index, sequence.offer_before_turn(*allowance, limits)));
            }
        }
        let most_rows = draft_rows(limits, running);
        let chosen = |offers: &[(usize, Offer)]| {
            let offers: Vec<_> = offers.iter().map(|(_, offer)| *offer).collect();
            let choice = choose(&offers, seconds, most_rows).filter(|it| it.turn > 0);
            choice.map_or_else(|| vec![0; offers.len()], |it| it.lengths)
        };
        let with_all = chosen(&offers);
        let of_model = |offer: &Offer| offer.needs_turn && offer.most > 0;
        let mut wanted = Vec::new();
        for ((index, offer), length) in offers.iter_mut().zip(with_all) {
            if !of_model(offer) {
                continue;
            }
            if length == 0 {
                running[*index].pass_over(*offer);
            } else if model.lag(&running[*index]) > FOLLOWING_ROWS {
                // It has no drafts before the model has followed.
                offer.most = 0;
                wanted.push((*index, 0));
            }
        }
        let lengths = chosen(&offers);
        let lengths = offers.iter().zip(lengths);
        let drafting = lengths.filter(|((_, offer), length)| of_model(offer) && *length > 0);
        wanted.extend(drafting.map(|((index, _), length)| (*index, length)));
        wanted
    }

    /// Requests in the turn.
    pub fn requests(&self) -> impl Iterator<Item = RequestId> {
        let parts = self.model.turn.iter();
        parts.map(|part| self.running[part.index].request)
    }

    /// The next step of the turn; empty if it is over.
    #[must_use]
    pub fn work(&self) -> Vec<SequenceWork<'_>> {
        let parts = self.model.turn.iter().filter(|part| !part.rows.is_empty());
        let work = parts.map(|part| {
            let sequence = &self.running[part.index];
            SequenceWork {
                request: sequence.request,
                tokens: &sequence.tokens()[part.rows.clone()],
                first_position: part.rows.start as u32,
                pages: self.model.sequences[&part.serial].table.pages(),
                sample: (part.wanted > 0).then(|| self.model.sample(sequence, self.limits)),
                drafts: 0,
            }
        });
        work.collect()
    }

    /// Applies the samples of the turn's step.
    ///
    /// # Errors
    /// If the device's answer does not match the step.
    pub fn take(&mut self, drawn: &[Drawn]) -> Result<(), SchedulerError> {
        let DraftModel {
            cache,
            sequences,
            turn,
            limits: of_model,
            ..
        } = &mut *self.model;
        let (found, mut drawn) = (drawn.len(), drawn.iter());
        let samples = |it: &&Part| !it.rows.is_empty() && it.wanted > 0;
        let expected = turn.iter().filter(samples).count();
        if found != expected {
            return Err(SchedulerError::DrawnCount { expected, found });
        }
        for part in turn.iter_mut().filter(|it| !it.rows.is_empty()) {
            let sequence = &mut self.running[part.index];
            let rows = std::mem::take(&mut part.rows);
            if let Some(computed) = sequences.get_mut(&part.serial) {
                let known = sequence.tokens().len() - sequence.drafts();
                computed.computed(rows, sequence.tokens(), known);
                computed.publish(sequence.tokens(), cache);
            }
            if part.wanted == 0 {
                continue;
            }
            let Some(row) = drawn.next() else { continue };
            let (request, token) = (sequence.request, row.token);
            if row.request != request {
                return Err(SchedulerError::NotToBeDrawn(request));
            }
            if token.0 >= of_model.vocab_size {
                return Err(SchedulerError::TokenOutOfRange { request, token });
            }
            let goes_on = sequence.add_draft(token, self.limits);
            if goes_on && sequence.drafts() < part.wanted {
                let end = sequence.tokens().len();
                part.rows = end - 1..end;
            }
        }
        Ok(())
    }

    /// Ends the turn: its drafts are those of the step that is planned next.
    pub fn end(self) {
        for part in self.model.turn.drain(..).filter(|part| part.wanted > 0) {
            self.running[part.index].propose();
        }
    }
}

impl DraftModel {
    /// Sampling of the next draft.
    fn sample<'a>(&self, sequence: &'a Sequence, of_served: &Limits) -> SampleWork<'a> {
        let sample = sequence.sample(sequence.tokens().len() - sequence.prompt_len());
        let vocab_size = self.limits.vocab_size;
        if vocab_size == of_served.vocab_size {
            return sample;
        }
        let known = sample
            .bias
            .partition_point(|(token, _)| token.0 < vocab_size);
        SampleWork {
            // A mask has a bit for each token of the other vocabulary.
            allowed: None,
            bias: &sample.bias[..known],
            ..sample
        }
    }
}

/// Drafts of a turn, until the step of their sequence is planned.
#[derive(Debug)]
pub(super) struct Proposal {
    /// Tokens before them.
    pub behind: usize,
    pub drafts: Vec<TokenId>,
    pub source: Source,
}

impl Proposal {
    /// The largest number of these drafts that a device has a recording for.
    pub(super) fn of_model(behind: usize, mut drafts: Vec<TokenId>) -> Self {
        drafts.truncate(rounded(drafts.len()));
        Self {
            behind,
            drafts,
            source: Source::Model,
        }
    }
}
