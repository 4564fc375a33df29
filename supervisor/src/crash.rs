//! Crash reports: what is known about each death, for whoever asks in the morning.
//!
//! ```text
//! noticed ─ exited ─► died: a report ─► respawned ─ ready ─ first token ─► complete
//!                        │ kept            each kept again, the timeline longer
//!                        ▼
//!                   CrashStore (a thread, a directory, GET /crashes)
//! ```
//!
//! * [`report`] what a report says, [`gpu`] what it says of the GPU; [`store`] where it is kept; [`CrashLog`] here is the driver's
//!   side, which collects.
//!
//! A child that was dismissed leaves no report. Deliberately absent: prompts and completions, in
//! any form; reading the clock (moments are arguments).

pub(crate) mod gpu;
pub(crate) mod report;
pub(crate) mod store;

pub(crate) use store::{CrashSettings, CrashStore};

use crate::calendar::rfc3339;
use gpu::{GpuEvidence, GpuFacts};
use report::{
    Cause, ChildFacts, InFlight, Memory, Report, RequestFacts, Timeline, WorkerFacts, milliseconds,
    report_id,
};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use worker_orcd_ipc::MemoryReport;
use worker_orcd_ipc::flight::Recording;
use worker_orcd_lifecycle::{DeathCause, Exit};

/// Reports whose successor is still coming up. More than the restart intensity ever lets
/// children die in a row; past it the oldest stay as they are.
const MAX_OPEN: usize = 16;

#[derive(Debug)]
pub(crate) struct CrashLog {
    store: Arc<CrashStore>,
    dying: Dying,
    open: Vec<Open>,
    /// Complete but for what the GPU's witness may still find out, oldest first.
    told: VecDeque<Open>,
    reported: u64,
}

/// What is known of a death before its cause is.
#[derive(Debug, Default)]
struct Dying {
    noticed: Option<(Instant, &'static str)>,
    reaped: Option<(Instant, Exit)>,
    killed_by_supervisor: bool,
}

#[derive(Debug)]
struct Open {
    noticed_at: Instant,
    report: Report,
}

/// Two clocks at one moment, and the one that children stamp their records with.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Now {
    pub instant: Instant,
    pub wall: SystemTime,
    pub monotonic_ns: u64,
}

/// What the driver knows of the dead.
#[derive(Debug)]
pub(crate) struct Deceased<'a> {
    /// Its `state` is filled in here.
    pub child: ChildFacts,
    pub heartbeat_at: Option<Instant>,
    pub memory: Option<&'a MemoryReport>,
    /// `None` when there was no recorder, or nothing in it is one.
    pub recording: Option<Recording>,
    pub requests: Vec<RequestFacts>,
    pub host_available_bytes: Option<u64>,
    /// `None` where there is no GPU.
    pub gpu: Option<GpuEvidence>,
}

impl CrashLog {
    pub(crate) fn new(store: Arc<CrashStore>) -> Self {
        Self {
            store,
            dying: Dying::default(),
            open: Vec::new(),
            told: VecDeque::new(),
            reported: 0,
        }
    }

    /// Deaths reported since the start.
    pub(crate) fn reported(&self) -> u64 {
        self.reported
    }

    /// The child was in this state; the first sign counts.
    pub(crate) fn noticed(&mut self, now: Instant, state: &'static str) {
        self.dying.noticed.get_or_insert((now, state));
    }

    pub(crate) fn killed(&mut self) {
        // One that was dead already was not killed by us.
        self.dying.killed_by_supervisor |= self.dying.reaped.is_none();
    }

    pub(crate) fn exited(&mut self, now: Instant, exit: Exit) {
        self.dying.reaped.get_or_insert((now, exit));
    }

    /// When the one that is dying was reaped.
    pub(crate) fn reaped_at(&self) -> Option<Instant> {
        self.dying.reaped.map(|(at, _)| at)
    }

    /// The id of the report, where there is one.
    pub(crate) fn died(
        &mut self,
        now: Now,
        cause: &DeathCause,
        dead: Deceased<'_>,
    ) -> Option<String> {
        let dying = std::mem::take(&mut self.dying);
        if *cause == DeathCause::Dismissed {
            return None;
        }
        let (noticed_at, state) = dying.noticed.unwrap_or((now.instant, "spawning"));
        let since_noticed = now.instant.saturating_duration_since(noticed_at);
        let noticed_wall = now.wall.checked_sub(since_noticed).unwrap_or(now.wall);
        let timeline = Timeline {
            last_sign_of_life_ms: last_sign_of_life(now, &dead)
                .map(|age| before(since_noticed, age)),
            reaped_ms: dying.reaped.map(|(at, _)| after(noticed_at, at)),
            ..Timeline::default()
        };
        let exit = dying.reaped.map(|(_, exit)| exit);
        let report = Report {
            id: report_id(noticed_wall, dead.child.generation),
            at: rfc3339(noticed_wall),
            worker: WorkerFacts {
                pid: std::process::id(),
                version: env!("CARGO_PKG_VERSION"),
            },
            cause: Cause::new(cause, exit, dying.killed_by_supervisor),
            child: ChildFacts {
                state,
                ..dead.child
            },
            timeline,
            requests: InFlight::new(dead.requests.into_iter()),
            memory: Memory {
                before: dead.memory.map(report::memory),
                host_available_bytes: dead.host_available_bytes,
                after: None,
            },
            gpu: dead.gpu.map(|evidence| GpuFacts::new(evidence, noticed_at)),
            flight_recorder: dead
                .recording
                .map(|it| report::recording(&it, now.monotonic_ns))
                .into(),
        };
        let id = report.id.clone();
        self.reported += 1;
        self.store.keep(report.clone());
        if self.open.len() == MAX_OPEN {
            let oldest = self.open.remove(0);
            self.close(oldest);
        }
        self.open.push(Open { noticed_at, report });
        Some(id)
    }

    /// The GPU's witness knows more about the death of that generation.
    pub(crate) fn witnessed(&mut self, generation: u32, evidence: GpuEvidence) {
        let mut reports = self.open.iter_mut().chain(&mut self.told);
        let found = reports.find(|it| it.report.child.generation == generation);
        if let Some(open) = found {
            open.report.gpu = Some(GpuFacts::new(evidence, open.noticed_at));
            self.store.keep(open.report.clone());
        }
    }

    // === its successor ===

    pub(crate) fn respawned(&mut self, now: Instant) {
        self.dying = Dying::default();
        self.update(|open| {
            let at = after(open.noticed_at, now);
            open.report.timeline.respawned_ms.get_or_insert(at);
        });
    }

    pub(crate) fn loaded(&mut self, memory: &MemoryReport) {
        self.update(|open| {
            let after = &mut open.report.memory.after;
            after.get_or_insert_with(|| report::memory(memory));
        });
    }

    /// Serves. Where nobody was waiting, this is the end of the story.
    pub(crate) fn ready(&mut self, now: Instant) {
        self.update(|open| {
            let at = after(open.noticed_at, now);
            open.report.timeline.ready_ms.get_or_insert(at);
        });
        self.keep_open();
        let nobody_waited = |open: &mut Open| open.report.requests.count == 0;
        let over: Vec<_> = self.open.extract_if(.., nobody_waited).collect();
        over.into_iter().for_each(|open| self.close(open));
    }

    /// Called for every step that has tokens, so the common case comes first. True when somebody
    /// had been waiting for this.
    pub(crate) fn tokens(&mut self, now: Instant) -> bool {
        if self.open.is_empty() {
            return false;
        }
        // Before the successor serves, these are the last words of the dead.
        let waited = |open: &Open| open.report.timeline.ready_ms.is_some();
        let over: Vec<_> = self.open.extract_if(.., |open| waited(open)).collect();
        for mut open in over {
            open.report.timeline.first_token_ms = Some(after(open.noticed_at, now));
            self.store.keep(open.report.clone());
            self.close(open);
        }
        self.open.is_empty()
    }

    fn close(&mut self, open: Open) {
        if open.report.gpu.is_none() {
            return;
        }
        if self.told.len() == MAX_OPEN {
            self.told.pop_front();
        }
        self.told.push_back(open);
    }

    fn update(&mut self, change: impl Fn(&mut Open)) {
        self.open.iter_mut().for_each(change);
    }

    fn keep_open(&self) {
        for open in &self.open {
            self.store.keep(open.report.clone());
        }
    }
}

/// How long ago the dead child last did or said anything.
fn last_sign_of_life(now: Now, dead: &Deceased<'_>) -> Option<Duration> {
    let heartbeat = dead
        .heartbeat_at
        .map(|at| now.instant.saturating_duration_since(at));
    let record = dead
        .recording
        .as_ref()
        .and_then(|recording| recording.records.last())
        .map(|record| Duration::from_nanos(now.monotonic_ns.saturating_sub(record.time_ns)));
    heartbeat.into_iter().chain(record).min()
}

/// Milliseconds from the notice to what is `age` old, negative when it came first.
fn before(since_noticed: Duration, age: Duration) -> f64 {
    let noticed = since_noticed.as_micros() as f64;
    (noticed - age.as_micros() as f64) / 1000.0
}

fn after(start: Instant, end: Instant) -> f64 {
    milliseconds(end.saturating_duration_since(start))
}

#[cfg(test)]
mod tests {
    #![expect(clippy::disallowed_methods, reason = "a test begins at some moment")]

    use super::*;
    use worker_orcd_ipc::Generation;
    use worker_orcd_ipc::flight::{Moment, Record, Who};

    fn log() -> CrashLog {
        CrashLog::new(Arc::new(CrashStore::open(CrashSettings {
            directory: None,
            max_reports: 10,
        })))
    }

    struct Clock {
        start: Instant,
    }

    impl Clock {
        fn at(&self, ms: u64) -> Instant {
            self.start + Duration::from_millis(ms)
        }

        /// The monotonic clock stood at one second when this one started.
        fn now(&self, ms: u64) -> Now {
            Now {
                instant: self.at(ms),
                wall: SystemTime::UNIX_EPOCH + Duration::from_millis(ms),
                monotonic_ns: (1000 + ms) * 1_000_000,
            }
        }
    }

    fn clock() -> Clock {
        Clock {
            start: Instant::now(),
        }
    }

    fn dead(generation: u32, requests: u64) -> Deceased<'static> {
        let facts = |request| RequestFacts {
            request,
            job_id: format!("job-{request}"),
            tokens_in: 3,
            tokens_out: 4,
            max_tokens: 9,
            recoveries: 0,
        };
        Deceased {
            child: ChildFacts {
                generation,
                ..ChildFacts::default()
            },
            heartbeat_at: None,
            memory: None,
            recording: None,
            requests: (0..requests).map(facts).collect(),
            host_available_bytes: None,
            gpu: None,
        }
    }

    fn report(log: &CrashLog, id: &str) -> serde_json::Value {
        log.store.flush(Duration::from_secs(10));
        log.store.get(id).unwrap()
    }

    #[test]
    fn a_timeline_grows_until_the_first_token() {
        let (mut log, clock) = (log(), clock());
        log.noticed(clock.at(1000), "serving");
        log.noticed(clock.at(1001), "reaping");
        log.exited(clock.at(1002), Exit::Signal(9));
        let record = Record {
            number: 1,
            time_ns: 1_990_000_000,
            step: 1,
            moment: Moment::StepBegin { tokens: 1 },
            who: Who::NOBODY,
        };
        let recording = Recording {
            generation: Generation(1),
            records: vec![record],
            torn: 0,
            note: None,
        };
        let dead = Deceased {
            heartbeat_at: Some(clock.at(950)),
            recording: Some(recording),
            ..dead(1, 2)
        };
        let cause = DeathCause::Signalled(9);
        let id = log.died(clock.now(1003), &cause, dead).unwrap();
        let now = report(&log, &id);
        assert_eq!(now["timeline"]["last_sign_of_life_ms"], -10.0, "{now}");
        assert_eq!(now["timeline"]["reaped_ms"], 2.0);
        assert_eq!(now["timeline"]["ready_ms"], serde_json::Value::Null);
        assert_eq!(now["cause"]["signal"], 9);
        assert_eq!(now["cause"]["killed_by_supervisor"], false);
        assert_eq!(now["child"]["state"], "serving");
        assert_eq!(now["requests"]["count"], 2);

        assert!(!log.tokens(clock.at(1004)), "the last words of the dead");
        log.respawned(clock.at(1010));
        log.loaded(&MemoryReport::default());
        log.ready(clock.at(1100));
        assert!(log.tokens(clock.at(1150)));
        assert!(!log.tokens(clock.at(1160)), "once");
        let then = report(&log, &id);
        assert_eq!(then["timeline"]["respawned_ms"], 10.0);
        assert_eq!(then["timeline"]["ready_ms"], 100.0);
        assert_eq!(then["timeline"]["first_token_ms"], 150.0);
        assert!(then["memory"]["after"].is_object());
    }

    #[test]
    fn a_second_death_before_ready_leaves_the_first_story_open() {
        let (mut log, clock) = (log(), clock());
        let cause = DeathCause::Signalled(9);
        log.noticed(clock.at(0), "serving");
        let first = log.died(clock.now(1), &cause, dead(1, 1)).unwrap();
        log.respawned(clock.at(10));
        log.noticed(clock.at(20), "loading");
        log.killed();
        let second = log.died(clock.now(20), &cause, dead(2, 0)).unwrap();
        log.respawned(clock.at(30));
        log.ready(clock.at(50));
        assert!(log.tokens(clock.at(60)));
        let (first, second) = (report(&log, &first), report(&log, &second));
        assert_eq!(first["timeline"]["respawned_ms"], 10.0, "its own successor");
        assert_eq!(first["timeline"]["first_token_ms"], 60.0);
        assert_eq!(second["timeline"]["respawned_ms"], 10.0);
        assert_eq!(second["timeline"]["ready_ms"], 30.0);
        assert!(
            second["timeline"]["first_token_ms"].is_null(),
            "nobody waited"
        );
        assert_eq!(second["cause"]["killed_by_supervisor"], true);
        assert_eq!(log.reported(), 2);
    }

    #[test]
    fn what_the_witness_finds_late_is_added_to_a_report_that_is_complete() {
        let (mut log, clock) = (log(), clock());
        log.noticed(clock.at(0), "serving");
        let dead = Deceased {
            gpu: Some(GpuEvidence::default()),
            ..dead(1, 0)
        };
        let cause = DeathCause::Signalled(9);
        let id = log.died(clock.now(1), &cause, dead).unwrap();
        log.respawned(clock.at(2));
        log.ready(clock.at(3));
        let now = report(&log, &id);
        assert!(now["gpu"]["residual_bytes"].is_null(), "{now}");
        let evidence = || GpuEvidence {
            measure: Some(crate::nvml::reckoning::Measure {
                freed_after: None,
                residual: Some(77),
            }),
            ..GpuEvidence::default()
        };
        log.witnessed(1, evidence());
        log.witnessed(2, evidence());
        let then = report(&log, &id);
        assert_eq!(then["gpu"]["residual_bytes"], 77);
        assert_eq!(then["timeline"]["ready_ms"], 3.0, "and nothing is lost");
    }

    #[test]
    fn a_dismissed_child_leaves_no_report() {
        let (mut log, clock) = (log(), clock());
        log.noticed(clock.at(0), "draining");
        let id = log.died(clock.now(1), &DeathCause::Dismissed, dead(1, 0));
        assert_eq!((id, log.reported(), log.store.list()), (None, 0, vec![]));
    }
}
