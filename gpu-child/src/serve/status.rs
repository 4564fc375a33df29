//! What the heartbeat tells, written by the engine between steps and read at any time.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use worker_orcd_ipc::{Event, Heartbeat, Load, MemoryReport};

#[derive(Debug)]
pub(super) struct Status {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    steps: u64,
    step_began: Option<Instant>,
    load: Load,
    memory: MemoryReport,
    /// Bytes done and in all, while loading.
    progress: Option<(u64, u64)>,
}

impl Status {
    pub(super) fn new() -> Self {
        Self {
            inner: Mutex::default(),
        }
    }

    pub(super) fn set_progress(&self, progress: Option<(u64, u64)>) {
        self.lock().progress = progress;
    }

    pub(super) fn progress(&self) -> Option<(u64, u64)> {
        self.lock().progress
    }

    pub(super) fn step_begins(&self, now: Instant) {
        self.lock().step_began = Some(now);
    }

    pub(super) fn between_steps(&self, steps: u64, load: Load, memory: MemoryReport) {
        let mut inner = self.lock();
        *inner = Inner {
            steps,
            step_began: None,
            load,
            memory,
            progress: None,
        };
    }

    /// What is to be said at this beat.
    pub(super) fn events(&self, now: Instant) -> impl Iterator<Item = Event> + use<> {
        let inner = self.lock();
        let elapsed = |began| now.saturating_duration_since(began).as_millis() as u64;
        let heartbeat = Event::Heartbeat(Heartbeat {
            steps: inner.steps,
            step_elapsed_ms: inner.step_began.map(elapsed),
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
