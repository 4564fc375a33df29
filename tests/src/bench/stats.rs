//! Statistics of measured times.

use serde_json::{Value, json};
use std::time::Duration;

/// Times in the order of measurement.
#[derive(Debug, Clone, Default)]
pub struct Latencies(Vec<Duration>);

impl Latencies {
    pub fn push(&mut self, latency: Duration) {
        self.0.push(latency);
    }

    /// Visits times in the order of measurement.
    pub fn each(&self, take: impl FnMut(Duration)) {
        self.0.iter().copied().for_each(take);
    }

    /// Smallest time that at least `share` of all do not exceed (nearest rank).
    #[must_use]
    pub fn quantile(&self, share: f64) -> Duration {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        let rank = (share * sorted.len() as f64).ceil() as usize;
        sorted
            .get(rank.saturating_sub(1))
            .copied()
            .unwrap_or_default()
    }

    /// Milliseconds.
    #[must_use]
    pub fn summary(&self) -> Value {
        let ms = |share| (self.quantile(share).as_secs_f64() * 1e6).round() / 1e3;
        json!({
            "count": self.0.len(), "p50_ms": ms(0.5), "p90_ms": ms(0.9), "p99_ms": ms(0.99),
            "max_ms": ms(1.0),
        })
    }
}
