//! Prompts beside sequences that decode, within a budget of time: the time between two tokens of a
//! stream is that of a step.
//!
//! Nothing is measured before somebody waits for it: the steps that serve are what is learned from.
//!
//! * What decoding takes is seen in steps without prompts. Where prompts come without end, one in
//!   [`MIXED_PER_BARE`] steps is without, so that the figure stays true.
//! * What a step takes beyond that is the price of its prompt tokens ([`Price`]), by how far they are
//!   in their prompts.
//! * The budget is the operator's, or follows what decoding takes: prompts get three quarters of that
//!   ([`LEAST_PART`]), or more where more requests wait for a first token than decode. For each of
//!   them waits, too, and what runs is to become a large batch soon.
//!
//! Whatever the budget, a step without tokens for prompts is followed by steps with some, so no prompt
//! starves; and which of them it is, is not decided here.

use super::TARGET;
use crate::scheduler::{Company, StepShape};
use std::time::Duration;

/// A tile of rows on a device that has such: fewer cost as much.
const MIN_TOKENS: u32 = 16;

/// Without a budget of the operator's: of the time that decoding takes, what prompts get at least.
const LEAST_PART: f64 = 0.75;

/// Without a budget of the operator's: shorter steps than this please nobody more, and cost small models, whose
/// steps are shorter, the batch.
const LEAST_BUDGET: Duration = Duration::from_millis(2);

/// Steps with prompts for each one without, which shows what decoding takes.
const MIXED_PER_BARE: u32 = 32;

/// The same where twice or half as many decode as when that was seen last.
const MIXED_PER_BARE_OF_OTHERS: u32 = 4;

#[derive(Debug)]
pub(super) struct Beside {
    max_tokens: u32,
    /// The operator's.
    wanted: Option<Duration>,
    /// In force for the step that was allowed last.
    budget: Option<Duration>,
    bare: Option<Bare>,
    /// Steps with prompts since the last one without.
    mixed: u32,
    price: Option<Price>,
    /// Tokens that the last step was allowed.
    allowed: u32,
}

/// Steps that do nothing but decode.
#[derive(Debug, Clone, Copy)]
struct Bare {
    sequences: usize,
    seconds: f64,
}

impl Beside {
    pub(super) fn new(max_tokens: u32, wanted: Option<Duration>) -> Self {
        Self {
            max_tokens,
            wanted,
            budget: wanted,
            bare: None,
            mixed: 0,
            price: None,
            allowed: 0,
        }
    }

    pub(super) fn budget(&self) -> Option<Duration> {
        self.budget
    }

    /// Prompt tokens of a step in which something decodes.
    pub(super) fn prompt_tokens(&mut self, company: Company) -> u32 {
        let bare = self.bare.filter(|bare| !self.is_stale(bare, company));
        let Some(bare) = bare else {
            return 0;
        };
        let budget = self.wanted.unwrap_or_else(|| bare.budget(company));
        self.budget = Some(budget);
        let left = budget.as_secs_f64() - bare.seconds;
        let tokens = self
            .price
            .map_or(0.0, |it| left / it.of_token(company.deepest));
        // A negative number is 0 here.
        self.allowed = (tokens as u32).clamp(MIN_TOKENS.min(self.max_tokens), self.max_tokens);
        self.allowed
    }

    /// The next step is to show what decoding takes.
    fn is_stale(&self, bare: &Bare, company: Company) -> bool {
        let most = match bare.is_like(company.decoding) {
            true => MIXED_PER_BARE,
            false => MIXED_PER_BARE_OF_OTHERS,
        };
        self.mixed >= most
    }

    /// A step took so long.
    pub(super) fn observe(&mut self, shape: StepShape, took: Duration) {
        let seconds = took.as_secs_f64();
        match (shape.decoding, shape.prompt_tokens, self.bare) {
            (decoding, 0, _) => self.decoded(decoding, seconds),
            // What a token costs alone is more than it costs where the weights are read anyway.
            (0, _, _) => match &mut self.price {
                Some(price) if price.of(shape) <= seconds => {}
                price => learn(price, shape, seconds, 1.0),
            },
            (_, tokens, bare) => {
                self.mixed += 1;
                let alone = bare.map_or(0.0, |bare| bare.seconds);
                // A step that was not full says little about one that is.
                let weight = (tokens as f64 / f64::from(self.allowed.max(1))).min(1.0);
                learn(&mut self.price, shape, (seconds - alone).max(0.0), weight);
            }
        }
    }

    /// A step without prompts took so long.
    fn decoded(&mut self, sequences: usize, seconds: f64) {
        self.mixed = 0;
        let before = self.bare.filter(|bare| bare.is_like(sequences));
        let new = Bare { sequences, seconds };
        self.bare = Some(before.map_or(new, |bare| bare.and(new)));
    }
}

fn learn(price: &mut Option<Price>, shape: StepShape, cost: f64, weight: f64) {
    match price {
        Some(price) => price.learn(shape, cost, weight),
        None => *price = Some(Price::new(cost / shape.prompt_tokens as f64)),
    }
}

impl Bare {
    fn is_like(&self, decoding: usize) -> bool {
        decoding <= 2 * self.sequences && self.sequences <= 2 * decoding
    }

    /// Of a single long step, most is a machine that did other things.
    fn and(self, new: Self) -> Self {
        let more = new.seconds.min(2.0 * self.seconds) - self.seconds;
        let part = if more > 0.0 { 0.25 } else { 0.5 };
        Self {
            sequences: new.sequences,
            seconds: self.seconds + part * more,
        }
    }

    /// As long as a cancellation may wait, at most.
    fn budget(self, company: Company) -> Duration {
        let part = company.prompts as f64 / company.decoding as f64;
        let seconds = self.seconds * (1.0 + part.max(LEAST_PART));
        Duration::try_from_secs_f64(seconds)
            .unwrap_or(TARGET)
            .clamp(LEAST_BUDGET, TARGET)
    }
}

/// Seconds that a prompt token adds to a step.
#[derive(Debug, Clone, Copy)]
struct Price {
    token: f64,
    /// For each [`DEPTH`] positions behind it.
    depth: f64,
}

/// So far in its prompt a token may well cost twice what it does in the beginning.
const DEPTH: f64 = 4096.0;

/// Less than any device takes, so that nothing is divided by zero.
const LEAST_PRICE: f64 = 1e-9;

impl Price {
    fn new(token: f64) -> Self {
        Self {
            token: token.max(LEAST_PRICE),
            depth: 0.0,
        }
    }

    fn of_token(self, behind: usize) -> f64 {
        self.token + self.depth * behind as f64 / DEPTH
    }

    fn of(self, shape: StepShape) -> f64 {
        shape.prompt_tokens as f64 * self.of_token(shape.depth)
    }

    /// The prompt tokens of a step cost so much. Too low a price is corrected at once, too high a one by half
    /// of it, because a step that is too long is felt. A single step does not say everything. (Normalized
    /// least mean squares, of Widrow and Hoff.)
    fn learn(&mut self, shape: StepShape, cost: f64, weight: f64) {
        let believed = self.of(shape);
        let error = cost.clamp(believed / 4.0, believed * 2.0) - believed;
        let gain = weight * if error > 0.0 { 1.0 } else { 0.5 };
        let tokens = shape.prompt_tokens as f64;
        let reach = tokens * shape.depth as f64 / DEPTH;
        let step = gain * error / (tokens * tokens + reach * reach);
        self.token = (self.token + step * tokens).max(LEAST_PRICE);
        self.depth = (self.depth + step * reach).max(0.0);
    }
}

#[cfg(test)]
mod tests;
