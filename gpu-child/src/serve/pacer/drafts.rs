//! Durations of steps by their number of rows, from the steps that serve. They decide how many drafts a step has.
//!
//! Steps with prompts are not measured. A device may be slower in its first steps of a size, because it records them: those
//! are not counted, and no single step raises a mean by much. Sizes that were not measured are assumed to take a little longer
//! than smaller ones. A measurement that speaks against drafts is forgotten gradually, or it would never be repeated.

use crate::scheduler::{SIZES, StepSeconds, StepShape};
use std::time::Duration;

/// The part of a new measurement in the mean of all. A single step is noisy.
const GAIN: f64 = 0.2;

/// Maximum that a step counts for, beside the present mean.
const GROWTH: f64 = 2.0;

/// Steps of a size that are not counted.
const FIRST_STEPS: u8 = 3;

/// Part by which a step of twice the rows is assumed to be longer, until it was measured. It reads the same weights.
const ASSUMED_RISE: f64 = 0.1;

/// Part by which a step after the end of the one before is assumed to be longer than one that was launched ahead.
const ASSUMED_WAIT: f64 = 0.1;

/// Duration of a step of the draft model beside one of the other, until it was measured. It is much smaller.
const ASSUMED_MODEL: f64 = 0.2;

/// The part of the assumption in a mean after a step of a smaller size.
const FORGETTING: f64 = 1.0 / 1024.0;

#[derive(Debug, Default)]
pub(super) struct DraftTimes {
    ahead: [Mean; SIZES],
    waited: [Mean; SIZES],
    model: [Mean; SIZES],
}

/// Mean of durations in seconds, without the first ones.
#[derive(Debug, Clone, Copy, Default)]
struct Mean {
    seconds: Option<f64>,
    skipped: u8,
}

impl Mean {
    /// `is_first`: nothing was measured before, so the shortest of the first ones counts too.
    fn observe(&mut self, seconds: f64, is_first: bool) {
        if self.skipped < FIRST_STEPS {
            self.skipped += 1;
            let first = is_first.then_some(seconds);
            self.seconds = self.seconds.map(|it| it.min(seconds)).or(first);
            return;
        }
        let mean = self.seconds.unwrap_or(seconds);
        self.seconds = Some(mean + GAIN * (seconds.min(GROWTH * mean) - mean));
    }

    fn forget_excess(&mut self, assumed: f64) {
        if let Some(seconds) = &mut self.seconds
            && *seconds > assumed
        {
            *seconds += FORGETTING * (assumed - *seconds);
        }
    }
}

/// Measured means, and assumed ones of other sizes: as the smallest measured one below it, and rising above. `None` without any.
fn complete(means: &[Mean; SIZES]) -> Option<[f64; SIZES]> {
    let first = means.iter().find_map(|mean| mean.seconds)?;
    let mut last = None;
    Some(means.map(|mean| {
        let assumed = last.map(|seconds| seconds * (1.0 + ASSUMED_RISE));
        last = mean.seconds.or(assumed);
        last.unwrap_or(first)
    }))
}

impl DraftTimes {
    /// Records a step and the time from the end of the step before it. `is_ahead`: it was launched before that end.
    pub(super) fn observe(&mut self, shape: StepShape, is_ahead: bool, took: Duration) {
        let Some(size) = StepSeconds::size_of(shape.decoding).filter(|_| shape.prompt_tokens == 0)
        else {
            return;
        };
        let is_first = self.seconds() == StepSeconds::UNKNOWN;
        let means = match is_ahead {
            true => &mut self.ahead,
            false => &mut self.waited,
        };
        means[size].observe(took.as_secs_f64(), is_first);
        let Some(seconds) = self.waited[size].seconds.or(self.ahead[size].seconds) else {
            return;
        };
        for (above, mean) in self.waited[size..].iter_mut().enumerate().skip(1) {
            mean.forget_excess(seconds * (1.0 + ASSUMED_RISE * above as f64));
        }
        for mean in &mut self.model {
            mean.forget_excess(seconds * ASSUMED_MODEL);
        }
    }

    /// Records the duration of a step of the draft model with so many sequences.
    pub(super) fn observe_model(&mut self, sequences: usize, took: Duration) {
        if let Some(size) = StepSeconds::size_of(sequences) {
            self.model[size].observe(took.as_secs_f64(), false);
        }
    }

    pub(super) fn seconds(&self) -> StepSeconds {
        let (ahead, waited) = (complete(&self.ahead), complete(&self.waited));
        let Some(any) = waited.or(ahead) else {
            return StepSeconds::UNKNOWN;
        };
        let ahead = ahead.unwrap_or(any);
        let waited = waited.unwrap_or(ahead.map(|it| it * (1.0 + ASSUMED_WAIT)));
        let model = complete(&self.model).unwrap_or(waited.map(|it| it * ASSUMED_MODEL));
        StepSeconds {
            ahead: ahead.map(|it| it as f32),
            waited: waited.map(|it| it as f32),
            model: model.map(|it| it as f32),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(decoding: usize, prompt_tokens: usize) -> StepShape {
        StepShape {
            decoding,
            prompt_tokens,
            ..StepShape::default()
        }
    }

    fn micros(micros: u64) -> Duration {
        Duration::from_micros(micros)
    }

    fn about(found: f32, expected: f32) {
        assert!((found / expected - 1.0).abs() < 0.02, "{found}, {expected}");
    }

    #[test]
    fn durations_are_measured_by_rows_and_others_are_assumed() {
        let mut times = DraftTimes::default();
        assert_eq!(times.seconds(), StepSeconds::UNKNOWN);
        for _ in 0..60 {
            times.observe(shape(1, 0), true, micros(1000));
            times.observe(shape(1, 100), true, micros(90_000));
            times.observe(shape(7, 0), false, micros(1500));
            times.observe(shape(200, 0), true, micros(9000));
        }
        let seconds = times.seconds();
        about(seconds.ahead[0], 1.0e-3);
        about(seconds.ahead[2], 1.21e-3);
        // None below it was measured.
        about(seconds.waited[0], 1.5e-3);
        about(seconds.waited[3], 1.5e-3);
        about(seconds.waited[4], 1.65e-3);
        about(seconds.model[3], 0.3e-3);
        for _ in 0..20 {
            times.observe_model(1, micros(500));
        }
        about(times.seconds().model[0], 0.5e-3);
    }

    #[test]
    fn steps_that_a_device_records_do_not_count_and_single_slow_ones_count_little() {
        let mut times = DraftTimes::default();
        let mut observe = |rows, micros: u64| {
            times.observe(shape(rows, 0), false, Duration::from_micros(micros));
            times.seconds()
        };
        about(observe(1, 3000).waited[0], 3e-3);
        about(observe(1, 1000).waited[0], 1e-3);
        for _ in 0..FIRST_STEPS {
            about(observe(4, 90_000).waited[2], 1.21e-3);
        }
        for _ in 0..40 {
            observe(4, 1500);
        }
        about(observe(4, 1500).waited[2], 1.5e-3);
        assert!(observe(4, 1_000_000).waited[2] < 1.9e-3);
    }

    #[test]
    fn a_duration_that_speaks_against_drafts_is_forgotten() {
        let mut times = DraftTimes::default();
        for _ in 0..60 {
            times.observe(shape(1, 0), true, micros(1000));
            times.observe(shape(8, 0), false, micros(9000));
            times.observe_model(1, micros(20_000));
        }
        assert!(times.seconds().waited[3] > 8e-3);
        let steps = (0..20_000).position(|_| {
            times.observe(shape(1, 0), true, micros(1000));
            let seconds = times.seconds();
            seconds.waited[3] < 2e-3 && seconds.model[0] < 1e-3
        });
        assert!(
            steps.is_some_and(|it| (500..10_000).contains(&it)),
            "{steps:?}"
        );
    }
}
