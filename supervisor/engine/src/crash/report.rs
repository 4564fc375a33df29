//! Crash report: ids and lengths, without any text of a request.

use crate::crash::death::{Bed, Death, Deceased, Reaping, Successor};
use crate::crash::gpu::GpuFacts;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::time::{Duration, Instant, SystemTime};
use worker_orcd_ipc::{Generation, MemoryReport};
use worker_orcd_lifecycle::{DeathCause, Exit};
use worker_orcd_text::calendar::rfc3339;

/// Maximum number of listed requests. Further ones are only counted.
const REQUESTS_KEPT: usize = 256;

/// Report of one death. `null` is unknown, perhaps only so far.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Report {
    pub id: String,
    /// Time of day of the first sign.
    pub at: String,
    pub worker: WorkerFacts,
    pub cause: Cause,
    pub device: DeviceFacts,
    pub child: ChildFacts,
    pub timeline: Timeline,
    pub requests: InFlight,
    pub memory: Memory,
    /// GPU part. `null` on other devices.
    pub gpu: Option<GpuFacts>,
    pub flight_recorder: Value,
}

#[derive(Debug, Clone, Serialize)]
pub(crate) struct WorkerFacts {
    pub pid: u32,
    pub version: &'static str,
}

/// Device of the child.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct DeviceFacts {
    /// Index in the worker's list.
    pub number: u8,
    /// Device id in the syntax of the command line.
    pub id: String,
}

#[derive(Debug, Clone, Serialize)]
pub(crate) struct Cause {
    /// Label of the cause, as in `/metrics`.
    pub label: String,
    pub text: String,
    pub exit_code: Option<i32>,
    pub signal: Option<i32>,
    /// True if this supervisor sent the signal as a remedy. The signal is then not the cause.
    pub killed_by_supervisor: bool,
}

#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct ChildFacts {
    pub generation: u32,
    /// Process id. `null`: the spawn failed.
    pub pid: Option<u32>,
    pub build: Option<String>,
    /// Lifecycle state in which the child died.
    pub state: &'static str,
    pub uptime_ms: Option<f64>,
    /// Finished steps at the last heartbeat.
    pub steps: Option<u64>,
}

/// Times in milliseconds since the first sign of the death.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub(crate) struct Timeline {
    /// Last flight recorder entry or heartbeat, not later than the fault. Negative.
    pub last_sign_of_life_ms: Option<f64>,
    pub noticed_ms: f64,
    pub reaped_ms: Option<f64>,
    pub respawned_ms: Option<f64>,
    /// A child serves again.
    pub ready_ms: Option<f64>,
    /// First token of any request after that.
    pub first_token_ms: Option<f64>,
}

#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct InFlight {
    pub count: usize,
    /// First requests, in order of arrival.
    pub first: Vec<RequestFacts>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct RequestFacts {
    /// Request number in the flight recorder.
    pub request: u64,
    pub job_id: String,
    pub tokens_in: u32,
    pub tokens_out: u32,
    pub max_tokens: u32,
    /// Earlier deaths that this request has survived.
    pub recoveries: u32,
}

#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Memory {
    /// Last report of the dead child.
    pub before: Option<Value>,
    /// Memory in bytes that the machine could allocate right after.
    pub host_available_bytes: Option<u64>,
    /// First report of the next child.
    pub after: Option<Value>,
}

/// Entry in the list of reports.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema, Deserialize)]
#[schemars(rename = "CrashSummary")]
pub struct Summary {
    pub id: String,
    pub at: String,
    pub label: String,
    pub cause: String,
    pub signal: Option<i32>,
    pub exit_code: Option<i32>,
    /// Device id. `None` in reports of older workers for a single device.
    pub device: Option<String>,
    pub device_number: Option<u8>,
    pub generation: u32,
    pub pid: Option<u32>,
    pub requests: usize,
    pub ready_ms: Option<f64>,
    pub first_token_ms: Option<f64>,
}

impl Cause {
    #[must_use]
    pub(crate) fn new(cause: &DeathCause, exit: Option<Exit>, killed_by_supervisor: bool) -> Self {
        Self {
            label: cause.label().to_owned(),
            text: cause.to_string(),
            exit_code: match exit {
                Some(Exit::Code(code)) => Some(code),
                Some(Exit::Signal(_) | Exit::OomKilled) | None => None,
            },
            signal: match exit {
                Some(Exit::Signal(signal)) => Some(signal),
                Some(Exit::OomKilled) => Some(9),
                Some(Exit::Code(_)) | None => None,
            },
            killed_by_supervisor,
        }
    }
}

impl InFlight {
    #[must_use]
    pub(crate) fn new(requests: impl Iterator<Item = RequestFacts>) -> Self {
        let mut first: Vec<_> = requests.collect();
        let count = first.len();
        first.truncate(REQUESTS_KEPT);
        Self { count, first }
    }
}

impl Timeline {
    fn of(death: &Death, reaping: &Reaping) -> Self {
        let after = |moment| milliseconds_between(death.noticed_at, moment);
        let Successor {
            respawned_at,
            ready_at,
            first_token_at,
            ..
        } = death.successor;
        let waited = reaping.requests.count > 0;
        Self {
            last_sign_of_life_ms: reaping.last_sign_of_life.map(after),
            noticed_ms: 0.0,
            reaped_ms: death.reaped.map(|(at, _)| after(at)),
            respawned_ms: respawned_at.map(after),
            ready_ms: ready_at.map(after),
            first_token_ms: first_token_at.filter(|_| waited).map(after),
        }
    }
}

impl DeviceFacts {
    #[must_use]
    pub(crate) fn of(bed: Bed) -> Self {
        Self {
            number: bed.number.0,
            id: bed.selector.to_string(),
        }
    }
}

impl ChildFacts {
    fn of(death: &Death, reaping: &Reaping) -> Self {
        let child = reaping.child.as_ref();
        let age = |child: &Deceased| reaping.at.instant.duration_since(child.spawned_at);
        Self {
            generation: death.generation.0,
            pid: child.map(|child| child.pid),
            build: child.and_then(|child| child.build.clone()),
            state: death.state.unwrap_or("spawning"),
            uptime_ms: child.map(|child| milliseconds(age(child))),
            steps: child.and_then(|child| child.steps),
        }
    }
}

impl Report {
    /// Report from the facts known so far.
    #[must_use]
    pub(crate) fn of(death: &Death, reaping: &Reaping) -> Self {
        let exit = death.reaped.map(|(_, exit)| exit);
        let before = reaping.child.as_ref().and_then(|child| child.memory);
        Self {
            id: reaping.report_id(death),
            at: rfc3339(reaping.wall_time_of(death.noticed_at)),
            worker: WorkerFacts {
                pid: std::process::id(),
                version: env!("CARGO_PKG_VERSION"),
            },
            cause: Cause::new(&reaping.cause, exit, death.killed_by_supervisor),
            device: DeviceFacts::of(death.device),
            child: ChildFacts::of(death, reaping),
            timeline: Timeline::of(death, reaping),
            requests: reaping.requests.clone(),
            memory: Memory {
                before: before.as_ref().map(memory),
                host_available_bytes: reaping.host_available_bytes,
                after: death.successor.memory.as_ref().map(memory),
            },
            gpu: death
                .gpu
                .as_ref()
                .map(|evidence| GpuFacts::new(evidence, death.noticed_at)),
            flight_recorder: reaping.flight_recorder.clone(),
        }
    }

    #[must_use]
    pub(crate) fn summary(&self) -> Summary {
        Summary {
            id: self.id.clone(),
            at: self.at.clone(),
            label: self.cause.label.clone(),
            cause: self.cause.text.clone(),
            signal: self.cause.signal,
            exit_code: self.cause.exit_code,
            device: Some(self.device.id.clone()),
            device_number: Some(self.device.number),
            generation: self.child.generation,
            pid: self.child.pid,
            requests: self.requests.count,
            ready_ms: self.timeline.ready_ms,
            first_token_ms: self.timeline.first_token_ms,
        }
    }

    /// Summary of a report that was read from a file.
    #[must_use]
    pub(crate) fn summary_of(report: &Value) -> Option<Summary> {
        let (cause, child, timeline) = (&report["cause"], &report["child"], &report["timeline"]);
        let number = |value: &Value| value.as_i64().and_then(|it| i32::try_from(it).ok());
        let count = |value: &Value| value.as_u64().and_then(|it| u32::try_from(it).ok());
        Some(Summary {
            id: report["id"].as_str()?.to_owned(),
            at: report["at"].as_str()?.to_owned(),
            label: cause["label"].as_str()?.to_owned(),
            cause: cause["text"].as_str()?.to_owned(),
            signal: number(&cause["signal"]),
            exit_code: number(&cause["exit_code"]),
            device: report["device"]["id"].as_str().map(str::to_owned),
            device_number: count(&report["device"]["number"]).and_then(|it| it.try_into().ok()),
            generation: count(&child["generation"])?,
            pid: count(&child["pid"]),
            requests: usize::try_from(report["requests"]["count"].as_u64()?).ok()?,
            ready_ms: timeline["ready_ms"].as_f64(),
            first_token_ms: timeline["first_token_ms"].as_f64(),
        })
    }
}

/// Report id. It sorts by time, is valid as a file name and as a path segment, and differs between workers that share a
/// directory.
#[must_use]
pub(crate) fn report_id(at: SystemTime, generation: Generation) -> String {
    let time: String = rfc3339(at)
        .chars()
        .filter(|it| it.is_ascii_alphanumeric())
        .collect();
    format!("{time}-{}-{generation}", std::process::id())
}

/// True for a valid report id, which cannot leave the directory.
#[must_use]
pub(crate) fn is_report_id(text: &str) -> bool {
    let fits = |it: u8| it.is_ascii_alphanumeric() || it == b'-';
    !text.is_empty() && text.len() <= 64 && text.bytes().all(fits)
}

#[must_use]
pub(crate) fn milliseconds(time: Duration) -> f64 {
    // No time here is more precise than a microsecond.
    time.as_micros() as f64 / 1000.0
}

/// Milliseconds from `start` to `moment`, negative if `moment` is earlier.
#[must_use]
pub(crate) fn milliseconds_between(start: Instant, moment: Instant) -> f64 {
    match moment.checked_duration_since(start) {
        Some(later) => milliseconds(later),
        None => -milliseconds(start.duration_since(moment)),
    }
}

#[must_use]
fn memory(report: &MemoryReport) -> Value {
    json!({
        "total_bytes": report.total_bytes,
        "free_bytes": report.free_bytes,
        "weights_bytes": report.weights_bytes,
        "kv_capacity_bytes": report.kv_capacity_bytes,
        "kv_used_bytes": report.kv_used_bytes,
        "scratch_bytes": report.scratch_bytes,
        "graphs_bytes": report.graphs_bytes,
        "draft_bytes": report.draft_bytes,
        "context_bytes": report.context_bytes,
        "resident": report.resident,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lists_of_requests_are_cut() {
        let facts = |request| RequestFacts {
            request,
            job_id: String::new(),
            tokens_in: 0,
            tokens_out: 0,
            max_tokens: 0,
            recoveries: 0,
        };
        let requests = InFlight::new((0..1000).map(facts));
        assert_eq!(
            (requests.count, requests.first.len()),
            (1000, REQUESTS_KEPT)
        );
    }

    #[test]
    fn ids_sort_by_time_and_stay_in_their_directory() {
        let at = |ms| SystemTime::UNIX_EPOCH + Duration::from_millis(ms);
        let id = report_id(at(951_782_399_250), Generation(12));
        assert!(id.starts_with("20000228T235959250Z-"), "{id}");
        assert!(id < report_id(at(951_782_399_251), Generation(1)));
        assert!(is_report_id(&id));
        for hostile in ["", "../x", "a/b", "a.json", "a\0", &"a".repeat(65)] {
            assert!(!is_report_id(hostile), "{hostile:?}");
        }
    }
}
