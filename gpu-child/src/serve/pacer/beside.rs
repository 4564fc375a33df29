//! Prompts beside sequences that decode, within a time budget: the duration of a step is a stream's time between two
//! tokens.
//!
//! No benchmark runs in advance: the model is fitted to the steps that serve.
//!
//! * Steps without prompts show the decode time. If prompts arrive without end, one in [`MIXED_PER_BARE`] steps has
//!   none, so that the figure stays current.
//! * The rest of a step's time is the price of its prompt tokens ([`Price`]), by their depth in their prompts.
//! * The budget is the operator's, or follows the decode time: prompts get three quarters of that ([`LEAST_PART`]), or
//!   more if more requests wait for a first token than decode. Each of them waits too, and the running sequences should
//!   soon be a large batch.
//!
//! Under any budget, a step without prompt tokens is followed by steps with some, so no prompt starves. The choice of
//! the prompts is the scheduler's.

use super::TARGET;
use crate::scheduler::{StepDemand, StepShape};
use std::time::Duration;

/// One tile of rows on a device with tiles: fewer rows cost as much.
const MIN_TOKENS: u32 = 16;

/// Minimum share of prompts without an operator's budget, as a fraction of the decode time.
const LEAST_PART: f64 = 0.75;

/// Minimum budget unless the operator sets one: shorter steps have no benefit for a reader, and cost small models,
/// which have shorter steps, their batch.
const LEAST_BUDGET: Duration = Duration::from_millis(2);

/// Steps with prompts for each one without, which measures the decode time.
const MIXED_PER_BARE: u32 = 32;

/// Steps with prompts if twice or half as many sequences decode as at the last measurement.
const MIXED_PER_BARE_OF_OTHERS: u32 = 4;

#[derive(Debug)]
pub(super) struct Beside {
    max_tokens: u32,
    /// The operator's budget.
    wanted: Option<Duration>,
    /// Budget in force for the last planned step.
    budget: Option<Duration>,
    bare: Option<Bare>,
    /// Steps with prompts since the last one without.
    mixed: u32,
    price: Option<Price>,
    /// Tokens allowed in the last step.
    allowed: u32,
}

/// Steps that only decode.
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

    /// Prompt tokens allowed in a step with decoding sequences.
    pub(super) fn prompt_tokens(&mut self, demand: StepDemand) -> u32 {
        let bare = self.bare.filter(|bare| !self.is_stale(bare, demand));
        let Some(bare) = bare else {
            return 0;
        };
        let budget = self.wanted.unwrap_or_else(|| bare.budget(demand));
        self.budget = Some(budget);
        let left = budget.as_secs_f64() - bare.seconds;
        let tokens = self
            .price
            .map_or(0.0, |it| left / it.of_token(demand.deepest));
        // The cast turns a negative number into 0.
        self.allowed = (tokens as u32).clamp(MIN_TOKENS.min(self.max_tokens), self.max_tokens);
        self.allowed
    }

    /// True if the next step must measure the decode time.
    fn is_stale(&self, bare: &Bare, demand: StepDemand) -> bool {
        let most = match bare.is_like(demand.decoding) {
            true => MIXED_PER_BARE,
            false => MIXED_PER_BARE_OF_OTHERS,
        };
        self.mixed >= most
    }

    /// Records the duration of a step.
    pub(super) fn observe(&mut self, shape: StepShape, took: Duration) {
        let seconds = took.as_secs_f64();
        if shape.drafts > 0 {
            self.drafted(shape, seconds);
            return;
        }
        match (shape.decoding, shape.prompt_tokens, self.bare) {
            (decoding, 0, _) => self.decoded(decoding, seconds),
            // A token alone costs more than beside decoding, where the weights are read anyway.
            (0, _, _) => match &mut self.price {
                Some(price) if price.of(shape) <= seconds => {}
                price => learn(price, shape, seconds, 1.0),
            },
            (_, tokens, bare) => {
                self.mixed += 1;
                let alone = bare.map_or(0.0, |bare| bare.seconds);
                // A partial step says little about a full one.
                let weight = (tokens as f64 / f64::from(self.allowed.max(1))).min(1.0);
                learn(&mut self.price, shape, (seconds - alone).max(0.0), weight);
            }
        }
    }

    /// Records the duration of a step with drafts. It is longer than others of its sequences, so it is their decode time only
    /// until another one was measured.
    fn drafted(&mut self, shape: StepShape, seconds: f64) {
        if shape.prompt_tokens > 0 {
            return;
        }
        self.mixed = 0;
        let sequences = shape.decoding - shape.drafts;
        if !self.bare.is_some_and(|bare| bare.is_like(sequences)) {
            self.bare = Some(Bare { sequences, seconds });
        }
    }

    /// Records the duration of a step without prompts.
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

    /// A single long step is mostly caused by other load of the machine.
    fn and(self, new: Self) -> Self {
        let more = new.seconds.min(2.0 * self.seconds) - self.seconds;
        let part = if more > 0.0 { 0.25 } else { 0.5 };
        Self {
            sequences: new.sequences,
            seconds: self.seconds + part * more,
        }
    }

    /// Budget limited by the maximum wait of a cancellation.
    fn budget(self, demand: StepDemand) -> Duration {
        let part = demand.prompts as f64 / demand.decoding as f64;
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
    /// Addition for each [`DEPTH`] preceding positions.
    depth: f64,
}

/// Depth in a prompt at which a token may cost twice as much as at the beginning.
const DEPTH: f64 = 4096.0;

/// Positive lower bound, below any device's price: avoids a division by zero.
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

    /// Fits the price to the measured cost of a step's prompt tokens. A low price is corrected fully, a high one by
    /// half, because a long step is noticeable. A single step is noisy. (Normalized least mean squares, Widrow and
    /// Hoff.)
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
