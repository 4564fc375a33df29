//! Durations of recent steps, for the detection of an overdue step while it runs.
//!
//! NVIDIA's driver stops a card while it handles a fault, and this process is notified afterwards
//! (`bench/results/devices.md`). If the worker has another device, streams need not wait for that.

use crate::scheduler::StepShape;
use std::collections::VecDeque;
use std::time::Duration;

/// A step is overdue after this multiple of the longest step of its size.
const FACTOR: u32 = 8;

/// Minimum duration of an overdue step: other load of the machine delays a thread by some milliseconds.
const LEAST: Duration = Duration::from_millis(15);

/// Remembered steps of each size, and the number required for a prediction.
const KEPT: usize = 16;
const KNOWN: usize = 8;

/// Durations by size class: 1 row, 2 to 3, 4 to 7, and so on.
#[derive(Debug, Default)]
pub(super) struct StepTimes(Vec<VecDeque<Duration>>);

impl StepTimes {
    pub(super) fn observe(&mut self, shape: StepShape, took: Duration) {
        let size = size(shape);
        if self.0.len() <= size {
            self.0.resize_with(size + 1, VecDeque::new);
        }
        let of_size = &mut self.0[size];
        if of_size.len() == KEPT {
            of_size.pop_front();
        }
        of_size.push_back(took);
    }

    /// Duration after which such a step is overdue; `None` with too few samples.
    pub(super) fn patience(&self, shape: StepShape) -> Option<Duration> {
        let of_size = self.0.get(size(shape))?;
        let longest = of_size.iter().max().filter(|_| of_size.len() >= KNOWN)?;
        Some(LEAST.max(*longest * FACTOR))
    }
}

fn size(shape: StepShape) -> usize {
    let rows = shape.decoding + shape.prompt_tokens;
    rows.checked_ilog2().unwrap_or(0) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(decoding: usize, prompt_tokens: usize) -> StepShape {
        StepShape {
            decoding,
            prompt_tokens,
            ..StepShape::default()
        }
    }

    fn times(all: &[(StepShape, u64, usize)]) -> StepTimes {
        let mut times = StepTimes::default();
        for (shape, ms, count) in all {
            (0..*count).for_each(|_| times.observe(*shape, Duration::from_millis(*ms)));
        }
        times
    }

    #[test]
    fn a_step_is_overdue_by_the_longest_of_its_size() {
        let times = times(&[
            (rows(32, 0), 5, 7),
            (rows(40, 10), 9, 1),
            (rows(1, 0), 1, 16),
        ]);
        let eight = Some(Duration::from_millis(72));
        assert_eq!(times.patience(rows(63, 0)), eight);
        assert_eq!(times.patience(rows(1, 31)), eight);
        assert_eq!(times.patience(rows(1, 0)), Some(LEAST));
    }

    #[test]
    fn a_size_that_is_hardly_known_has_no_limit() {
        let times = times(&[(rows(32, 0), 5, 7), (rows(64, 0), 5, 16)]);
        assert_eq!(times.patience(rows(32, 0)), None);
        assert_eq!(times.patience(rows(128, 0)), None);
    }

    #[test]
    fn what_is_long_ago_counts_no_more() {
        let times = times(&[(rows(8, 0), 100, 16), (rows(8, 0), 10, 16)]);
        let patience = Duration::from_millis(80);
        assert_eq!(times.patience(rows(8, 0)), Some(patience));
    }
}
