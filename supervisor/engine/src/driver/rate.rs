//! Token rate over the last seconds.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Long enough to smooth fluctuations of a batch, short enough to follow its trend.
const RATE_WINDOW: Duration = Duration::from_secs(5);

/// Least time between two samples. It bounds their number at any heartbeat rate.
const RATE_RESOLUTION: Duration = Duration::from_millis(50);

#[derive(Debug, Default)]
pub(super) struct Rate {
    /// Times and total tokens at each, oldest first.
    samples: VecDeque<(Instant, u64)>,
}

impl Rate {
    pub(super) fn note(&mut self, now: Instant, total: u64) {
        while let Some((at, _)) = self.samples.front()
            && now.saturating_duration_since(*at) > RATE_WINDOW
        {
            self.samples.pop_front();
        }
        let newest = self.samples.back().map(|(at, _)| *at);
        if newest.is_none_or(|at| now.saturating_duration_since(at) >= RATE_RESOLUTION) {
            self.samples.push_back((now, total));
        }
    }

    pub(super) fn per_second(&self, now: Instant) -> f64 {
        let in_window =
            |(at, _): &&(Instant, u64)| now.saturating_duration_since(*at) <= RATE_WINDOW;
        let (Some((from, before)), Some((to, after))) =
            (self.samples.iter().find(in_window), self.samples.back())
        else {
            return 0.0;
        };
        let seconds = to.saturating_duration_since(*from).as_secs_f64();
        if seconds > 0.0 {
            after.saturating_sub(*before) as f64 / seconds
        } else {
            0.0
        }
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::disallowed_methods, reason = "a test begins at some moment")]

    use super::*;

    #[test]
    fn the_rate_follows_the_last_seconds() {
        let mut rate = Rate::default();
        let start = Instant::now();
        assert_eq!(rate.per_second(start), 0.0);
        for beat in 0..100_u32 {
            let now = start + Duration::from_millis(100) * beat;
            rate.note(now, u64::from(beat) * 50);
        }
        let now = start + Duration::from_millis(9_900);
        assert!(
            (rate.per_second(now) - 500.0).abs() < 1.0,
            "{}",
            rate.per_second(now)
        );
        assert!(rate.samples.len() <= 52);
        assert_eq!(rate.per_second(now + RATE_WINDOW * 2), 0.0);
    }
}
