//! Cost of faults: gaps between tokens that contain one.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Fault and its time, as this process observed it.
pub type Hit = (String, Instant);

/// 250 ms. A log line about a fault arrives before the last tokens, which have a longer way through the supervisor and
/// its sockets: a child announces a fault right after the step before it. On a GPU, with steps of a millisecond, that
/// is the rule.
const EARLY: Duration = Duration::from_millis(250);

/// 50 ms. A gap that ends sooner began before the fault, and ends with those last tokens; or a standby took over
/// without a notable pause.
const OVER_AFTER: Duration = Duration::from_millis(50);

/// Gaps by fault; each list is sorted.
#[derive(Debug, Default, PartialEq)]
pub struct Pauses(BTreeMap<String, Vec<Duration>>);

impl Pauses {
    pub fn find(gaps: &[(Instant, Instant)], hits: &[Hit]) -> Self {
        let mut pauses = BTreeMap::<_, Vec<_>>::new();
        for (from, to) in gaps {
            let in_gap = |at: Instant| at + EARLY >= *from && at + OVER_AFTER <= *to;
            let hits = hits.iter().filter(|(_, at)| in_gap(*at));
            let mut kinds: Vec<_> = hits.map(|(kind, _)| kind.as_str()).collect();
            kinds.sort_unstable();
            kinds.dedup();
            match kinds[..] {
                [] => continue,
                [kind] => pauses.entry(kind.to_owned()).or_default(),
                _ => pauses.entry("several".to_owned()).or_default(),
            }
            .push(*to - *from);
        }
        pauses.values_mut().for_each(|list| list.sort_unstable());
        Self(pauses)
    }

    pub fn markdown(&self) -> String {
        let mut out = "| pause in ms, as streams saw it | count | p50 | p90 | p99 | max |\n\
                       |---|---|---|---|---|---|\n"
            .to_owned();
        for (what, pauses) in &self.0 {
            let [p50, p90, p99, max] =
                [0.5, 0.9, 0.99, 1.0].map(|share| quantile(pauses, share).as_millis());
            let count = pauses.len();
            out += &format!("| {what} | {count} | {p50} | {p90} | {p99} | {max} |\n");
        }
        out
    }
}

/// Smallest duration that at least `share` of all do not exceed (nearest rank).
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
    fn a_gap_is_a_pause_when_a_fault_lies_in_it_or_was_told_of_just_before() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let gaps = [
            (at(1000), at(1200)),
            (at(2000), at(2100)),
            (at(3000), at(3400)),
            (at(4000), at(4150)),
            (at(5000), at(5170)),
        ];
        let hit = |kind: &str, ms| (kind.to_owned(), at(ms));
        let hits = [
            hit("SIGKILL", 2040),
            hit("SIGSTOP", 3100),
            hit("panic", 3101),
            // Announced before the last token was read; and just before one in transit.
            hit("trap", 3990),
            hit("trap", 5160),
        ];
        let pauses = Pauses::find(&gaps, &hits);
        let ms = Duration::from_millis;
        let expected = [
            ("SIGKILL", vec![ms(100)]),
            ("several", vec![ms(400)]),
            ("trap", vec![ms(150)]),
        ];
        let expected = expected.map(|(kind, list)| (kind.to_owned(), list));
        assert_eq!(pauses, Pauses(BTreeMap::from(expected)));
        assert!(
            pauses
                .markdown()
                .contains("| trap | 1 | 150 | 150 | 150 | 150 |")
        );
    }

    #[test]
    fn quantiles_are_values_that_were_seen() {
        let sorted: Vec<_> = (1..=10).map(Duration::from_secs).collect();
        assert_eq!(quantile(&sorted, 0.5), Duration::from_secs(5));
        assert_eq!(quantile(&sorted, 0.99), Duration::from_secs(10));
        assert_eq!(quantile(&[], 0.5), Duration::ZERO);
    }
}
