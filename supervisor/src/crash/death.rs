//! One death of a child: everything that is known of it, filled in as it becomes known.
//!
//! ```text
//! noticed ─ reaped ─► buried: its cause is known ─► respawned ─ loaded ─ ready ─ first token
//!                        └─ examined, measured: what the GPU's witness adds
//! ```
//!
//! The crash report, the log, the witness of the GPU and `last_death` of /health all read this.

use crate::crash::gpu::GpuEvidence;
use crate::crash::report::{InFlight, report_id};
use serde_json::Value;
use std::time::{Duration, Instant, SystemTime};
use worker_orcd_ipc::{DeviceSelector, Generation, MemoryReport};
use worker_orcd_lifecycle::{DeathCause, DeviceId, Exit, SeatId};

/// `None` is not known, or not yet.
#[derive(Debug, Clone)]
pub struct Death {
    /// Of those who wait for its successor; another one where an heir takes over.
    pub seat: SeatId,
    pub generation: Generation,
    pub device: Bed,
    /// The first sign of it.
    pub noticed_at: Instant,
    /// The worker's word for what the child was doing then. `None`: there was no child yet.
    pub state: Option<&'static str>,
    pub killed_by_supervisor: bool,
    pub reaped: Option<(Instant, Exit)>,
    pub burial: Option<Burial>,
    /// Since when those had had no token who went on before the burial. `None`: nobody did.
    pub released: Option<Instant>,
    /// `None` where there is no GPU.
    pub gpu: Option<GpuEvidence>,
    pub successor: Successor,
}

/// The device that the child computed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bed {
    /// Its place in the worker's list.
    pub number: DeviceId,
    pub selector: DeviceSelector,
}

/// Facts that are known as soon as the cause is.
#[derive(Debug, Clone)]
pub struct Burial {
    pub at: Now,
    pub cause: DeathCause,
    /// `None` when no process came about.
    pub child: Option<Deceased>,
    /// The child's last record or heartbeat.
    pub last_sign_of_life: Option<Instant>,
    /// The flight recorder's record, as a report shows it.
    pub flight_recorder: Value,
    pub requests: InFlight,
    pub host_available_bytes: Option<u64>,
    pub pause: Pause,
}

/// The child, as it was known last.
#[derive(Debug, Clone)]
pub struct Deceased {
    pub pid: u32,
    pub spawned_at: Instant,
    pub build: Option<String>,
    /// Steps that it finished, as its last heartbeat said.
    pub steps: Option<u64>,
    pub memory: Option<MemoryReport>,
}

/// The pause that clients see of a death, or of several in a row: until a child serves again in
/// this seat, the pause is that of the first.
#[derive(Debug, Clone, Copy)]
pub struct Pause {
    pub began: Instant,
    /// Since when those who were with the child had no token. `None`: nobody was.
    pub silent_since: Option<Instant>,
}

/// Progress of the next children of this seat.
#[derive(Debug, Clone, Default)]
pub struct Successor {
    pub respawned_at: Option<Instant>,
    /// Memory as the first that loaded told it.
    pub memory: Option<MemoryReport>,
    /// A child serves again.
    pub ready_at: Option<Instant>,
    /// The first token after that, if somebody waited for one.
    pub first_token_at: Option<Instant>,
}

/// Two clocks at one moment, and the one that children stamp their records with.
#[derive(Debug, Clone, Copy)]
pub struct Now {
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
            burial: None,
            released: None,
            gpu: None,
            successor: Successor::default(),
        }
    }

    /// True while no child has served in this seat since.
    #[must_use]
    pub fn is_unrecovered(&self) -> bool {
        self.burial.is_some() && self.successor.ready_at.is_none()
    }

    /// A child serves again, and somebody had no token yet.
    #[must_use]
    pub(super) fn awaits_token(&self) -> bool {
        let waits = |burial: &Burial| burial.pause.silent_since.is_some();
        self.successor.ready_at.is_some()
            && self.successor.first_token_at.is_none()
            && (self.released.is_some() || self.burial.as_ref().is_some_and(waits))
    }
}

impl Burial {
    /// The id of the death's report.
    #[must_use]
    pub fn report_id(&self, death: &Death) -> String {
        report_id(self.wall_time_of(death.noticed_at), death.generation)
    }

    #[must_use]
    pub(super) fn wall_time_of(&self, moment: Instant) -> SystemTime {
        let ago = self.at.instant.saturating_duration_since(moment);
        self.at.wall.checked_sub(ago).unwrap_or(self.at.wall)
    }

    /// Time from its beginning to the next child's being ready. `None` as long as it lasts.
    #[must_use]
    pub fn pause(&self, successor: &Successor) -> Option<Duration> {
        let ready_at = successor.ready_at?;
        Some(ready_at.saturating_duration_since(self.pause.began))
    }

    /// Pause that streams saw. `None` as long as it lasts, and when there were none.
    #[must_use]
    pub fn stream_pause(&self, successor: &Successor) -> Option<Duration> {
        let (from, to) = (self.pause.silent_since?, successor.first_token_at?);
        Some(to.saturating_duration_since(from))
    }
}
