//! Statistics of a running child: start, last heartbeat, and token rate.

use crate::crash::death::Deceased;
use crate::driver::rate::Rate;
use crate::engine::ChildSnapshot;
use std::time::{Duration, Instant};
use tracing::info;
use worker_orcd_ipc::{ChildHello, Counters, Generation, Heartbeat, MemoryReport, Role};

/// Shares of a load, in percent, that are logged.
const LOAD_MILESTONES: [u64; 5] = [0, 25, 50, 75, 100];

#[derive(Debug)]
pub(super) struct ChildStats {
    known: ChildSnapshot,
    /// Number of logged load milestones.
    milestones: usize,
    /// Tokens accepted from the child.
    tokens: u64,
    /// True once progress is reported to the lifecycle.
    has_progressed: bool,
    rate: Rate,
    /// True until the first heartbeat of an inherited child. Its counts up to then belong to another supervisor.
    is_resumed: bool,
    /// Arena layout in the child's `Hello`.
    arena_layout: Option<u64>,
}

impl ChildStats {
    pub(super) fn new(now: Instant, generation: Generation, pid: u32) -> Self {
        Self {
            known: ChildSnapshot::begun(pid, generation.0, now),
            milestones: 0,
            tokens: 0,
            has_progressed: false,
            rate: Rate::default(),
            is_resumed: false,
            arena_layout: None,
        }
    }

    /// Statistics of a child that served under another supervisor.
    pub(super) fn resumed(now: Instant, generation: Generation, pid: u32) -> Self {
        Self {
            is_resumed: true,
            ..Self::new(now, generation, pid)
        }
    }

    pub(super) fn hello(&mut self, hello: ChildHello) {
        self.arena_layout = Some(hello.arena_layout);
        self.known.build = Some(hello.build);
        self.known.features = hello.features;
    }

    pub(super) fn arena_layout(&self) -> Option<u64> {
        self.arena_layout
    }

    pub(super) fn load_progress(&mut self, now: Instant, bytes_done: u64, bytes_total: u64) {
        let before = self.known.load_progress;
        if before.is_none_or(|(done, _)| bytes_done > done) {
            self.known.progress_at = Some(now);
        }
        self.known.load_progress = Some((bytes_done, bytes_total));
        let generation = self.known.generation;
        while let Some(percent) = LOAD_MILESTONES.get(self.milestones)
            && reached(*percent, bytes_done, bytes_total)
        {
            info!(
                generation,
                percent, bytes_done, bytes_total, "model_load_progress"
            );
            self.milestones += 1;
        }
    }

    /// Records the load of a file of `file_bytes` bytes.
    pub(super) fn loaded(&mut self, now: Instant, memory: MemoryReport, file_bytes: u64) {
        self.known.memory = Some((memory, now));
        // A load that ends between two heartbeats still logs all its milestones.
        self.load_progress(now, file_bytes, file_bytes);
    }

    pub(super) fn drafts_with(&mut self, model: Option<String>) {
        self.known.draft_model = model;
    }

    pub(super) fn draft_model_stopped(&mut self, reason: String) {
        self.known.draft_model = None;
        self.known.draft_model_stopped = Some(reason);
    }

    pub(super) fn ready(&mut self, now: Instant) {
        self.known.ready_at = Some(now);
        self.known.progress_at = Some(now);
        self.known.load_progress = None;
    }

    /// Returns the increase of the child's counters.
    pub(super) fn heartbeat(&mut self, now: Instant, heartbeat: &Heartbeat) -> Counters {
        let before = self.known.load.map(|(load, _)| load).unwrap_or_default();
        let before = match std::mem::take(&mut self.is_resumed) {
            true => heartbeat.load,
            false => before,
        };
        self.known.memory = Some((heartbeat.memory, now));
        self.known.load = Some((heartbeat.load, now));
        self.known.heartbeat_at = Some(now);
        self.known.steps = Some(heartbeat.steps);
        self.known.step_elapsed = heartbeat.step_elapsed_ms.map(Duration::from_millis);
        self.rate.note(now, self.tokens);
        heartbeat.load.counters.since(before.counters)
    }

    /// Records the end of a step with `tokens` accepted tokens.
    pub(super) fn stepped(&mut self, now: Instant, tokens: u64) {
        self.known.progress_at = Some(now);
        self.tokens += tokens;
    }

    /// Records progress. True at the first time, which the lifecycle needs.
    pub(super) fn progresses(&mut self) -> bool {
        !std::mem::replace(&mut self.has_progressed, true)
    }

    // === accessors ===

    pub(super) fn has_progressed(&self) -> bool {
        self.has_progressed
    }

    pub(super) fn known(&self) -> &ChildSnapshot {
        &self.known
    }

    pub(super) fn snapshot(&self, now: Instant, role: Option<Role>) -> ChildSnapshot {
        ChildSnapshot {
            role,
            tokens_per_second: self.rate.per_second(now),
            ..self.known.clone()
        }
    }

    pub(super) fn deceased(&self) -> Deceased {
        Deceased {
            pid: self.known.pid,
            spawned_at: self.known.spawned_at,
            build: self.known.build.clone(),
            steps: self.known.steps,
            memory: self.known.memory.map(|(memory, _)| memory),
        }
    }
}

/// True if the share is reached. A total of 0 is unknown.
fn reached(percent: u64, done: u64, total: u64) -> bool {
    percent == 0 || total > 0 && u128::from(done) * 100 >= u128::from(percent) * u128::from(total)
}

#[cfg(test)]
mod tests {
    use super::*;
    use worker_orcd_ipc::Load;

    #[test]
    fn milestones_are_shares_of_a_known_total() {
        assert!(reached(0, 0, 0));
        assert!(!reached(25, 0, 0));
        assert!(!reached(25, 24, 100));
        assert!(reached(25, 25, 100));
    }

    #[test]
    fn what_a_child_counted_under_another_supervisor_is_not_counted_again() {
        let now = Instant::now();
        let beat = |prompt_tokens| Heartbeat {
            steps: 1,
            step_elapsed_ms: None,
            step_overdue: false,
            load: Load {
                counters: Counters {
                    prompt_tokens,
                    ..Counters::default()
                },
                ..Load::default()
            },
            memory: MemoryReport::default(),
        };
        let mut new = ChildStats::new(now, Generation(1), 7);
        assert_eq!(new.heartbeat(now, &beat(1000)).prompt_tokens, 1000);
        let mut resumed = ChildStats::resumed(now, Generation(1), 7);
        assert_eq!(resumed.heartbeat(now, &beat(1000)).prompt_tokens, 0);
        assert_eq!(resumed.heartbeat(now, &beat(1007)).prompt_tokens, 7);
    }
}
