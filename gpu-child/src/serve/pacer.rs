//! Budget of prompt tokens per step, so that steps stay short.
//!
//! A step cannot be interrupted: cancellations, and the next tokens of all other requests, wait for it. Chunking
//! changes no result, so the chunk size may follow the speed of the machine. Pure: durations are arguments.
//!
//! If no sequence decodes, only the prompts themselves wait: chunks are as large as the latency of a cancellation
//! allows. If sequences decode, [`Beside`] keeps a time budget.

mod beside;
mod drafts;

use crate::scheduler::{StepDemand, StepSeconds, StepShape};
use beside::Beside;
use drafts::DraftTimes;
use std::time::Duration;

/// Target duration of a step: shorter than the time within which a cancelled request must stop, with a margin for the
/// transit.
pub(super) const TARGET: Duration = Duration::from_millis(70);

/// Hysteresis: chunks shrink if a step exceeds the target by this factor, and grow only if it stays below by more. The
/// last tokens of a prompt take longer than the first, and chunks that followed each step would have ragged sizes.
const BAND: f64 = 1.15;

/// Larger chunks are multiples of this: twice the rows of a device's largest blocks.
const ROUND_TOKENS: u32 = 256;

/// Smaller chunks would read all weights for little work.
const MIN_TOKENS: u32 = 8;

#[derive(Debug)]
pub(super) struct Pacer {
    alone: Alone,
    beside: Beside,
    drafts: DraftTimes,
}

impl Pacer {
    /// Pacer that starts with `first_tokens`. `max_tokens`: the supervisor's limit. `budget`: the operator's time for
    /// steps that decode.
    pub(super) fn new(first_tokens: u32, max_tokens: u32, budget: Option<Duration>) -> Self {
        let max_tokens = max_tokens.max(1);
        Self {
            alone: Alone::new(first_tokens, max_tokens),
            beside: Beside::new(max_tokens, budget),
            drafts: DraftTimes::default(),
        }
    }

    /// Prompt tokens allowed in the next step. 0 only occasionally, and only if a sequence decodes.
    pub(super) fn prompt_tokens(&mut self, demand: StepDemand) -> u32 {
        match demand.decoding {
            0 => self.alone.tokens,
            _ => self.beside.prompt_tokens(demand),
        }
    }

    /// Records the duration of a step.
    pub(super) fn observe(&mut self, shape: StepShape, took: Duration) {
        if shape.decoding == 0 {
            self.alone.observe(shape.prompt_tokens, took);
        }
        self.beside.observe(shape, took);
    }

    /// Records the time of a step from the end of the one before it. `is_ahead`: it was launched before that end.
    pub(super) fn observe_rows(&mut self, shape: StepShape, is_ahead: bool, took: Duration) {
        self.drafts.observe(shape, is_ahead, took);
    }

    /// Records the duration of a step of the draft model with so many sequences, and a row of each.
    pub(super) fn observe_draft_step(&mut self, sequences: usize, took: Duration) {
        self.drafts.observe_model(sequences, took);
    }

    /// Durations of steps by their number of rows.
    pub(super) fn step_seconds(&self) -> StepSeconds {
        self.drafts.seconds()
    }

    /// Time budget of a step with decoding sequences and prompts, if known.
    pub(super) fn budget(&self) -> Option<Duration> {
        self.beside.budget()
    }
}

/// Steps without decoding sequences.
#[derive(Debug)]
struct Alone {
    tokens: u32,
    max_tokens: u32,
}

impl Alone {
    fn new(first_tokens: u32, max_tokens: u32) -> Self {
        Self {
            tokens: first_tokens.min(max_tokens),
            max_tokens,
        }
    }

    /// Records the duration of a step with this many prompt tokens.
    fn observe(&mut self, prompt_tokens: usize, took: Duration) {
        let ratio = TARGET.as_secs_f64() / took.as_secs_f64().max(1e-6);
        // A partial step says little about the capacity.
        let was_full = prompt_tokens >= self.tokens as usize;
        if prompt_tokens > 0 && (ratio * BAND < 1.0 || (was_full && ratio > BAND)) {
            let wanted = (f64::from(self.tokens) * ratio.clamp(0.5, 2.0)) as u32;
            let min_tokens = MIN_TOKENS.min(self.max_tokens);
            let round = match wanted / ROUND_TOKENS {
                0 | 1 => wanted,
                whole => whole * ROUND_TOKENS,
            };
            self.tokens = round.clamp(min_tokens, self.max_tokens);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Simulates a machine with this many microseconds per token, on which every step is full.
    fn settle(pacer: &mut Alone, us_per_token: u64) -> Duration {
        let mut took = Duration::ZERO;
        for _ in 0..20 {
            let tokens = pacer.tokens;
            took = Duration::from_micros(us_per_token * u64::from(tokens));
            pacer.observe(tokens as usize, took);
        }
        took
    }

    #[test]
    fn steps_become_as_long_as_they_may_be() {
        for us_per_token in [200, 1000, 4000] {
            let took = settle(&mut Alone::new(32, 4096), us_per_token).as_millis();
            assert!(
                (50..=70).contains(&took),
                "{took} ms at {us_per_token} us a token"
            );
        }
    }

    #[test]
    fn they_follow_a_machine_that_changes_its_speed() {
        let mut pacer = Alone::new(32, 512);
        settle(&mut pacer, 100);
        assert_eq!(pacer.tokens, 512, "the supervisor's limit");
        assert!(settle(&mut pacer, 3000).as_millis() <= 70);
        settle(&mut pacer, 1_000_000);
        assert_eq!(pacer.tokens, 8);
    }

    #[test]
    fn a_step_within_the_band_keeps_its_chunk_and_a_longer_one_takes_a_whole_multiple() {
        let mut pacer = Alone::new(1792, 1792);
        pacer.observe(1792, Duration::from_millis(79));
        assert_eq!(pacer.tokens, 1792);
        pacer.observe(1792, Duration::from_millis(90));
        assert_eq!(pacer.tokens, 1280);
        pacer.observe(1280, Duration::from_millis(35));
        assert_eq!(pacer.tokens, 1792);
    }

    #[test]
    fn short_steps_with_few_tokens_change_nothing() {
        let mut pacer = Alone::new(32, 512);
        pacer.observe(3, Duration::from_micros(10));
        pacer.observe(0, Duration::from_secs(1));
        assert_eq!(pacer.tokens, 32);
    }
}
