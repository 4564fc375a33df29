//! Status reported by heartbeats. The engine writes it between steps; any thread reads it at any time.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use worker_orcd_ipc::{Event, Heartbeat, Load, MemoryReport};

#[derive(Debug)]
pub(super) struct Status {
    inner: Mutex<Inner>,
    doing: AtomicU8,
}

/// Present work of the engine thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Doing {
    Loads,
    TakesOver,
    WaitsForCommands,
    WaitsForMasks,
    Plans,
    Drafts,
    Computes,
    WaitsForDevice,
    Inspects,
    Sends,
}

impl Doing {
    const ALL: [Self; 10] = [
        Self::Loads,
        Self::TakesOver,
        Self::WaitsForCommands,
        Self::WaitsForMasks,
        Self::Plans,
        Self::Drafts,
        Self::Computes,
        Self::WaitsForDevice,
        Self::Inspects,
        Self::Sends,
    ];

    pub(super) fn words(self) -> &'static str {
        match self {
            Self::Loads => "loads",
            Self::TakesOver => "takes over from a dead child",
            Self::WaitsForCommands => "waits for commands",
            Self::WaitsForMasks => "waits for what a grammar allows",
            Self::Plans => "plans a step",
            Self::Drafts => "computes with the draft model",
            Self::Computes => "launches or computes a step",
            Self::WaitsForDevice => "waits for the device",
            Self::Inspects => "looks whether the weights are the same",
            Self::Sends => "sends to the supervisor",
        }
    }
}

#[derive(Debug, Default)]
struct Inner {
    steps: u64,
    /// The oldest step in flight.
    step_began: Option<(u64, Instant)>,
    /// Time at which the present device call becomes overdue, if known.
    overdue_at: Option<Instant>,
    load: Load,
    memory: MemoryReport,
    /// Bytes loaded and total bytes, during a load.
    progress: Option<(u64, u64)>,
}

impl Status {
    pub(super) fn new() -> Self {
        Self {
            inner: Mutex::default(),
            doing: AtomicU8::new(Doing::Loads as u8),
        }
    }

    pub(super) fn set_progress(&self, progress: Option<(u64, u64)>) {
        self.lock().progress = progress;
    }

    pub(super) fn progress(&self) -> Option<(u64, u64)> {
        self.lock().progress
    }

    pub(super) fn step_begins(&self, step: u64, now: Instant) {
        self.lock().step_began = Some((step, now));
    }

    /// The oldest step in flight, and its start.
    pub(super) fn step(&self) -> Option<(u64, Instant)> {
        self.lock().step_began
    }

    /// Records a device call: computation or wait. `patience`: duration after which it is overdue.
    pub(super) fn calls_device(&self, doing: Doing, patience: Option<Duration>) {
        self.lock().overdue_at = patience.map(|patience| Instant::now() + patience);
        self.does(doing);
    }

    /// Time at which the present device call becomes, or became, overdue.
    pub(super) fn overdue_at(&self) -> Option<Instant> {
        let calls = matches!(self.doing(), Doing::Computes | Doing::WaitsForDevice);
        self.lock().overdue_at.filter(|_| calls)
    }

    /// True if the step takes far longer than others of its size.
    pub(super) fn is_overdue(&self, now: Instant) -> bool {
        self.overdue_at().is_some_and(|at| at <= now)
    }

    pub(super) fn does(&self, doing: Doing) {
        self.doing.store(doing as u8, Ordering::Relaxed);
    }

    pub(super) fn doing(&self) -> Doing {
        Doing::ALL[usize::from(self.doing.load(Ordering::Relaxed))]
    }

    pub(super) fn between_steps(&self, steps: u64, load: Load, memory: MemoryReport) {
        let mut inner = self.lock();
        *inner = Inner {
            steps,
            step_began: None,
            overdue_at: None,
            load,
            memory,
            progress: None,
        };
    }

    /// Events of this heartbeat.
    pub(super) fn events(&self, now: Instant) -> impl Iterator<Item = Event> + use<> {
        let step_overdue = self.is_overdue(now);
        let inner = self.lock();
        let elapsed = |(_, began)| now.saturating_duration_since(began).as_millis() as u64;
        let heartbeat = Event::Heartbeat(Heartbeat {
            steps: inner.steps,
            step_elapsed_ms: inner.step_began.map(elapsed),
            step_overdue,
            load: inner.load,
            memory: inner.memory,
        });
        let progress = inner
            .progress
            .map(|(bytes_done, bytes_total)| Event::LoadProgress {
                bytes_done,
                bytes_total,
            });
        std::iter::once(heartbeat).chain(progress)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_call_of_the_device_is_overdue() {
        let status = Status::new();
        let soon = Duration::from_millis(20);
        let called = Instant::now();
        let is_overdue = |status: &Status| status.is_overdue(called + 10 * soon);
        for doing in [Doing::Computes, Doing::WaitsForDevice] {
            status.calls_device(doing, Some(soon));
            assert!(
                !status.is_overdue(called) && is_overdue(&status),
                "{doing:?}"
            );
        }
        for doing in [Doing::WaitsForMasks, Doing::TakesOver, Doing::Plans] {
            status.does(doing);
            assert!(!is_overdue(&status), "{doing:?}");
        }
        status.calls_device(Doing::Computes, None);
        assert!(!is_overdue(&status), "it has no deadline");
    }
}
