//! Formatting of figures: bytes, times, and percentiles of a histogram. A missing figure is "unknown".

use serde_json::Value;

const UNKNOWN: &str = "unknown";

pub(super) fn words(value: &Value) -> String {
    match value {
        Value::Null => UNKNOWN.to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Formats a figure with its unit.
pub(super) fn shown(value: &Value, unit: impl Fn(f64) -> String) -> String {
    value.as_f64().map_or(UNKNOWN.to_owned(), unit)
}

pub(super) fn bytes(bytes: f64) -> String {
    let units = [("GiB", 30), ("MiB", 20), ("KiB", 10)];
    let fitting = units
        .iter()
        .find(|(_, power)| bytes >= f64::from(1 << power));
    match fitting {
        Some((unit, power)) => format!("{:.1} {unit}", bytes / f64::from(1 << power)),
        None => format!("{bytes} B"),
    }
}

/// Formats a time in its two largest units.
pub(super) fn time(seconds: f64) -> String {
    let whole = seconds as u64;
    let (days, hours) = (whole / 86_400, whole / 3600 % 24);
    let (minutes, second) = (whole / 60 % 60, whole % 60);
    match (days, hours, minutes) {
        (0, 0, 0) if seconds > 0.0 && seconds < 1.0 => format!("{:.0} ms", seconds * 1000.0),
        (0, 0, 0) if seconds < 10.0 => format!("{seconds:.1} s"),
        (0, 0, 0) => format!("{whole} s"),
        (0, 0, _) if second == 0 => format!("{minutes} min"),
        (0, 0, _) => format!("{minutes} min {second} s"),
        (0, ..) => format!("{hours} h {minutes} min"),
        _ => format!("{days} d {hours} h"),
    }
}

pub(super) fn time_of_ms(milliseconds: f64) -> String {
    time(milliseconds / 1000.0)
}

pub(super) fn share(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

/// Upper bounds of the 50th and 99th percentile of a histogram, since the worker's start.
pub(super) fn percentiles(metrics: &str, histogram: &str) -> String {
    let buckets = buckets(metrics, histogram);
    let bound = |share| {
        let total = buckets.last().map(|(_, count)| *count)?;
        let rank = total * share;
        let within = buckets.iter().find(|(_, count)| *count >= rank);
        within.filter(|_| total > 0.0).map(|(bound, _)| *bound)
    };
    let told = |bound: f64| match bound.is_finite() {
        true => format!("≤ {}", time(bound)),
        false => "beyond all bounds".to_owned(),
    };
    match (bound(0.5), bound(0.99)) {
        (Some(half), Some(most)) => format!("p50 {}, p99 {}", told(half), told(most)),
        _ => UNKNOWN.to_owned(),
    }
}

/// Upper bounds in seconds, with the cumulative count of each.
fn buckets(metrics: &str, histogram: &str) -> Vec<(f64, f64)> {
    let lines = metrics.lines().filter_map(|line| {
        let rest = line
            .strip_prefix(histogram)?
            .strip_prefix("_bucket{le=\"")?;
        let (bound, count) = rest.split_once("\"} ")?;
        Some((bound.parse().ok()?, count.trim().parse().ok()?))
    });
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn figures_have_units_and_what_is_not_told_is_unknown() {
        assert_eq!(bytes(12.0), "12 B");
        assert_eq!(bytes(1536.0), "1.5 KiB");
        assert_eq!(bytes(f64::from(80 << 20)), "80.0 MiB");
        assert_eq!(bytes(2e11), "186.3 GiB");
        assert_eq!(time(0.0625), "62 ms");
        assert_eq!(time(0.0), "0.0 s");
        assert_eq!(time(1.5), "1.5 s");
        assert_eq!(time(60.0), "1 min");
        assert_eq!(share(0.125), "12 %");
        assert_eq!(time(61.0), "1 min 1 s");
        assert_eq!(time(7260.0), "2 h 1 min");
        assert_eq!(time(90_000.0), "1 d 1 h");
        assert_eq!(shown(&json!(null), bytes), UNKNOWN);
        assert_eq!(shown(&json!(1500), time_of_ms), "1.5 s");
        assert_eq!(
            [words(&json!("a")), words(&json!(3)), words(&json!(null))],
            ["a", "3", UNKNOWN]
        );
    }

    #[test]
    fn percentiles_are_bounds_of_buckets() {
        let text = |counts: [u32; 3]| {
            let [low, high, all] = counts;
            format!(
                "other_seconds_bucket{{le=\"0.5\"}} 9\n\
                 wait_seconds_bucket{{le=\"0.004\"}} {low}\n\
                 wait_seconds_bucket{{le=\"2.0\"}} {high}\n\
                 wait_seconds_bucket{{le=\"+Inf\"}} {all}\n\
                 wait_seconds_count {all}\n"
            )
        };
        let told = |counts| percentiles(&text(counts), "wait_seconds");
        assert_eq!(told([50, 100, 100]), "p50 ≤ 4 ms, p99 ≤ 2.0 s");
        assert_eq!(told([49, 99, 100]), "p50 ≤ 2.0 s, p99 ≤ 2.0 s");
        assert_eq!(told([99, 99, 101]), "p50 ≤ 4 ms, p99 beyond all bounds");
        assert_eq!(told([0, 0, 0]), UNKNOWN);
        assert_eq!(percentiles("", "wait_seconds"), UNKNOWN);
    }
}
