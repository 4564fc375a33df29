//! What faults cost: the gaps between tokens in which one happened.

use super::storm::Hit;
use std::time::{Duration, Instant};

/// The log line about a fault is read a moment after the fault.
const LATE: Duration = Duration::from_millis(50);

/// Kinds that a deadline has to notice; all others are noticed by the kernel or the protocol.
const SILENT: [&str; 5] = ["hang", "stall", "drip", "stop", "SIGSTOP"];

/// Sorted.
#[derive(Debug, Default)]
pub struct Pauses {
    /// The child died, or spoke nonsense.
    pub deaths: Vec<Duration>,
    /// The child fell silent; the deadline is part of the pause.
    pub silences: Vec<Duration>,
}

impl Pauses {
    /// A gap with several faults in it belongs to the slowest to be noticed.
    pub fn find(gaps: &[(Instant, Instant)], signals: &[Hit], injected: &[Hit]) -> Self {
        let mut pauses = Self::default();
        for (from, to) in gaps {
            let in_gap = |at: Instant| *from <= at && at <= *to + LATE;
            let hits = signals.iter().chain(injected).filter(|(_, at)| in_gap(*at));
            let kinds: Vec<_> = hits.map(|(kind, _)| kind.as_str()).collect();
            if kinds.iter().any(|kind| SILENT.contains(kind)) {
                pauses.silences.push(*to - *from);
            } else if !kinds.is_empty() {
                pauses.deaths.push(*to - *from);
            }
        }
        pauses.deaths.sort_unstable();
        pauses.silences.sort_unstable();
        pauses
    }
}

/// The smallest that at least `share` of all do not exceed (nearest rank).
pub fn quantile(sorted: &[Duration], share: f64) -> Duration {
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted
        .get(rank.saturating_sub(1))
        .copied()
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_is_a_pause_when_a_fault_lies_in_it() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let gaps = [
            (at(0), at(200)),
            (at(300), at(400)),
            (at(500), at(900)),
            (at(1000), at(1100)),
        ];
        let signals = [
            ("SIGKILL".to_owned(), at(350)),
            ("SIGSTOP".to_owned(), at(600)),
        ];
        let injected = [
            ("panic".to_owned(), at(601)),
            ("abort".to_owned(), at(1120)),
        ];
        let pauses = Pauses::find(&gaps, &signals, &injected);
        assert_eq!(pauses.deaths, [Duration::from_millis(100); 2]);
        assert_eq!(pauses.silences, [Duration::from_millis(400)]);
    }

    #[test]
    fn quantiles_are_values_that_were_seen() {
        let sorted: Vec<_> = (1..=10).map(Duration::from_secs).collect();
        assert_eq!(quantile(&sorted, 0.5), Duration::from_secs(5));
        assert_eq!(quantile(&sorted, 0.99), Duration::from_secs(10));
        assert_eq!(quantile(&[], 0.5), Duration::ZERO);
    }
}
