//! Histogram of the time between tokens of a stream, updated by the driver with each token.

use std::time::Duration;

/// Upper bounds of the buckets, in seconds, in powers of two: from 1 ms to the replay of a long prompt on a CPU.
const BOUNDS: [f64; 18] = [
    0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048, 4.096,
    8.192, 16.384, 32.768, 65.536, 131.072,
];

/// Histogram. Only the driver updates it, so it needs no lock.
#[derive(Debug, Clone, Copy, Default)]
pub struct Waits {
    /// Counts by bucket. The last one has no upper bound.
    counts: [u64; BOUNDS.len() + 1],
    sum: Duration,
}

impl Waits {
    pub fn observe(&mut self, wait: Duration) {
        let seconds = wait.as_secs_f64();
        self.counts[BOUNDS.partition_point(|bound| *bound < seconds)] += 1;
        self.sum = self.sum.saturating_add(wait);
    }

    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    #[must_use]
    pub fn seconds(&self) -> f64 {
        self.sum.as_secs_f64()
    }

    /// Upper bound and count of each bucket. Counts are not cumulative.
    #[must_use]
    pub fn buckets(&self) -> Vec<(f64, u64)> {
        let bounds = BOUNDS.into_iter().chain([f64::INFINITY]);
        bounds.zip(self.counts).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_counted_in_the_first_bucket_that_holds_it() {
        let mut waits = Waits::default();
        for milliseconds in [1, 3, 4, 600_000] {
            waits.observe(Duration::from_millis(milliseconds));
        }
        let counted: Vec<_> = waits.buckets().into_iter().filter(|it| it.1 > 0).collect();
        assert_eq!(counted, [(0.001, 1), (0.004, 2), (f64::INFINITY, 1)]);
        assert_eq!(waits.count(), 4);
        assert!((waits.seconds() - 600.008).abs() < 1e-9);
    }
}
