//! One death of a child: its facts, completed as they arrive.
//!
//! ```text
//! noticed ─ exited ─► reaped: its cause is known ─► respawned ─ loaded ─ ready ─ first token
//!                        └─ examined, measured: evidence of the GPU monitor
//! ```
//!
//! Readers are the crash report, the log, the GPU monitor, and `last_death` of `/health`.

use crate::crash::gpu::GpuEvidence;
use crate::crash::report::{InFlight, report_id};
use serde_json::Value;
use std::time::{Duration, Instant, SystemTime};
use worker_orcd_ipc::{DeviceSelector, Generation, MemoryReport};
use worker_orcd_lifecycle::{DeathCause, DeviceId, Exit, SeatId};

/// Facts of a death. `None` is unknown, perhaps only so far.
#[derive(Debug, Clone)]
pub struct Death {
    /// Seat of the requests that wait for a successor. It changes at a failover to another seat.
    pub(crate) seat: SeatId,
    pub generation: Generation,
    pub device: Bed,
    /// Time of the first sign.
    pub(crate) noticed_at: Instant,
    /// State of the child then. `None`: there was no child yet.
    pub(crate) state: Option<&'static str>,
    pub(crate) killed_by_supervisor: bool,
    pub(crate) reaped: Option<(Instant, Exit)>,
    pub reaping: Option<Reaping>,
    /// Time since which the requests that continued before the reaping had no token. `None`: there were none.
    pub(crate) released: Option<Instant>,
    /// GPU evidence. `None` without a GPU.
    pub(crate) gpu: Option<GpuEvidence>,
    pub successor: Successor,
}

/// Device of the child.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bed {
    /// Index in the worker's list.
    pub number: DeviceId,
    pub selector: DeviceSelector,
}

/// Facts that are known with the cause.
#[derive(Debug, Clone)]
pub struct Reaping {
    pub(crate) at: Now,
    pub cause: DeathCause,
    /// The dead child. `None`: the spawn failed.
    pub(crate) child: Option<Deceased>,
    /// Time of the child's last flight recorder entry or heartbeat.
    pub(crate) last_sign_of_life: Option<Instant>,
    /// Flight recorder part of the report.
    pub(crate) flight_recorder: Value,
    pub(crate) requests: InFlight,
    pub(crate) host_available_bytes: Option<u64>,
    pub pause: Pause,
}

/// Last known facts of the child.
#[derive(Debug, Clone)]
pub(crate) struct Deceased {
    pub pid: u32,
    pub spawned_at: Instant,
    pub build: Option<String>,
    /// Finished steps at the last heartbeat.
    pub steps: Option<u64>,
    pub memory: Option<MemoryReport>,
}

/// Pause of clients by a death, or by several in a row: it starts with the first death and ends when a child serves in
/// this seat again.
#[derive(Debug, Clone, Copy)]
pub struct Pause {
    pub began: Instant,
    /// Time since which the child's requests had no token. `None`: it had no requests.
    pub(crate) silent_since: Option<Instant>,
}

/// Progress of the next children of this seat.
#[derive(Debug, Clone, Default)]
pub struct Successor {
    pub(crate) respawned_at: Option<Instant>,
    /// Memory report of the first child that loaded.
    pub(crate) memory: Option<MemoryReport>,
    /// Time at which a child serves again.
    pub(crate) ready_at: Option<Instant>,
    /// Time of the first token after that, if a request waited for one.
    pub(crate) first_token_at: Option<Instant>,
}

/// One time on three clocks. The last is the clock of flight recorder entries.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Now {
    pub instant: Instant,
    pub wall: SystemTime,
    pub monotonic_ns: u64,
}

impl Death {
    #[must_use]
    pub(super) fn noticed(seat: SeatId, generation: Generation, device: Bed, now: Instant) -> Self {
        Self {
            seat,
            generation,
            device,
            noticed_at: now,
            state: None,
            killed_by_supervisor: false,
            reaped: None,
            reaping: None,
            released: None,
            gpu: None,
            successor: Successor::default(),
        }
    }

    /// True while no child has served in this seat since.
    #[must_use]
    pub(crate) fn is_unrecovered(&self) -> bool {
        self.reaping.is_some() && self.successor.ready_at.is_none()
    }

    /// True if a child serves again and a waiting request has no token yet.
    #[must_use]
    pub(super) fn awaits_token(&self) -> bool {
        let waits = |reaping: &Reaping| reaping.pause.silent_since.is_some();
        self.successor.ready_at.is_some()
            && self.successor.first_token_at.is_none()
            && (self.released.is_some() || self.reaping.as_ref().is_some_and(waits))
    }
}

impl Reaping {
    /// Report id of the death.
    #[must_use]
    pub fn report_id(&self, death: &Death) -> String {
        report_id(self.wall_time_of(death.noticed_at), death.generation)
    }

    #[must_use]
    pub(super) fn wall_time_of(&self, moment: Instant) -> SystemTime {
        let ago = self.at.instant.saturating_duration_since(moment);
        self.at.wall.checked_sub(ago).unwrap_or(self.at.wall)
    }

    /// Duration of the pause up to the next child's readiness. `None` while it lasts.
    #[must_use]
    pub fn pause(&self, successor: &Successor) -> Option<Duration> {
        let ready_at = successor.ready_at?;
        Some(ready_at.saturating_duration_since(self.pause.began))
    }

    /// Pause of streams. `None` while it lasts, or without streams.
    #[must_use]
    pub fn stream_pause(&self, successor: &Successor) -> Option<Duration> {
        let (from, to) = (self.pause.silent_since?, successor.first_token_at?);
        Some(to.saturating_duration_since(from))
    }
}
