//! Cost of drafts, from the durations of steps that serve.
//!
//! A step of n sequences takes t without drafts, and t + d r with d of them. A step yields n tokens, so the cost of a draft
//! is r / (t / n). Steps with prompts are not measured.
//!
//! A step of a draft model makes a draft for each of the n sequences in the time m, so it costs m / t for each draft.
//!
//! A device may be slower in its first steps of a size, because it records them. They are not counted, and no single step
//! raises a cost by much. A cost that is too high for any draft is forgotten gradually, or it would never be measured
//! again.

use crate::scheduler::{DraftCosts, StepShape};
use std::time::Duration;

/// The part of a new measurement in the mean of all. A single step is noisy.
const GAIN: f64 = 0.2;

/// r / t until steps with drafts were measured, and the maximum of that cost. A step reads all weights, so one more row is
/// cheap, unless there are many.
const ASSUMED_ROW: f64 = 0.1;
const MOST_ASSUMED: f64 = 0.6;

/// m / t until steps of the draft model were measured. A draft model is much smaller than the other.
const ASSUMED_MODEL: f64 = 0.2;

/// Steps with drafts of a size that are not counted.
const FIRST_STEPS: u8 = 3;

/// Maximum cost that a step counts for, beside the present one.
const GROWTH: f64 = 3.0;
const LEAST_GROWTH: f64 = 0.05;

/// Least duration of a step, in seconds.
const SHORTEST: f64 = 1e-9;

/// The part of the assumption in the cost after a step without drafts.
const FORGETTING: f64 = 1.0 / 1024.0;

/// Classes of a step's number of rows: 1, 2 to 3, 4 to 7, and so on. The last has all others.
const SIZES: usize = 8;

#[derive(Debug, Default)]
pub(super) struct DraftPrices([Class; DraftCosts::CLASSES]);

/// Steps of about as many sequences.
#[derive(Debug, Clone, Copy, Default)]
struct Class {
    /// t in seconds.
    step: Option<f64>,
    /// r / t, once it was measured.
    row: Option<f64>,
    sequences: usize,
    /// m in seconds, and the number of steps of the draft model up to those that are counted.
    model: Option<f64>,
    first_model_steps: u8,
    /// Steps with drafts by size, up to those that are counted.
    first_steps: [u8; SIZES],
}

impl Class {
    fn observe(&mut self, shape: StepShape, seconds: f64) {
        self.sequences = shape.decoding - shape.drafts;
        let Some(step) = self.step else {
            // Not zero, because others are divided by it.
            self.step = (shape.drafts == 0).then_some(seconds.max(SHORTEST));
            return;
        };
        let assumed = self.assumed_row();
        if shape.drafts == 0 {
            self.step = Some(step + GAIN * (seconds.min(2.0 * step) - step));
            self.row = self.row.map(|row| row + FORGETTING * (assumed - row));
            let assumed = ASSUMED_MODEL * step;
            self.model = self
                .model
                .map(|model| model + FORGETTING * (assumed - model));
            return;
        }
        let size = (shape.decoding.ilog2() as usize).min(SIZES - 1);
        let first_steps = &mut self.first_steps[size];
        if *first_steps < FIRST_STEPS {
            *first_steps += 1;
            return;
        }
        let row = self.row.unwrap_or(assumed);
        let seen = (seconds - step) / step / shape.drafts as f64;
        let most = GROWTH * row + LEAST_GROWTH / self.sequences as f64;
        self.row = Some(row + GAIN * (seen.clamp(0.0, most) - row));
    }

    fn observe_model(&mut self, seconds: f64) {
        if self.first_model_steps < FIRST_STEPS {
            self.first_model_steps += 1;
            return;
        }
        let assumed = self.step.map_or(seconds, |step| ASSUMED_MODEL * step);
        let model = self.model.unwrap_or(assumed);
        let most = GROWTH * model;
        self.model = Some(model + GAIN * (seconds.min(most) - model));
    }

    fn model_cost(&self) -> f64 {
        match (self.step, self.model) {
            (Some(step), Some(model)) => model / step,
            _ => ASSUMED_MODEL,
        }
    }

    fn assumed_row(&self) -> f64 {
        ASSUMED_ROW.min(MOST_ASSUMED / self.sequences as f64)
    }

    fn cost(&self) -> f64 {
        match self.step {
            Some(_) => self.row.unwrap_or(self.assumed_row()) * self.sequences as f64,
            None => f64::INFINITY,
        }
    }
}

impl DraftPrices {
    /// Records the duration of a step.
    pub(super) fn observe(&mut self, shape: StepShape, took: Duration) {
        let class = DraftCosts::class_of(shape.decoding - shape.drafts);
        if let Some(class) = class.filter(|_| shape.prompt_tokens == 0) {
            self.0[class].observe(shape, took.as_secs_f64());
        }
    }

    /// Records the duration of a step of the draft model beside so many decoding sequences.
    pub(super) fn observe_model(&mut self, decoding: usize, took: Duration) {
        if let Some(class) = DraftCosts::class_of(decoding) {
            self.0[class].observe_model(took.as_secs_f64());
        }
    }

    /// Costs of a step of the draft model.
    pub(super) fn model_costs(&self) -> DraftCosts {
        DraftCosts(self.0.each_ref().map(|class| class.model_cost() as f32))
    }

    /// Costs in the next step; infinite before a step without drafts was measured.
    pub(super) fn costs(&self) -> DraftCosts {
        DraftCosts(self.0.each_ref().map(|class| class.cost() as f32))
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
        for sequences in [1, 8] {
            prices.observe(shape(sequences, 0, 0), Duration::from_millis(5));
        }
        assert_eq!(prices.costs().0[0], ASSUMED_ROW as f32);
        assert_eq!(prices.costs().0[3], MOST_ASSUMED as f32);
    }

    #[test]
    fn steps_that_a_device_records_do_not_count_and_single_slow_ones_count_little() {
        let mut prices = DraftPrices::default();
        let mut observe = |drafts, micros| {
            prices.observe(shape(1, drafts, 0), Duration::from_micros(micros));
            prices.costs().0[0]
        };
        observe(0, 1000);
        for drafts in [7, 15] {
            for _ in 0..FIRST_STEPS {
                assert_eq!(observe(drafts, 9000), ASSUMED_ROW as f32);
            }
        }
        for _ in 0..40 {
            observe(7, 1140);
        }
        let cost = observe(15, 30_000);
        assert!((0.02..0.05).contains(&cost), "{cost}");
    }

    #[test]
    fn the_model_s_cost_is_measured_and_a_single_slow_step_counts_little() {
        let mut prices = DraftPrices::default();
        prices.observe(shape(1, 0, 0), Duration::from_millis(10));
        let mut observe = |micros| {
            prices.observe_model(1, Duration::from_micros(micros));
            prices.model_costs().0[0]
        };
        for _ in 0..FIRST_STEPS {
            assert_eq!(observe(1_000_000), ASSUMED_MODEL as f32);
        }
        let slow = observe(1_000_000);
        assert!(slow < 2.0 * ASSUMED_MODEL as f32, "{slow}");
        for _ in 0..60 {
            observe(500);
        }
        let settled = observe(500);
        assert!((settled - 0.05).abs() < 0.001, "{settled}");
    }

    #[test]
    fn a_cost_of_the_model_without_drafts_is_forgotten() {
        let mut prices = DraftPrices::default();
        prices.observe(shape(1, 0, 0), Duration::from_millis(10));
        for _ in 0..60 {
            prices.observe_model(1, Duration::from_millis(20));
        }
        assert!(prices.model_costs().0[0] > 1.9);
        let steps = (0..10_000).position(|_| {
            prices.observe(shape(1, 0, 0), Duration::from_millis(10));
            prices.model_costs().0[0] < 0.5
        });
        assert!(
            steps.is_some_and(|steps| (500..4000).contains(&steps)),
            "{steps:?}"
        );
    }

    #[test]
    fn a_cost_without_drafts_is_forgotten() {
        let mut prices = DraftPrices::default();
        let mut observe = |drafts, micros| {
            prices.observe(shape(1, drafts, 0), Duration::from_micros(micros));
            prices.costs().0[0]
        };
        observe(0, 1000);
        for _ in 0..60 {
            observe(1, 2500);
        }
        assert!(observe(1, 2500) > 1.4);
        let steps = (0..10_000).position(|_| observe(0, 1000) < 0.7);
        assert!(
            steps.is_some_and(|steps| (500..2000).contains(&steps)),
            "{steps:?}"
        );
    }
}
