//! Cost of drafts, from the durations of steps that serve.
//!
//! A step of n sequences takes t without drafts, and t + d r with d of them. A step yields n tokens, so the cost of a draft
//! is r / (t / n). Steps with prompts are not measured.

use crate::scheduler::{DraftCosts, StepShape};
use std::time::Duration;

/// The part of a new measurement in the mean of all. A single step is noisy.
const GAIN: f64 = 0.2;

/// r / t until a step with drafts was measured. A step reads all weights, so one more row is cheap.
const ASSUMED_ROW: f64 = 0.1;

#[derive(Debug, Default)]
pub(super) struct DraftPrices([Class; DraftCosts::CLASSES]);

/// Steps of about as many sequences.
#[derive(Debug, Clone, Copy)]
struct Class {
    /// t in seconds.
    step: Option<f64>,
    /// r / t.
    row: f64,
    sequences: usize,
}

impl Default for Class {
    fn default() -> Self {
        Self {
            step: None,
            row: ASSUMED_ROW,
            sequences: 1,
        }
    }
}

impl DraftPrices {
    /// Records the duration of a step.
    pub(super) fn observe(&mut self, shape: StepShape, took: Duration) {
        let sequences = shape.decoding - shape.drafts;
        let class = DraftCosts::class_of(sequences).filter(|_| shape.prompt_tokens == 0);
        let Some(class) = class.map(|class| &mut self.0[class]) else {
            return;
        };
        let seconds = took.as_secs_f64();
        match (class.step, shape.drafts) {
            (None, 0) => class.step = Some(seconds),
            (Some(step), 0) => class.step = Some(step + GAIN * (seconds.min(2.0 * step) - step)),
            (Some(step), drafts) => {
                let row = (seconds - step) / step / drafts as f64;
                class.row += GAIN * (row.clamp(0.0, 2.0) - class.row);
            }
            (None, _) => {}
        }
        class.sequences = sequences;
    }

    /// Costs in the next step; infinite before a step without drafts was measured.
    pub(super) fn costs(&self) -> DraftCosts {
        let cost = |class: &Class| match class.step {
            Some(_) => (class.row * class.sequences as f64) as f32,
            None => f32::INFINITY,
        };
        DraftCosts(self.0.each_ref().map(cost))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(sequences: usize, drafts: usize, prompt_tokens: usize) -> StepShape {
        StepShape {
            decoding: sequences + drafts,
            drafts,
            prompt_tokens,
            ..StepShape::default()
        }
    }

    /// A device on which a step takes so many microseconds, and more for each row.
    fn settled(step: u64, row: u64) -> DraftCosts {
        let mut prices = DraftPrices::default();
        for _ in 0..40 {
            for sequences in [1, 2, 8] {
                for drafts in [0, 1, 15] {
                    let rows = (sequences + drafts) as u64;
                    let took = Duration::from_micros(step + row * rows);
                    prices.observe(shape(sequences, drafts, 0), took);
                    prices.observe(shape(sequences, drafts, 100), 50 * took);
                }
            }
        }
        prices.costs()
    }

    #[test]
    fn a_draft_costs_its_row_in_parts_of_a_token() {
        let cheap = settled(1000, 10).0;
        let expected = |row: f32, sequences: f32| row * sequences / (1000.0 + row * sequences);
        for (class, sequences) in [(0, 1.0), (1, 2.0), (3, 8.0)] {
            assert!(
                (cheap[class] - expected(10.0, sequences)).abs() < 0.01,
                "{cheap:?}"
            );
            let dear = settled(1000, 500).0[class];
            assert!((dear - expected(500.0, sequences)).abs() < 0.01, "{dear}");
        }
        assert_eq!(cheap[2], f32::INFINITY, "never measured");
    }

    #[test]
    fn a_row_is_assumed_to_be_cheap_until_it_is_measured() {
        let mut prices = DraftPrices::default();
        assert_eq!(
            prices.costs(),
            DraftCosts([f32::INFINITY; DraftCosts::CLASSES])
        );
        prices.observe(shape(1, 0, 0), Duration::from_millis(5));
        assert_eq!(prices.costs().0[0], ASSUMED_ROW as f32);
    }
}
