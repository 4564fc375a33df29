//! Durations of steps by their number of rows, from the steps that serve. They decide how many drafts a step has.
//!
//! Steps with prompts are not measured. A device may be slower in its first steps of a size, because it records them: those
//! are not counted, and no single step raises a mean by much. Sizes that were not measured are assumed to take a little longer
//! than smaller ones. A measurement that speaks against drafts is forgotten gradually, or it would never be repeated.

use crate::scheduler::{Point, SIZES, StepSeconds, StepShape};
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

/// Mean of durations in seconds, without the first ones, and of the numbers of rows.
#[derive(Debug, Clone, Copy, Default)]
struct Mean {
    seconds: Option<f64>,
    rows: f64,
    skipped: u8,
    /// Shortest of the skipped ones.
    least: Option<f64>,
}

impl Mean {
    /// `is_first`: nothing was measured before, so the shortest of the first ones counts too.
    fn observe(&mut self, rows: usize, seconds: f64, is_first: bool) {
        let rows = rows as f64;
        if self.skipped < FIRST_STEPS {
            self.skipped += 1;
            let least = self.least.map_or(seconds, |least| least.min(seconds));
            self.least = Some(least);
            if is_first || self.seconds.is_some() {
                (self.seconds, self.rows) = (Some(least), rows);
            }
            return;
        }
        let Some(mean) = self.seconds else {
            let least = self.least.unwrap_or(seconds);
            (self.seconds, self.rows) = (Some(seconds.min(least)), rows);
            return;
        };
        self.seconds = Some(mean + GAIN * (seconds.min(GROWTH * mean) - mean));
        self.rows += GAIN * (rows - self.rows);
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
fn complete(means: &[Mean; SIZES]) -> Option<[Point; SIZES]> {
    let first = means.iter().find_map(|mean| mean.seconds)?;
    let mut last = None;
    let mut most = 0.5;
    Some(means.map(|mean| {
        most *= 2.0;
        let assumed = last.map(|seconds| seconds * (1.0 + ASSUMED_RISE));
        last = mean.seconds.or(assumed);
        Point {
            rows: mean.seconds.map_or(most, |_| mean.rows) as f32,
            seconds: last.unwrap_or(first) as f32,
        }
    }))
}

fn times(points: [Point; SIZES], factor: f64) -> [Point; SIZES] {
    points.map(|point| Point {
        seconds: (f64::from(point.seconds) * factor) as f32,
        ..point
    })
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
        means[size].observe(shape.decoding, took.as_secs_f64(), is_first);
        let ahead = self.ahead[size].seconds;
        let ahead = ahead.map(|seconds| seconds * (1.0 + ASSUMED_WAIT));
        let waited = self.waited[size].seconds;
        let Some(seconds) = ahead.into_iter().chain(waited).min_by(f64::total_cmp) else {
            return;
        };
        for (above, mean) in self.waited[size..].iter_mut().enumerate() {
            mean.forget_excess(seconds * (1.0 + ASSUMED_RISE * above as f64));
        }
        for mean in &mut self.model {
            mean.forget_excess(seconds * ASSUMED_MODEL);
        }
    }

    /// Records the duration of a step of the draft model with so many sequences.
    pub(super) fn observe_model(&mut self, sequences: usize, took: Duration) {
        if let Some(size) = StepSeconds::size_of(sequences) {
            self.model[size].observe(sequences, took.as_secs_f64(), false);
        }
    }

    pub(super) fn seconds(&self) -> StepSeconds {
        let (ahead, waited) = (complete(&self.ahead), complete(&self.waited));
        let Some(any) = waited.or(ahead) else {
            return StepSeconds::UNKNOWN;
        };
        let ahead = ahead.unwrap_or(any);
        let waited = waited.unwrap_or(times(ahead, 1.0 + ASSUMED_WAIT));
        let model = complete(&self.model).unwrap_or(times(waited, ASSUMED_MODEL));
        StepSeconds {
            ahead,
            waited,
            model,
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
        about(seconds.ahead(1), 1.0e-3);
        about(seconds.ahead(4), 1.21e-3);
        // None below it was measured.
        about(seconds.waited(1), 1.5e-3);
        about(seconds.waited(7), 1.5e-3);
        about(seconds.waited(16), 1.65e-3);
        about(seconds.model(8), 0.3e-3);
        for _ in 0..20 {
            times.observe_model(1, micros(500));
        }
        about(times.seconds().model(1), 0.5e-3);
    }

    #[test]
    fn durations_between_two_measured_numbers_of_rows_are_between_theirs() {
        let mut times = DraftTimes::default();
        for _ in 0..60 {
            times.observe(shape(9, 0), false, micros(1000));
        }
        for _ in 0..60 {
            times.observe(shape(32, 0), false, micros(2000));
        }
        let seconds = times.seconds();
        about(seconds.waited(9), 1.0e-3);
        about(seconds.waited(16), (1.0 + 7.0 / 23.0) * 1e-3);
    }

    #[test]
    fn steps_that_a_device_records_do_not_count_and_single_slow_ones_count_little() {
        let mut times = DraftTimes::default();
        let mut observe = |rows, micros: u64| {
            times.observe(shape(rows, 0), false, Duration::from_micros(micros));
            times.seconds()
        };
        about(observe(1, 3000).waited(1), 3e-3);
        about(observe(1, 1000).waited(1), 1e-3);
        for _ in 0..FIRST_STEPS {
            about(observe(4, 90_000).waited(4), 1.21e-3);
        }
        for _ in 0..40 {
            observe(4, 1500);
        }
        about(observe(4, 1500).waited(4), 1.5e-3);
        assert!(observe(4, 1_000_000).waited(4) < 1.9e-3);
    }

    #[test]
    fn a_duration_that_speaks_against_drafts_is_forgotten() {
        let mut times = DraftTimes::default();
        for _ in 0..60 {
            // Of a long context, which has ended.
            times.observe(shape(1, 0), false, micros(8000));
            times.observe(shape(8, 0), false, micros(9000));
            times.observe_model(1, micros(20_000));
        }
        assert!(times.seconds().waited(8) > 8e-3);
        let steps = (0..20_000).position(|_| {
            times.observe(shape(1, 0), true, micros(1000));
            let seconds = times.seconds();
            let waited = [1, 8].map(|rows| seconds.waited(rows));
            waited.iter().all(|it| *it < 2e-3) && seconds.model(1) < 1e-3
        });
        assert!(
            steps.is_some_and(|it| (500..10_000).contains(&it)),
            "{steps:?}"
        );
    }
}
