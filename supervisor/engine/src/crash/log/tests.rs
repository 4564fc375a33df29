#![expect(clippy::disallowed_methods, reason = "a test begins at some moment")]
use super::*;
use crate::crash::CrashSettings;
use crate::crash::death::{Now, Pause};
use crate::crash::report::{InFlight, RequestFacts};
use serde_json::{Value, json};
use std::time::SystemTime;

const SEAT: SeatId = SeatId(0);
const OTHER: SeatId = SeatId(1);
/// The first seat of the second device.
const ELSEWHERE: SeatId = SeatId(2);
const DEVICES: [DeviceSelector; 2] = [DeviceSelector::Cuda(0), DeviceSelector::Cuda(3)];

fn log() -> CrashLog {
    let settings = CrashSettings {
        directory: None,
        max_reports: 10,
    };
    CrashLog::new(Arc::new(CrashStore::open(settings)), &DEVICES)
}

struct Clock {
    start: Instant,
}

impl Clock {
    fn new() -> Self {
        Self {
            start: Instant::now(),
        }
    }

    fn at(&self, ms: u64) -> Instant {
        self.start + Duration::from_millis(ms)
    }

    /// Reaping of a child with its last sign of life at `ms`.
    fn reaping(&self, ms: u64, requests: u64) -> Reaping {
        let facts = |request| RequestFacts {
            request,
            job_id: format!("job-{request}"),
            tokens_in: 3,
            tokens_out: 4,
            max_tokens: 9,
            recoveries: 0,
        };
        Reaping {
            at: Now {
                instant: self.at(ms),
                wall: SystemTime::UNIX_EPOCH + Duration::from_millis(ms),
                monotonic_ns: 0,
            },
            cause: DeathCause::Signalled(9),
            child: None,
            last_sign_of_life: None,
            flight_recorder: Value::Null,
            requests: InFlight::new((0..requests).map(facts)),
            host_available_bytes: None,
            pause: Pause {
                began: self.at(ms),
                silent_since: (requests > 0).then(|| self.at(ms)),
            },
        }
    }
}

fn reaped(log: &mut CrashLog, seat: SeatId, generation: u32, reaping: Reaping) {
    log.reaped(seat, Generation(generation), reaping, |_, _| None);
}

/// Report of a child's death.
fn report(log: &CrashLog, generation: u32) -> Value {
    log.store.flush(Duration::from_secs(10));
    let reports = log.store.list();
    let of_it = reports.iter().find(|it| it.generation == generation);
    log.store.get(&of_it.expect("a report").id).unwrap()
}

#[test]
fn a_timeline_grows_until_the_first_token() {
    let (mut log, clock) = (log(), Clock::new());
    let dead = Generation(1);
    log.noticed(SEAT, dead, clock.at(1000), "serving");
    log.noticed(SEAT, dead, clock.at(1001), "reaping");
    log.exited(SEAT, dead, clock.at(1002), Exit::Signal(9));
    let reaping = Reaping {
        last_sign_of_life: Some(clock.at(990)),
        ..clock.reaping(1003, 2)
    };
    reaped(&mut log, SEAT, 1, reaping);
    let now = report(&log, 1);
    assert_eq!(now["timeline"]["last_sign_of_life_ms"], -10.0, "{now}");
    assert_eq!(now["timeline"]["reaped_ms"], 2.0);
    assert_eq!(now["timeline"]["ready_ms"], Value::Null);
    assert_eq!(now["at"], "1970-01-01T00:00:01.000Z", "the notice");
    assert_eq!(now["cause"]["signal"], 9);
    assert_eq!(now["cause"]["killed_by_supervisor"], false);
    assert_eq!(now["child"]["state"], "serving");
    assert_eq!(now["requests"]["count"], 2);

    assert!(!log.tokens(SEAT, clock.at(1004)), "last words of the dead");
    log.respawned(SEAT, clock.at(1010));
    log.loaded(SEAT, MemoryReport::default());
    let pause = log.ready(SEAT, clock.at(1100));
    assert_eq!(pause, Some(Duration::from_millis(97)), "from its reaping");
    assert!(log.tokens(SEAT, clock.at(1150)));
    assert!(!log.tokens(SEAT, clock.at(1160)), "once");
    let then = report(&log, 1);
    assert_eq!(then["timeline"]["respawned_ms"], 10.0);
    assert_eq!(then["timeline"]["ready_ms"], 100.0);
    assert_eq!(then["timeline"]["first_token_ms"], 150.0);
    assert!(then["memory"]["after"].is_object());
}

#[test]
fn two_children_that_die_at_once_have_a_report_each_with_its_own_end_and_timeline() {
    let (mut log, clock) = (log(), Clock::new());
    let (one, two) = (Generation(1), Generation(2));
    log.noticed(SEAT, one, clock.at(0), "serving");
    log.noticed(OTHER, two, clock.at(5), "loading");
    log.killed(OTHER, two, clock.at(5));
    log.exited(OTHER, two, clock.at(8), Exit::Signal(9));
    log.exited(SEAT, one, clock.at(9), Exit::Code(68));
    reaped(&mut log, SEAT, 1, clock.reaping(10, 1));
    reaped(&mut log, OTHER, 2, clock.reaping(10, 3));
    log.respawned(OTHER, clock.at(20));
    log.respawned(SEAT, clock.at(30));
    assert_eq!(
        log.ready(OTHER, clock.at(40)),
        Some(Duration::from_millis(30))
    );
    assert!(!log.tokens(SEAT, clock.at(45)), "nobody serves there yet");
    assert!(log.tokens(OTHER, clock.at(50)));
    let (first, second) = (report(&log, 1), report(&log, 2));
    assert_eq!(first["cause"]["exit_code"], 68);
    assert_eq!(first["cause"]["killed_by_supervisor"], false);
    assert_eq!(first["child"]["state"], "serving");
    assert_eq!(first["timeline"]["reaped_ms"], 9.0);
    assert_eq!(first["timeline"]["ready_ms"], Value::Null);
    assert_eq!(first["requests"]["count"], 1);
    assert_eq!(second["cause"]["signal"], 9);
    assert_eq!(second["cause"]["killed_by_supervisor"], true);
    assert_eq!(second["child"]["state"], "loading");
    let expected = [
        ("reaped_ms", 3.0),
        ("respawned_ms", 15.0),
        ("ready_ms", 35.0),
        ("first_token_ms", 45.0),
    ];
    for (field, ms) in expected {
        assert_eq!(second["timeline"][field], ms, "{field}");
    }
    log.ready(SEAT, clock.at(60));
    assert!(log.tokens(SEAT, clock.at(70)));
    let first = report(&log, 1);
    assert_eq!(first["timeline"]["respawned_ms"], 30.0);
    assert_eq!(first["timeline"]["first_token_ms"], 70.0);
    assert_eq!(log.reported(), 2);
}

#[test]
fn a_second_death_before_ready_leaves_the_first_story_open_and_its_pause_goes_on() {
    let (mut log, clock) = (log(), Clock::new());
    log.noticed(SEAT, Generation(1), clock.at(0), "serving");
    reaped(&mut log, SEAT, 1, clock.reaping(1, 1));
    log.respawned(SEAT, clock.at(10));
    log.noticed(SEAT, Generation(2), clock.at(20), "loading");
    log.killed(SEAT, Generation(2), clock.at(20));
    reaped(&mut log, SEAT, 2, clock.reaping(20, 0));
    log.respawned(SEAT, clock.at(30));
    log.ready(SEAT, clock.at(50));
    assert!(log.tokens(SEAT, clock.at(60)));
    let (first, second) = (report(&log, 1), report(&log, 2));
    assert_eq!(first["timeline"]["respawned_ms"], 10.0, "its own successor");
    assert_eq!(first["timeline"]["first_token_ms"], 60.0);
    assert_eq!(second["timeline"]["respawned_ms"], 10.0);
    assert_eq!(second["timeline"]["ready_ms"], 30.0);
    let first_token = &second["timeline"]["first_token_ms"];
    assert!(first_token.is_null(), "nobody was with it");
    assert_eq!(second["cause"]["killed_by_supervisor"], true);
    assert_eq!(log.reported(), 2);

    let last = log.last().unwrap();
    let reaping = last.reaping.as_ref().unwrap();
    let (pause, stream_pause) = (
        reaping.pause(&last.successor),
        reaping.stream_pause(&last.successor),
    );
    assert_eq!(last.generation, Generation(2));
    assert_eq!(pause, Some(Duration::from_millis(49)), "since the first");
    assert_eq!(stream_pause, Some(Duration::from_millis(59)));
}

#[test]
fn what_the_witness_finds_late_is_added_to_a_report_that_is_complete() {
    let (mut log, clock) = (log(), Clock::new());
    log.noticed(SEAT, Generation(1), clock.at(0), "serving");
    let examine = |_: &Death, _: &Reaping| Some(GpuEvidence::default());
    log.reaped(SEAT, Generation(1), clock.reaping(1, 0), examine);
    log.respawned(SEAT, clock.at(2));
    log.ready(SEAT, clock.at(3));
    let now = report(&log, 1);
    assert!(now["gpu"]["residual_bytes"].is_null(), "{now}");
    let measure = |death: &mut Death| {
        death.gpu.as_mut().unwrap().measure = Some(crate::nvml::reckoning::Measure {
            freed_after: None,
            residual: Some(77),
        });
    };
    assert!(log.update(Generation(1), measure).is_some());
    assert!(log.update(Generation(2), measure).is_none());
    let then = report(&log, 1);
    assert_eq!(then["gpu"]["residual_bytes"], 77);
    assert_eq!(then["timeline"]["ready_ms"], 3.0, "and nothing is lost");
}

#[test]
fn a_dismissed_child_leaves_no_report() {
    let (mut log, clock) = (log(), Clock::new());
    log.noticed(SEAT, Generation(1), clock.at(0), "draining");
    let reaping = Reaping {
        cause: DeathCause::Dismissed,
        ..clock.reaping(1, 0)
    };
    reaped(&mut log, SEAT, 1, reaping);
    assert_eq!((log.reported(), log.store.list()), (0, vec![]));
    assert!(log.last().is_none());
}

#[test]
fn the_oldest_deaths_stay_as_they_are() {
    let (mut log, clock) = (log(), Clock::new());
    for generation in 1..=DEATHS_KEPT as u32 + 1 {
        reaped(&mut log, SEAT, generation, clock.reaping(0, 0));
    }
    log.ready(SEAT, clock.at(9));
    assert_eq!(log.deaths().count(), DEATHS_KEPT);
    assert!(log.deaths().all(|death| !death.is_unrecovered()));
    assert!(log.update(Generation(1), |_| {}).is_none());
}

#[test]
fn a_death_is_of_the_device_on_which_the_child_computed_whoever_takes_over() {
    let (mut log, clock) = (log(), Clock::new());
    reaped(&mut log, SEAT, 1, clock.reaping(0, 0));
    log.noticed(ELSEWHERE, Generation(2), clock.at(1), "serving");
    log.transfer(ELSEWHERE, SEAT);
    reaped(&mut log, SEAT, 2, clock.reaping(2, 0));
    let device = |generation| report(&log, generation)["device"].clone();
    assert_eq!(device(1), json!({"number": 0, "id": "cuda:0"}));
    assert_eq!(device(2), json!({"number": 1, "id": "cuda:3"}));
    let listed = log.store.list();
    let newest = (listed[0].device.as_deref(), listed[0].device_number);
    assert_eq!(newest, (Some("cuda:3"), Some(1)));
}
