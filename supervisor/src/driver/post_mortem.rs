//! What the driver hands to the crash log at each turn of a child's end and of the next one's
//! beginning.

#![expect(clippy::disallowed_methods, reason = "a report names the time of day")]

use crate::crash::report::{ChildFacts, RequestFacts, milliseconds};
use crate::crash::{Deceased, Now};
use crate::driver::Driver;
use crate::driver::seat::Seat;
use crate::driver::witness::Buried;
use crate::requests::record::Record;
use crate::requests::scene::Scene;
use nix::time::{ClockId, clock_gettime};
use std::time::SystemTime;
use worker_orcd_ipc::Generation;
use worker_orcd_lifecycle::{DeathCause, SeatId, State};

impl Driver {
    /// The lifecycle has just been told something; `before` is the state it was in.
    pub(super) fn notice_death(&mut self, before: &'static str) {
        let is_dying = |seat: &Seat| {
            let state = self.worker.seat(seat.id).state();
            matches!(state, State::Killing { .. } | State::Reaping { .. })
        };
        if self.seats.iter().any(is_dying) {
            self.crashes.noticed(self.now, before);
        }
    }

    /// Before the journal hands its requests on. Where it met them is for the journal.
    pub(super) fn report_death(
        &mut self,
        seat: SeatId,
        generation: Generation,
        cause: &DeathCause,
    ) -> Scene {
        let (recording, stopped) = self.seat(seat).last_record();
        let scene = Scene {
            stopped,
            ..recording.as_ref().map(Scene::of).unwrap_or_default()
        };
        let now = Now {
            instant: self.now,
            wall: SystemTime::now(),
            monotonic_ns: monotonic_ns(),
        };
        let child = self.news.child();
        let buried = child.map(|child| Buried {
            generation: generation.0,
            pid: child.pid,
            spawned_at: child.spawned_at,
            reaped_at: self.crashes.reaped_at().unwrap_or(now.instant),
        });
        let gpu = buried
            .filter(|_| *cause != DeathCause::Dismissed)
            .and_then(|buried| self.gpu.child_died(buried, now.instant));
        let dead = Deceased {
            child: ChildFacts {
                generation: generation.0,
                pid: child.map(|child| child.pid),
                build: child.and_then(|child| child.build.clone()),
                state: "",
                uptime_ms: child
                    .map(|child| milliseconds(now.instant.duration_since(child.spawned_at))),
                steps: child.and_then(|child| child.steps),
            },
            heartbeat_at: child.and_then(|child| child.heartbeat_at),
            memory: self.news.own_memory(),
            recording,
            requests: self.requests.in_flight(seat).map(facts).collect(),
            host_available_bytes: host_available_bytes(),
            gpu,
        };
        if let Some(id) = self.crashes.died(now, cause, dead) {
            self.news.reported(id);
        }
        scene
    }

    /// Tokens came from a child that is believed.
    pub(super) fn note_tokens(&mut self) {
        if self.crashes.tokens(self.now) {
            self.news.flowing_again(self.now);
        }
        self.news.tokens(self.now);
    }
}

/// Numbers and names; the tokens stay where they are.
fn facts(record: &Record) -> RequestFacts {
    let progress = record.progress.lock();
    RequestFacts {
        request: record.id.0,
        job_id: record.job_id.clone(),
        tokens_in: record.tokens_in(),
        tokens_out: progress.tokens_out(),
        max_tokens: record.max_tokens,
        recoveries: progress.recoveries(),
    }
}

/// 0 when there is no such clock, which makes every record look new.
fn monotonic_ns() -> u64 {
    clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(0, |now| {
        now.tv_sec().unsigned_abs() * 1_000_000_000 + now.tv_nsec().unsigned_abs()
    })
}

/// What the kernel could still give without swapping.
fn host_available_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_has_memory_and_a_clock_that_runs() {
        assert!(host_available_bytes().is_some_and(|bytes| bytes > 1 << 20));
        let before = monotonic_ns();
        assert!(before > 0 && monotonic_ns() >= before);
    }
}
