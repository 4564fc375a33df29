#![expect(clippy::disallowed_methods, reason = "a test begins at some moment")]
use super::*;
use crate::child::spawn::Spawner;
use crate::crash::{CrashSettings, CrashStore};
use crate::driver::child_stats::ChildStats;
use crate::driver::gpu_monitors::GpuMonitors;
use parking_lot::RwLock;
use std::num::NonZeroU8;
use std::time::Duration;
use worker_orcd_ipc::{Counters, DeviceSelector, Load, MemoryReport};
use worker_orcd_lifecycle::{ChildEvent, Event, PreviousChild, Settings};
use worker_orcd_requests::orphans::Orphans;
use worker_orcd_requests::testing::{Journal, request};

const TWO: NonZeroU8 = NonZeroU8::new(2).unwrap();
const ONE: SeatId = SeatId(0);
/// A seat of another device.
const OTHER: SeatId = SeatId(2);
const DEVICES: [DeviceSelector; 2] = [DeviceSelector::Cpu; 2];

/// Two devices and all sources of a snapshot.
struct Scenery {
    start: Instant,
    observer: Observer,
    seats: Seats,
    worker: Worker,
    journal: Journal,
    shared: Shared,
}

impl Scenery {
    fn new() -> Self {
        let start = Instant::now();
        let journal = Journal::with_devices(4, TWO);
        let before = [const { PreviousChild::None }; DEVICES.len()];
        let (worker, _) = Worker::start(Duration::ZERO, Settings::default(), &before);
        let crashes = Arc::new(CrashStore::open(CrashSettings {
            directory: None,
            max_reports: 10,
        }));
        Self {
            start,
            observer: Observer {
                snapshots: SnapshotBuilder::new(start, "model.gguf", &DEVICES),
                crashes: CrashLog::new(Arc::clone(&crashes), &DEVICES),
                gpu: GpuMonitors::of(&DEVICES, start),
            },
            seats: Seats::new(worker.seats(), start, &Spawner::new().0),
            worker,
            shared: Shared {
                registry: Arc::clone(&journal.registry),
                model: RwLock::new(None),
                snapshot: RwLock::new(Arc::new(EngineSnapshot::before_anything(start))),
                crashes,
                orphans: Orphans::default(),
                on_fault: journal.on_fault,
            },
            journal,
        }
    }

    fn at(&self, ms: u64) -> Instant {
        self.start + Duration::from_millis(ms)
    }

    /// Spawns a child with its generation as process id.
    fn spawn(&mut self, ms: u64, seat: SeatId, generation: u32) {
        let (now, generation) = (self.at(ms), Generation(generation));
        self.seats[seat].stats = Some(ChildStats::new(now, generation, generation.0));
        self.observer.spawned(now, seat, generation, generation.0);
    }

    fn serve(&mut self, ms: u64, seat: SeatId) {
        let now = self.at(ms);
        let stats = self.seats[seat].stats.as_mut();
        stats.expect("a child").ready(now);
        let generation = self.worker.seat(seat).generation();
        let (pid, features) = (generation.0, vec![]);
        for event in [
            ChildEvent::Spawned { pid },
            ChildEvent::Hello { pid, features },
            ChildEvent::Ready,
        ] {
            let event = Event::Child { generation, event };
            self.worker.handle(now - self.start, event);
        }
        self.observer.crashes.ready(seat, now);
        self.journal.serve(seat);
    }

    fn beat(&mut self, ms: u64, seat: SeatId, prompt_tokens: u64) {
        let heartbeat = Heartbeat {
            step_elapsed_ms: None,
            step_overdue: false,
            steps: ms,
            memory: MemoryReport::default(),
            load: Load {
                running: 1,
                counters: Counters {
                    prompt_tokens,
                    ..Counters::default()
                },
                ..Load::default()
            },
        };
        let now = self.at(ms);
        self.observer
            .heartbeat(now, &mut self.seats[seat], &heartbeat);
    }

    fn step(&mut self, ms: u64, seat: SeatId, tokens: u64) {
        let now = self.at(ms);
        self.observer.stepped(now, &mut self.seats[seat], tokens);
    }

    fn die(&mut self, ms: u64, seat: SeatId, generation: u32, cause: DeathCause) {
        let (now, generation) = (self.at(ms), Generation(generation));
        let (dead, requests) = (&mut self.seats[seat], &self.journal.requests);
        let observer = &mut self.observer;
        observer.crashes.noticed(seat, generation, now, "serving");
        observer.reaped(now, dead, generation, &cause, requests);
        dead.clear();
    }

    fn snapshot(&mut self, ms: u64) -> EngineSnapshot {
        let now = self.at(ms);
        let (worker, requests) = (&self.worker, &self.journal.requests);
        let observer = &mut self.observer;
        observer.snapshots.touch();
        let snapshot = observer.snapshot(now, &self.seats, worker, requests, &self.shared);
        snapshot.expect("there is something new")
    }
}

fn generations(snapshot: &EngineSnapshot) -> Vec<u32> {
    let children = snapshot.children.iter();
    children.map(|child| child.generation).collect()
}

#[tokio::test]
async fn two_children_are_told_of_side_by_side_and_a_death_leaves_the_other_as_it_was() {
    let mut scenery = Scenery::new();
    scenery.spawn(0, ONE, 1);
    scenery.spawn(0, OTHER, 2);
    scenery.serve(100, OTHER);
    scenery.beat(1000, ONE, 5);
    scenery.beat(1000, OTHER, 70);
    scenery.step(1500, ONE, 10);
    scenery.step(1500, OTHER, 30);
    scenery.beat(2000, ONE, 6);
    scenery.beat(2000, OTHER, 90);
    let both = scenery.snapshot(2000);
    assert_eq!(generations(&both), [1, 2]);
    let speaker = both.child().map(|child| child.generation);
    assert_eq!(speaker, Some(2), "who serves speaks for both");
    let (load, _) = both.load.children.unwrap();
    assert_eq!((load.running, load.counters.prompt_tokens), (2, 96));
    assert_eq!(both.load.counters.prompt_tokens, 96);
    assert_eq!(both.load.tokens_per_second, 40.0);

    scenery.die(2100, ONE, 1, DeathCause::Signalled(9));
    let one = scenery.snapshot(2100);
    assert_eq!(generations(&one), [2]);
    let (load, _) = one.load.children.unwrap();
    assert_eq!((load.running, load.counters.prompt_tokens), (1, 90));
    assert_eq!(one.load.tokens_per_second, 30.0);
    assert_eq!(
        one.load.counters.prompt_tokens, 96,
        "what was done was done"
    );
    assert_eq!(one.interrupted_at, None, "the dead child never served");

    scenery.spawn(2200, ONE, 3);
    scenery.beat(2300, ONE, 4);
    let next = scenery.snapshot(2300);
    assert_eq!(generations(&next), [3, 2], "by their seats");
    assert_eq!(next.load.counters.prompt_tokens, 100, "it counts from zero");
}

#[tokio::test]
async fn whatever_children_count_the_sums_hold() {
    let mut scenery = Scenery::new();
    for (seat, generation) in [(ONE, 1), (OTHER, 2)] {
        scenery.spawn(0, seat, generation);
        scenery.beat(1000, seat, u64::MAX);
    }
    let snapshot = scenery.snapshot(1000);
    let (load, _) = snapshot.load.children.unwrap();
    assert_eq!((load.running, load.counters.prompt_tokens), (2, u64::MAX));
    assert_eq!(snapshot.load.counters.prompt_tokens, u64::MAX);
    let memory = MemoryReport {
        weights_bytes: u64::MAX,
        kv_capacity_bytes: u64::MAX,
        ..MemoryReport::default()
    };
    assert_eq!(memory.known_bytes(), u64::MAX);
}

/// A standby allocates its KV cache on promotion. Another death may precede its first report of that memory.
#[tokio::test]
async fn a_child_without_a_kv_cache_leaves_the_size_of_the_next_ones_as_it_was() {
    let mut scenery = Scenery::new();
    for (generation, kv_capacity_bytes) in [(1, 20), (2, 0)] {
        scenery.spawn(0, ONE, generation);
        let heartbeat = Heartbeat {
            step_elapsed_ms: None,
            step_overdue: false,
            steps: 0,
            memory: MemoryReport {
                kv_capacity_bytes,
                ..MemoryReport::default()
            },
            load: Load::default(),
        };
        let (now, seat) = (scenery.at(1), &mut scenery.seats[ONE]);
        scenery.observer.heartbeat(now, seat, &heartbeat);
        assert_eq!(
            scenery.observer.kv_bytes(ONE.device()),
            Some(20),
            "{generation}"
        );
    }
}

#[tokio::test]
async fn two_children_that_die_at_once_have_a_pause_each() {
    let mut scenery = Scenery::new();
    for (seat, generation) in [(ONE, 1), (OTHER, 2)] {
        scenery.spawn(0, seat, generation);
        scenery.serve(100, seat);
    }
    let (_, _stream) = scenery.journal.submit(request("with one of them"));
    scenery.die(1000, ONE, 1, DeathCause::Signalled(9));
    scenery.die(1000, OTHER, 2, DeathCause::OomKilled);
    scenery.spawn(1100, OTHER, 3);
    scenery.serve(1500, OTHER);
    scenery.step(1600, OTHER, 1);
    let ms = |time: Duration| time.as_millis();
    let now = scenery.snapshot(1600);
    let last = now.faults.last.unwrap();
    let reaping = last.reaping.as_ref().unwrap();
    assert_eq!(last.seat, OTHER);
    assert_eq!(reaping.cause, DeathCause::OomKilled);
    assert_eq!(reaping.pause(&last.successor).map(ms), Some(500));
    assert_eq!(
        reaping.stream_pause(&last.successor),
        None,
        "nobody was there"
    );
    let mut deaths = scenery.observer.crashes.deaths();
    let first = deaths.find(|death| death.seat == ONE).unwrap();
    assert!(first.is_unrecovered());
    assert_eq!(first.reaping.as_ref().unwrap().requests.count, 1);
}
