//! Checks of the whole text, with the rules of Prometheus' own linter.

#![expect(clippy::disallowed_methods, reason = "a test begins at some moment")]

use super::*;
use std::collections::BTreeMap;
use std::time::Duration;
use worker_orcd_engine::ChildSnapshot;
use worker_orcd_ipc::MemoryReport;
use worker_orcd_requests::{Completion, Drafts, StopReason};

fn texts() -> (String, String) {
    let snapshot = EngineSnapshot::before_anything(Instant::now());
    let metrics = Metrics::default();
    let text = |format| metrics.render(&snapshot, 0, None, format);
    (text(Format::OpenMetrics), text(Format::Classic))
}

/// Possible names of a family's sample lines.
fn samples(name: &str, kind: &str) -> Vec<String> {
    match kind {
        "histogram" => ["_bucket", "_sum", "_count"]
            .map(|suffix| format!("{name}{suffix}"))
            .to_vec(),
        _ => vec![name.to_owned()],
    }
}

#[test]
fn the_classic_text_is_what_the_linter_wants() {
    let (_, text) = texts();
    let mut helped = BTreeMap::new();
    let mut allowed: Vec<String> = Vec::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').expect("a sentence");
            assert!(help.len() > 10 && help.ends_with('.'), "{line}");
            assert!(!help.ends_with(".."), "{line}");
            assert!(helped.insert(name, help).is_none(), "twice: {line}");
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').expect("a type");
            assert!(helped.contains_key(name), "no help: {line}");
            assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
            assert!(!name.contains(':') || name.starts_with("vllm:"), "{line}");
            for unit in ["milliseconds", "minutes", "percent", "kilobytes"] {
                assert!(!name.contains(unit), "{line}");
            }
            allowed = samples(name, kind);
        } else {
            assert!(!line.starts_with('#'), "{line}");
            let name = line.split(['{', ' ']).next().unwrap_or_default();
            assert!(allowed.iter().any(|it| it == name), "{name}: {allowed:?}");
        }
    }
    assert!(helped.len() > 25, "{text}");
}

#[test]
fn what_can_be_counted_begins_at_zero_and_what_is_unknown_is_absent() {
    let (text, _) = texts();
    for line in [
        "worker_orcd_requests_refused_total{code=\"QUEUE_FULL\"} 0",
        "worker_orcd_requests_refused_total{code=\"NOT_FOUND\"} 0",
        "worker_orcd_requests_ended_total{outcome=\"EOS\"} 0",
        "worker_orcd_requests_ended_total{outcome=\"CLIENT_GONE\"} 0",
        "worker_orcd_child_deaths_total{cause=\"oom_killed\"} 0",
        "worker_orcd_log_lines_dropped_total 0",
        "worker_orcd_prefix_cache_hits_total 0",
        "worker_orcd_inter_token_latency_seconds_count 0",
        "worker_orcd_stream_pause_seconds_count 0",
        "worker_orcd_status{status=\"unhealthy\"} 1",
        "worker_orcd_status{status=\"healthy\"} 0",
        "worker_orcd_impairments 0",
    ] {
        assert!(
            text.lines().any(|it| it == line),
            "{line} is not in\n{text}"
        );
    }
    let version = concat!("{version=\"", env!("CARGO_PKG_VERSION"), "\"} 1");
    assert!(text.contains(version), "{text}");
    for unknown in [
        "requests_running",
        "kv_used_ratio",
        "kv_cache_usage",
        "child_cpu",
        "child_generation",
        "memory_bytes{",
        "device_memory",
        "standby",
        "custody",
    ] {
        assert!(!text.contains(unknown), "{unknown} is in\n{text}");
    }
    assert!(text.ends_with("# EOF\n"));
}

#[test]
fn two_minutes_to_a_first_token_are_told_from_ten() {
    let metrics = Metrics::default();
    let completion = Completion {
        stop_reason: StopReason::Eos,
        stop_sequence: None,
        tokens_in: 9000,
        cached_tokens: 1,
        tokens_out: 1,
        drafts: Drafts::default(),
        queued_for: None,
        first_token_after: Duration::from_secs(120),
        decode_time: Duration::ZERO,
        recoveries: 0,
    };
    metrics
        .events
        .finished(&completion, Duration::from_secs(120));
    let snapshot = EngineSnapshot::before_anything(Instant::now());
    let text = metrics.render(&snapshot, 0, None, Format::Classic);
    let bounds = text.lines().filter_map(|line| {
        let line = line.strip_prefix("worker_orcd_time_to_first_token_seconds_bucket{le=\"")?;
        let (bound, count) = line.split_once("\"} ")?;
        Some((bound.parse::<f64>().ok()?, count.parse::<u64>().ok()?))
    });
    let first = bounds
        .filter(|(_, count)| *count == 1)
        .map(|(bound, _)| bound);
    assert!(first.fold(f64::INFINITY, f64::min) < 600.0, "{text}");
}

#[test]
fn memory_is_told_by_purpose_and_what_the_child_does_not_know_has_no_line() {
    let now = Instant::now();
    let mut snapshot = EngineSnapshot::before_anything(now);
    let memory = MemoryReport {
        total_bytes: Some(1000),
        weights_bytes: 100,
        kv_capacity_bytes: 20,
        kv_used_bytes: 7,
        scratch_bytes: 3,
        draft_bytes: 5,
        ..MemoryReport::default()
    };
    let mut child = ChildSnapshot::begun(7, 1, now);
    child.memory = Some((memory, now));
    snapshot.children = vec![child];
    let text = Metrics::default().render(&snapshot, 0, None, Format::Classic);
    let is_memory = |line: &&str| {
        let is_of_each = line.contains("by_purpose");
        !is_of_each && (line.contains("device_memory") || line.contains("_kv_used_bytes"))
    };
    let lines: Vec<_> = text.lines().filter(is_memory).collect();
    let samples: Vec<_> = lines.iter().filter(|it| !it.starts_with('#')).collect();
    assert_eq!(
        samples,
        [
            &"worker_orcd_device_memory_total_bytes 1000",
            &"worker_orcd_kv_used_bytes 7",
            &"worker_orcd_device_memory_bytes{purpose=\"weights\"} 100",
            &"worker_orcd_device_memory_bytes{purpose=\"kv\"} 20",
            &"worker_orcd_device_memory_bytes{purpose=\"scratch\"} 3",
            &"worker_orcd_device_memory_bytes{purpose=\"graphs\"} 0",
            &"worker_orcd_device_memory_bytes{purpose=\"draft\"} 5",
        ]
    );
}
