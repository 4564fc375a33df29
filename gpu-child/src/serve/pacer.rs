//! The number of prompt tokens that a step may hold so that it stays short.
//!
//! A step cannot be interrupted: a cancellation, and the next token of all other requests, wait for
//! it. Chunking changes no result, so the size of a chunk is free to follow the speed of the
//! machine. Pure: durations come as arguments.
//!
//! Where nothing decodes, nobody waits for a token but those whose prompts these are: chunks are as
//! large as a cancellation allows. Beside sequences that decode, [`Beside`] keeps a budget.

mod beside;

use crate::scheduler::{Company, StepShape};
use beside::Beside;
use std::time::Duration;

/// Length of a step: shorter than the time within which a cancelled request must stop, with room
/// for the way there.
const TARGET: Duration = Duration::from_millis(70);

/// A step may be longer than wanted by this factor before chunks become smaller, and has to be shorter by more than that
/// before they grow: the tokens of the longest steps take more time than those of the first, and chunks that follow each
/// of them would be of ragged sizes.
const BAND: f64 = 1.15;

/// Larger chunks are whole multiples of this: rows of the largest blocks of a device, twice.
const ROUND_TOKENS: u32 = 256;

/// Smaller chunks would read all weights for almost nothing.
const MIN_TOKENS: u32 = 8;

#[derive(Debug)]
pub(super) struct Pacer {
    alone: Alone,
    beside: Beside,
}

impl Pacer {
    /// Begins with `first_tokens`; `max_tokens` is what the supervisor allows, and `budget` what it
    /// wants of steps that decode.
    pub(super) fn new(first_tokens: u32, max_tokens: u32, budget: Option<Duration>) -> Self {
        let max_tokens = max_tokens.max(1);
        Self {
            alone: Alone::new(first_tokens, max_tokens),
            beside: Beside::new(max_tokens, budget),
        }
    }

    /// Prompt tokens that the next step may hold. None only where something decodes, and now and then.
    pub(super) fn prompt_tokens(&mut self, company: Company) -> u32 {
        match company.decoding {
            0 => self.alone.tokens,
            _ => self.beside.prompt_tokens(company),
        }
    }

    /// A step took so long.
    pub(super) fn observe(&mut self, shape: StepShape, took: Duration) {
        if shape.decoding == 0 {
            self.alone.observe(shape.prompt_tokens, took);
        }
        self.beside.observe(shape, took);
    }

    /// What a step may take that decodes and has prompts, too, as far as it is known.
    pub(super) fn budget(&self) -> Option<Duration> {
        self.beside.budget()
    }
}

/// Steps in which nothing decodes.
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

    /// A step with this many prompt tokens took so long.
    fn observe(&mut self, prompt_tokens: usize, took: Duration) {
        let ratio = TARGET.as_secs_f64() / took.as_secs_f64().max(1e-6);
        // A step that was not full says little about how much more would have been possible.
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

    /// A machine with this many microseconds a token, on which every step is full.
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
