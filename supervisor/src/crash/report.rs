//! What a crash report says. Ids and lengths; never a word of anybody's text.

use crate::calendar::rfc3339;
use crate::crash::gpu::GpuFacts;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::time::{Duration, SystemTime};
use worker_orcd_ipc::MemoryReport;
use worker_orcd_ipc::flight::{Moment, Record, Recording, Who};
use worker_orcd_lifecycle::{DeathCause, Exit};

/// Steps that a report tells of: the fatal one, and what led to it.
const STEPS_KEPT: usize = 8;

/// Records that a report shows as they are.
const RECORDS_KEPT: usize = 16;

/// Requests that are named; the others are counted.
const REQUESTS_KEPT: usize = 256;

/// One death. What is `null` is not known, or not yet.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    pub id: String,
    /// When the death was noticed.
    pub at: String,
    pub worker: WorkerFacts,
    pub cause: Cause,
    pub child: ChildFacts,
    pub timeline: Timeline,
    pub requests: InFlight,
    pub memory: Memory,
    /// `null` on a device that is no GPU.
    pub gpu: Option<GpuFacts>,
    pub flight_recorder: Value,
}

#[derive(Debug, Clone, Serialize)]
pub struct WorkerFacts {
    pub pid: u32,
    pub version: &'static str,
}

#[derive(Debug, Clone, Serialize)]
pub struct Cause {
    /// The same word as in /metrics.
    pub label: String,
    pub text: String,
    pub exit_code: Option<i32>,
    pub signal: Option<i32>,
    /// The signal was this supervisor's remedy, not the cause.
    pub killed_by_supervisor: bool,
}

#[derive(Debug, Clone, Default, Serialize)]
pub struct ChildFacts {
    pub generation: u32,
    /// `null` when no process came about.
    pub pid: Option<u32>,
    pub build: Option<String>,
    /// The lifecycle's state in which it died.
    pub state: &'static str,
    pub uptime_ms: Option<f64>,
    /// Finished, as its last heartbeat said.
    pub steps: Option<u64>,
}

/// Milliseconds from the moment at which the death was noticed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Timeline {
    /// Not later than the fault: the last record or heartbeat. Negative.
    pub last_sign_of_life_ms: Option<f64>,
    pub noticed_ms: f64,
    pub reaped_ms: Option<f64>,
    pub respawned_ms: Option<f64>,
    /// A child serves again.
    pub ready_ms: Option<f64>,
    /// The first token of any request after that.
    pub first_token_ms: Option<f64>,
}

#[derive(Debug, Clone, Default, Serialize)]
pub struct InFlight {
    pub count: usize,
    /// The first of them, in the order of arrival.
    pub first: Vec<RequestFacts>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RequestFacts {
    /// As the flight recorder names it.
    pub request: u64,
    pub job_id: String,
    pub tokens_in: u32,
    pub tokens_out: u32,
    pub max_tokens: u32,
    /// Deaths that it has seen before this one.
    pub recoveries: u32,
}

#[derive(Debug, Clone, Default, Serialize)]
pub struct Memory {
    /// The dead child's last report.
    pub before: Option<Value>,
    /// What the machine could give right after.
    pub host_available_bytes: Option<u64>,
    /// The next child's first report.
    pub after: Option<Value>,
}

/// What a list of reports says of each.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    pub id: String,
    pub at: String,
    pub label: String,
    pub cause: String,
    pub signal: Option<i32>,
    pub exit_code: Option<i32>,
    pub generation: u32,
    pub pid: Option<u32>,
    pub requests: usize,
    pub ready_ms: Option<f64>,
    pub first_token_ms: Option<f64>,
}

impl Cause {
    #[must_use]
    pub fn new(cause: &DeathCause, exit: Option<Exit>, killed_by_supervisor: bool) -> Self {
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
    pub fn new(requests: impl Iterator<Item = RequestFacts>) -> Self {
        let mut first: Vec<_> = requests.collect();
        let count = first.len();
        first.truncate(REQUESTS_KEPT);
        Self { count, first }
    }
}

impl Report {
    #[must_use]
    pub fn summary(&self) -> Summary {
        Summary {
            id: self.id.clone(),
            at: self.at.clone(),
            label: self.cause.label.clone(),
            cause: self.cause.text.clone(),
            signal: self.cause.signal,
            exit_code: self.cause.exit_code,
            generation: self.child.generation,
            pid: self.child.pid,
            requests: self.requests.count,
            ready_ms: self.timeline.ready_ms,
            first_token_ms: self.timeline.first_token_ms,
        }
    }

    /// The summary of a report that was read back.
    #[must_use]
    pub fn summary_of(report: &Value) -> Option<Summary> {
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
            generation: count(&child["generation"])?,
            pid: count(&child["pid"]),
            requests: usize::try_from(report["requests"]["count"].as_u64()?).ok()?,
            ready_ms: timeline["ready_ms"].as_f64(),
            first_token_ms: timeline["first_token_ms"].as_f64(),
        })
    }
}

/// Sorts by time, can be a file's name and a path's segment, and is another for another worker
/// that shares the directory.
#[must_use]
pub(crate) fn report_id(at: SystemTime, generation: u32) -> String {
    let time: String = rfc3339(at)
        .chars()
        .filter(|it| it.is_ascii_alphanumeric())
        .collect();
    format!("{time}-{}-{generation}", std::process::id())
}

/// Whether this can be the name of a report: nothing that would leave the directory.
#[must_use]
pub(crate) fn is_report_id(text: &str) -> bool {
    let fits = |it: u8| it.is_ascii_alphanumeric() || it == b'-';
    !text.is_empty() && text.len() <= 64 && text.bytes().all(fits)
}

#[must_use]
pub(crate) fn milliseconds(time: Duration) -> f64 {
    // Microseconds are as fine as anything here is known.
    time.as_micros() as f64 / 1000.0
}

#[must_use]
pub(crate) fn memory(report: &MemoryReport) -> Value {
    json!({
        "total_bytes": report.total_bytes,
        "free_bytes": report.free_bytes,
        "weights_bytes": report.weights_bytes,
        "kv_capacity_bytes": report.kv_capacity_bytes,
        "kv_used_bytes": report.kv_used_bytes,
        "scratch_bytes": report.scratch_bytes,
        "graphs_bytes": report.graphs_bytes,
        "context_bytes": report.context_bytes,
        "resident": report.resident,
    })
}

/// The last steps, and the last records as they are. Times are milliseconds before `now_ns`, of
/// the clock that the child used.
#[must_use]
pub(crate) fn recording(recording: &Recording, now_ns: u64) -> Value {
    let ago = |time_ns: u64| milliseconds(Duration::from_nanos(now_ns.saturating_sub(time_ns)));
    let records = &recording.records;
    let shown = &records[records.len().saturating_sub(RECORDS_KEPT)..];
    json!({
        "records": records.len(),
        "torn": recording.torn,
        "stands": stands(recording, &ago),
        "last_steps": last_steps(records, &ago),
        "last_records": shown.iter().map(|record| json!({
            "number": record.number,
            "ms_before_report": ago(record.time_ns),
            "step": record.step,
            "moment": moment(record.moment),
            "sequences": record.who.sequences(),
            "requests": requests(&record.who),
        })).collect::<Vec<_>>(),
    })
}

/// What the child wrote down of a step that did not end, unless it ended after all.
fn stands(recording: &Recording, ago: &dyn Fn(u64) -> f64) -> Option<Value> {
    let note = recording.note.as_ref()?;
    let ended = |record: &Record| record.moment == Moment::StepEnd && record.step >= note.step;
    let stands = !recording.records.iter().any(ended);
    stands.then(|| {
        json!({
            "step": note.step,
            "ms_before_report": ago(note.time_ns),
            "text": note.text,
        })
    })
}

fn last_steps(records: &[Record], ago: &dyn Fn(u64) -> f64) -> Vec<Value> {
    // A child that is a step ahead of its device begins a step before it ends the one before.
    let mut records = records.to_vec();
    records.sort_by_key(|record| record.step);
    let steps: Vec<&[Record]> = records
        .chunk_by(|one, next| one.step == next.step)
        .filter(|step| step[0].step > 0)
        .collect();
    let kept = &steps[steps.len().saturating_sub(STEPS_KEPT)..];
    kept.iter().map(|step| step_value(step, ago)).collect()
}

fn step_value(records: &[Record], ago: &dyn Fn(u64) -> f64) -> Value {
    let (first, last) = (&records[0], &records[records.len() - 1]);
    let tokens = match first.moment {
        Moment::StepBegin { tokens } => Some(tokens),
        // The ring has turned over its beginning.
        _ => None,
    };
    let ended = last.moment == Moment::StepEnd;
    let took = Duration::from_nanos(last.time_ns.saturating_sub(first.time_ns));
    let phases: Vec<&str> = records
        .iter()
        .filter_map(|record| match record.moment {
            Moment::Phase(phase) => Some(phase.name()),
            _ => None,
        })
        .collect();
    json!({
        "step": first.step,
        "began_ms_before_report": tokens.map(|_| ago(first.time_ns)),
        "ended": ended,
        "recorded_ms": milliseconds(took),
        "tokens": tokens,
        "phases": phases,
        "last": moment(last.moment),
        "sequences": last.who.sequences(),
        "requests": requests(&last.who),
    })
}

fn requests(who: &Who) -> Vec<u64> {
    who.requests().map(|request| request.0).collect()
}

fn moment(moment: Moment) -> String {
    match moment {
        Moment::LoadBegin => "load begins".to_owned(),
        Moment::LoadEnd => "load is done".to_owned(),
        Moment::StepBegin { tokens } => format!("step of {tokens} tokens begins"),
        Moment::Prompt { end } => format!("a prompt up to position {end}"),
        Moment::Phase(phase) => phase.name().to_owned(),
        Moment::Layer(layer) => format!("layer {layer} is done"),
        Moment::StepEnd => "step is done".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use worker_orcd_ipc::flight::{Note, Phase};
    use worker_orcd_ipc::{Generation, RequestId};

    fn record(number: u64, step: u64, moment: Moment) -> Record {
        Record {
            number,
            time_ns: number * 1_000_000,
            step,
            moment,
            who: Who::new([RequestId(7)].into_iter()),
        }
    }

    #[test]
    fn a_recording_is_told_step_by_step_and_the_unfinished_one_shows_where_it_stopped() {
        let records = vec![
            record(1, 0, Moment::LoadBegin),
            record(2, 0, Moment::LoadEnd),
            record(3, 1, Moment::StepBegin { tokens: 9 }),
            record(4, 1, Moment::Phase(Phase::Prefill)),
            record(5, 1, Moment::StepEnd),
            record(6, 2, Moment::StepBegin { tokens: 1 }),
            record(7, 2, Moment::Phase(Phase::Decode)),
            record(8, 2, Moment::Layer(12)),
        ];
        let read = Recording {
            generation: Generation(1),
            records,
            torn: 1,
            note: None,
        };
        let told = recording(&read, 10_000_000);
        let steps = told["last_steps"].as_array().unwrap();
        assert_eq!(steps.len(), 2, "loading is no step: {told}");
        assert_eq!(steps[0]["ended"], true);
        assert_eq!(steps[0]["recorded_ms"], 2.0);
        assert_eq!(steps[1]["ended"], false);
        assert_eq!(steps[1]["last"], "layer 12 is done");
        assert_eq!(steps[1]["phases"], json!(["decode"]));
        assert_eq!(steps[1]["began_ms_before_report"], 4.0);
        assert_eq!(steps[1]["requests"], json!([7]));
        assert_eq!((&told["records"], &told["torn"]), (&json!(8), &json!(1)));
        assert_eq!(told["last_records"][7]["ms_before_report"], 2.0);
    }

    #[test]
    fn where_a_step_stands_is_told_until_it_has_ended() {
        let begin = Moment::StepBegin { tokens: 1 };
        let mut read = Recording {
            generation: Generation(1),
            records: vec![
                record(1, 4, begin),
                record(2, 4, Moment::StepEnd),
                record(3, 5, begin),
            ],
            torn: 0,
            note: Some(Note {
                time_ns: 4_000_000,
                step: 5,
                text: "blocks 0-131 wait".to_owned(),
            }),
        };
        let expected = json!({"step": 5, "ms_before_report": 6.0, "text": "blocks 0-131 wait"});
        assert_eq!(recording(&read, 10_000_000)["stands"], expected);
        read.records.push(record(4, 5, Moment::StepEnd));
        assert_eq!(recording(&read, 10_000_000)["stands"], json!(null));
        read.note = None;
        assert_eq!(recording(&read, 10_000_000)["stands"], json!(null));
    }

    #[test]
    fn steps_that_overlap_are_told_apart() {
        let begin = Moment::StepBegin { tokens: 1 };
        let records = vec![
            record(1, 1, begin),
            record(2, 2, begin),
            record(3, 1, Moment::StepEnd),
            record(4, 3, begin),
        ];
        let read = Recording {
            generation: Generation(1),
            records,
            torn: 0,
            note: None,
        };
        let told = recording(&read, 10_000_000);
        let steps = told["last_steps"].as_array().unwrap();
        let ended: Vec<_> = steps
            .iter()
            .map(|step| (&step["step"], &step["ended"]))
            .collect();
        let (yes, no) = (json!(true), json!(false));
        assert_eq!(
            ended,
            [(&json!(1), &yes), (&json!(2), &no), (&json!(3), &no)]
        );
    }

    #[test]
    fn long_recordings_and_long_lists_are_cut() {
        let step = |step| {
            [
                record(2 * step, step, Moment::StepBegin { tokens: 1 }),
                record(2 * step + 1, step, Moment::StepEnd),
            ]
        };
        let records: Vec<_> = (1..500).flat_map(step).collect();
        let read = Recording {
            generation: Generation(1),
            records,
            torn: 0,
            note: None,
        };
        let told = recording(&read, u64::MAX);
        assert_eq!(told["last_steps"].as_array().unwrap().len(), STEPS_KEPT);
        assert_eq!(told["last_steps"][STEPS_KEPT - 1]["step"], 499);
        assert_eq!(told["last_records"].as_array().unwrap().len(), RECORDS_KEPT);
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
        let id = report_id(at(951_782_399_250), 12);
        assert!(id.starts_with("20000228T235959250Z-"), "{id}");
        assert!(id < report_id(at(951_782_399_251), 1));
        assert!(is_report_id(&id));
        for hostile in ["", "../x", "a/b", "a.json", "a\0", &"a".repeat(65)] {
            assert!(!is_report_id(hostile), "{hostile:?}");
        }
    }
}
