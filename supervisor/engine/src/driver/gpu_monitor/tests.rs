#![expect(clippy::disallowed_methods, reason = "a test begins at some moment")]
use super::*;
use crate::crash::death::{Deceased, Now, Pause};
use crate::crash::report::InFlight;
use crate::crash::{CrashSettings, CrashStore};
use crate::nvml::driver_is_loaded;
use crate::nvml::played::PlayedGpu;
use crate::nvml::reckoning::Measure;
use std::time::SystemTime;
use worker_orcd_ipc::DeviceSelector;
use worker_orcd_lifecycle::{DeathCause, RecoveryAction, SeatId};

const DEVICES: [DeviceSelector; 1] = [DeviceSelector::Cuda(0)];
const CHILD: u32 = 4_100_007;
const NEIGHBOUR: u32 = 4_100_008;
const MIB: u64 = 1 << 20;

fn watch(gpu: &Arc<PlayedGpu>) -> GpuMonitor {
    let since = Instant::now();
    let nvml_monitor = NvmlMonitor::start(gpu.opener()).unwrap();
    GpuMonitor::of(DeviceId(0), Some(nvml_monitor), Nvml::Opening { since })
}

fn log() -> CrashLog {
    let settings = CrashSettings {
        directory: None,
        max_reports: 10,
    };
    CrashLog::new(Arc::new(CrashStore::open(settings)), &DEVICES)
}

/// Next sample and its verdict.
async fn see(watch: &mut GpuMonitor, log: &mut CrashLog) -> (GpuSample, Option<GpuVerdict>) {
    let patience = Duration::from_secs(20);
    let sample = tokio::time::timeout(patience, watch.next()).await;
    let sample = sample.expect("a sample");
    let verdict = watch.note(sample.clone(), &[CHILD], log);
    (sample, verdict)
}

/// Samples up to the first that matches.
async fn see_until(
    watch: &mut GpuMonitor,
    log: &mut CrashLog,
    is_wanted: impl Fn(&GpuSample) -> bool,
) -> (GpuSample, Option<GpuVerdict>) {
    loop {
        let seen = see(watch, log).await;
        if is_wanted(&seen.0) {
            return seen;
        }
    }
}

fn is_gauges(sample: &GpuSample) -> bool {
    matches!(sample, GpuSample::Gauges(..))
}

/// GPU evidence on the death of the child of this generation.
fn reaped(
    watch: &GpuMonitor,
    log: &mut CrashLog,
    generation: u32,
    (spawned_at, died_at): (Instant, Instant),
) -> Option<GpuEvidence> {
    let reaping = Reaping {
        at: Now {
            instant: died_at,
            wall: SystemTime::now(),
            monotonic_ns: 0,
        },
        cause: DeathCause::Signalled(11),
        child: Some(Deceased {
            pid: CHILD,
            spawned_at,
            build: None,
            steps: None,
            memory: None,
        }),
        last_sign_of_life: None,
        flight_recorder: serde_json::Value::Null,
        requests: InFlight::default(),
        host_available_bytes: None,
        pause: Pause {
            began: died_at,
            silent_since: None,
        },
    };
    let examine = |death: &Death, reaping: &Reaping| watch.examine(death, reaping);
    log.reaped(SeatId(0), Generation(generation), reaping, examine);
    evidence_of(log, generation)
}

fn evidence_of(log: &CrashLog, generation: u32) -> Option<GpuEvidence> {
    let mut deaths = log.deaths();
    let death = deaths.find(|death| death.generation == Generation(generation));
    death?.gpu.clone()
}

fn after_death(xids: &[u32], action: Option<RecoveryAction>) -> Option<GpuVerdict> {
    let xids = xids.iter().map(|number| Xid(Some(*number))).collect();
    Some(GpuVerdict::AfterDeath { xids, action })
}

#[tokio::test]
async fn on_the_cpu_device_nobody_looks() {
    let mut watch = GpuMonitor::new(DeviceId(0), DeviceSelector::Cpu, Instant::now());
    assert_eq!(watch.snapshot().nvml, Nvml::Off);
    let now = Instant::now();
    let mut log = log();
    assert_eq!(reaped(&watch, &mut log, 1, (now, now)), None);
    assert_eq!(watch.next_deadline(&log), None);
    let silence = tokio::time::timeout(Duration::from_millis(20), watch.next()).await;
    assert!(silence.is_err(), "{silence:?}");
}

#[tokio::test]
async fn without_the_library_everything_is_unknown_and_the_reason_is_kept() {
    let mut log = log();
    if driver_is_loaded() {
        return;
    }
    let mut watch = GpuMonitor::new(DeviceId(0), DeviceSelector::Cuda(0), Instant::now());
    see_until(&mut watch, &mut log, |it| {
        matches!(it, GpuSample::Absent(_))
    })
    .await;
    let (state, reason) = watch.snapshot().state(Instant::now());
    assert_eq!(state, "absent");
    assert!(!reason.unwrap().is_empty());
    let now = Instant::now();
    let evidence = reaped(&watch, &mut log, 1, (now, now)).unwrap();
    let unknown = GpuEvidence {
        action_due: evidence.action_due,
        ..GpuEvidence::default()
    };
    assert_eq!(evidence, unknown);
    let overdue = watch.overdue(Instant::now() + WORD_WITHIN, &mut log);
    assert_eq!(overdue, Vec::from_iter(after_death(&[], None)));
    assert_eq!(overdue[0].condemns(), None, "unknown condemns nothing");
}

#[tokio::test]
async fn a_library_that_blocks_delays_nobody_and_is_called_silent() {
    let mut log = log();
    let gpu = PlayedGpu::new();
    gpu.holds(4 * MIB, &[]);
    gpu.is_wedged(true);
    let asked_at = Instant::now();
    let mut watch = watch(&gpu);
    let died_at = Instant::now();
    // There are more deaths than queue places. None of them blocks.
    for generation in 1..=12 {
        reaped(&watch, &mut log, generation, (asked_at, died_at));
    }
    assert!(asked_at.elapsed() < Duration::from_secs(1));
    let (state, _) = watch.snapshot().state(asked_at + Duration::from_secs(6));
    assert_eq!(state, "silent");
    assert_eq!(
        watch.overdue(died_at, &mut log).len(),
        4,
        "those that no queue holds"
    );
    assert_eq!(watch.next_deadline(&log), Some(died_at + WORD_WITHIN));
    assert_eq!(watch.overdue(died_at + WORD_WITHIN, &mut log).len(), 8);
    assert_eq!(watch.next_deadline(&log), None);

    gpu.is_wedged(false);
    see_until(&mut watch, &mut log, is_gauges).await;
    let (state, _) = watch.snapshot().state(Instant::now());
    assert_eq!(state, "watching", "it may come back");
}

#[tokio::test]
async fn a_death_is_explained_by_its_xids_and_measured_until_the_memory_is_back() {
    let mut log = log();
    let gpu = PlayedGpu::new();
    gpu.holds(304 * MIB, &[(NEIGHBOUR, 300 * MIB)]);
    gpu.asks_for(RecoveryAction::None);
    let mut watch = watch(&gpu);
    see_until(&mut watch, &mut log, is_gauges).await;
    watch.load_begins(Instant::now());
    assert_eq!(watch.snapshot().baseline, Some(4 * MIB));
    let spawned_at = Instant::now();
    watch.keeps(100 * MIB);
    gpu.holds(904 * MIB, &[(CHILD, 600 * MIB), (NEIGHBOUR, 300 * MIB)]);
    see_until(&mut watch, &mut log, |it| match it {
        GpuSample::Gauges(gauges, _) => {
            let memory = gauges.memory.as_ref();
            memory.is_some_and(|it| it.used == 904 * MIB)
        }
        _ => false,
    })
    .await;
    assert_eq!(watch.snapshot().baseline, Some(4 * MIB), "still");
    gpu.reports(31);
    let (_, verdict) = see_until(&mut watch, &mut log, |it| matches!(it, GpuSample::Xid(_))).await;
    assert_eq!(verdict, Some(GpuVerdict::Reported(Xid(Some(31)))));
    assert_eq!(watch.snapshot().xids, [(Xid(Some(31)), 1)].into());

    let evidence = reaped(&watch, &mut log, 1, (spawned_at, Instant::now())).unwrap();
    assert_eq!(evidence.xids.len(), 1);
    let before = evidence.before.unwrap();
    assert_eq!((before.child, before.used), (Some(600 * MIB), 904 * MIB));
    assert_eq!(evidence.baseline, Some(4 * MIB));

    let (_, verdict) = see_until(&mut watch, &mut log, |it| {
        matches!(it, GpuSample::Examined { .. })
    })
    .await;
    assert_eq!(verdict, after_death(&[31], Some(RecoveryAction::None)));
    assert_eq!(watch.next_deadline(&log), None, "the word came in time");

    // The driver frees all memory except the retained part, and a neighbour allocates more.
    gpu.holds(704 * MIB, &[(NEIGHBOUR, 600 * MIB)]);
    let (_, verdict) = see_until(&mut watch, &mut log, |it| {
        matches!(it, GpuSample::Measured { .. })
    })
    .await;
    assert!(verdict.is_some());
    let evidence = evidence_of(&log, 1).unwrap();
    let measure = evidence.measure.unwrap();
    assert_eq!(measure.residual, Some(0));
    assert!(measure.freed_after.is_some_and(|it| it > Duration::ZERO));
    assert_eq!(evidence.before, Some(before), "what was known stays");
    assert_eq!(watch.snapshot().last_measure, Some(measure));
}

#[tokio::test]
async fn figures_are_taken_when_a_child_is_ready_and_are_nobody_else_s() {
    let mut log = log();
    let gpu = PlayedGpu::new();
    gpu.holds(4 * MIB, &[]);
    let mut watch = watch(&gpu);
    see_until(&mut watch, &mut log, is_gauges).await;
    // The first sample precedes this child's spawn.
    let spawned_at = Instant::now();
    let young = reaped(&watch, &mut log, 1, (spawned_at, Instant::now()));
    assert_eq!(young.unwrap().before, None);

    gpu.holds(604 * MIB, &[(CHILD, 600 * MIB)]);
    let ready_at = Instant::now();
    watch.child_computes_on(None);
    see_until(&mut watch, &mut log, is_gauges).await;
    assert!(
        ready_at.elapsed() < Duration::from_millis(900),
        "not in turn"
    );
    let dead = reaped(&watch, &mut log, 2, (spawned_at, Instant::now()));
    assert_eq!(dead.unwrap().before.unwrap().child, Some(600 * MIB));
}

#[tokio::test]
async fn an_xid_that_comes_after_its_death_is_told_with_it_and_an_old_one_is_not_near() {
    let mut log = log();
    let gpu = PlayedGpu::new();
    let mut watch = watch(&gpu);
    see_until(&mut watch, &mut log, is_gauges).await;
    let died_at = Instant::now();
    let seen = |number, at| {
        GpuSample::Xid(SeenXid {
            xid: Xid(Some(number)),
            at,
            wall: std::time::SystemTime::now(),
            kernel: None,
        })
    };
    let spawned_at = died_at - Duration::from_secs(60);
    watch.note(seen(74, died_at - Duration::from_secs(30)), &[], &mut log);
    reaped(&watch, &mut log, 1, (spawned_at, died_at));
    watch.note(seen(45, died_at + Duration::from_millis(20)), &[], &mut log);
    let examined = GpuSample::Examined {
        generation: 1,
        action: None,
    };
    let verdict = watch.note(examined, &[], &mut log);
    assert_eq!(verdict, after_death(&[45], None));
    let evidence = evidence_of(&log, 1).unwrap();
    assert_eq!(evidence.xids.len(), 2, "the report has both");

    // An Xid half a minute later does not belong to the first report.
    watch.note(seen(13, died_at + Duration::from_secs(30)), &[], &mut log);
    let measured = GpuSample::Measured {
        generation: 1,
        measure: Measure::default(),
    };
    watch.note(measured, &[], &mut log);
    let evidence = evidence_of(&log, 1).unwrap();
    assert_eq!(evidence.xids.len(), 2);
    let unknown = GpuSample::Examined {
        generation: 9,
        action: Some(RecoveryAction::GpuReset),
    };
    assert_eq!(watch.note(unknown, &[], &mut log), None);
}

#[tokio::test]
async fn a_witness_of_another_card_is_dismissed() {
    let mut log = log();
    let gpu = PlayedGpu::new();
    let mut watch = watch(&gpu);
    see_until(&mut watch, &mut log, |it| {
        matches!(it, GpuSample::Opened(_))
    })
    .await;
    watch.child_computes_on(Some("played"));
    assert!(watch.nvml_monitor.is_some(), "the same one");
    watch.child_computes_on(None);
    assert!(watch.nvml_monitor.is_some(), "unknown is no contradiction");
    watch.child_computes_on(Some("GPU-other"));
    assert!(watch.nvml_monitor.is_none());
    let (state, reason) = watch.snapshot().state(Instant::now());
    assert_eq!(state, "absent");
    assert!(reason.unwrap().contains("CUDA_DEVICE_ORDER"));
}

#[tokio::test]
async fn a_driver_without_xid_events_still_gives_figures() {
    let mut log = log();
    let gpu = PlayedGpu::new();
    gpu.is_deaf();
    let mut watch = watch(&gpu);
    see_until(&mut watch, &mut log, |it| matches!(it, GpuSample::Deaf(_))).await;
    see_until(&mut watch, &mut log, is_gauges).await;
    let (state, reason) = watch.snapshot().state(Instant::now());
    assert_eq!(state, "watching");
    assert!(reason.unwrap().contains("not supported"));
}
