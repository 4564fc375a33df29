//! Deadlines of a child: spawn, handshake, heartbeat, step, load and end.

use crate::death::DeathCause;
use crate::state::LoadProgress;
use std::time::Duration;

/// Maximum durations in the life of a child.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deadlines {
    /// Time from the order to spawn to the existence of the process.
    pub spawn: Duration,
    /// Time from the existence of the process to its `Hello`.
    pub handshake: Duration,
    /// Time between two heartbeats.
    pub heartbeat: Duration,
    /// Time of one engine step, measured by the child's clock.
    pub step: Duration,
    /// Time between two increases of the loaded bytes, and from the last one to `Ready`.
    pub load: Duration,
    /// Time from the first sign of a death (exit, closed socket, fault) to the remaining signs.
    pub reap: Duration,
    /// Time from `Command::Shutdown` to SIGTERM.
    pub dismiss: Duration,
    /// Time from SIGTERM to SIGKILL.
    pub terminate: Duration,
    /// Time from SIGKILL to the state `Unreapable`.
    pub kill: Duration,
}

impl Default for Deadlines {
    fn default() -> Self {
        Self {
            // A fork and an exec take seconds only on a machine that swaps.
            spawn: Duration::from_secs(10),
            // Dynamic linking from a cold disk. Device work follows the `Hello`.
            handshake: Duration::from_secs(10),
            // 80 heartbeat intervals. On a fully loaded machine a thread can be delayed by several hundred milliseconds,
            // and a false kill costs a reload of the model.
            heartbeat: Duration::from_secs(2),
            // A prompt chunk of a large model on few slow cores takes long without being stuck.
            step: Duration::from_secs(60),
            // The child reports progress at every heartbeat. A disk that delivers no byte for 30 s has failed.
            load: Duration::from_secs(30),
            // The kernel closes the sockets of a dead process before its exit is reported, usually within microseconds. A
            // core dump, a large CUDA context or a busy machine delays the exit by seconds, and a process that is killed in the
            // meantime is blamed for staying.
            reap: Duration::from_secs(5),
            // Requests have ended by then; the child only frees memory.
            dismiss: Duration::from_secs(1),
            terminate: Duration::from_secs(1),
            // Destruction of a CUDA context of 140 GB takes seconds. A process that lives longer is stuck in NVIDIA's
            // driver.
            kill: Duration::from_secs(10),
        }
    }
}

/// 500 ms: shortest pause of the supervisor itself (a stopped or suspended machine) by which the children's deadlines are
/// extended, since no heartbeat could be received in it.
///
/// The value is far above the scheduling delay of a driver that does not block, and far below the heartbeat deadline.
pub const SUPERVISOR_PAUSE: Duration = Duration::from_millis(500);

/// 250 ms between two spawn attempts without free file descriptors. Ending client connections free some.
pub(crate) const STARVED_PAUSE: Duration = Duration::from_millis(250);

/// Latest heartbeat of a child.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Watch {
    pub heartbeat_at: Duration,
    /// Age of the step in progress at that heartbeat. `None`: no step was in progress.
    pub step_elapsed: Option<Duration>,
}

impl Watch {
    #[must_use]
    pub fn starting(now: Duration) -> Self {
        Self {
            heartbeat_at: now,
            step_elapsed: None,
        }
    }

    /// Time at which the heartbeat deadline passes without another heartbeat.
    #[must_use]
    pub fn deadline(&self, deadlines: &Deadlines) -> Duration {
        self.heartbeat_at + deadlines.heartbeat
    }

    /// Cause of death if the step or heartbeat deadline has passed.
    #[must_use]
    pub fn overdue(&self, now: Duration, deadlines: &Deadlines) -> Option<DeathCause> {
        if let Some(ran_for) = self
            .step_elapsed
            .filter(|elapsed| *elapsed >= deadlines.step)
        {
            return Some(DeathCause::StepDeadline { ran_for });
        }
        (now >= self.deadline(deadlines)).then(|| DeathCause::HeartbeatLost {
            silent_for: now.saturating_sub(self.heartbeat_at),
        })
    }
}

impl LoadProgress {
    #[must_use]
    pub fn starting(now: Duration) -> Self {
        Self {
            bytes_done: 0,
            bytes_total: 0,
            advanced_at: now,
        }
    }

    /// Records a progress report. Only an increase of `bytes_done` extends the load deadline.
    pub fn advance(&mut self, now: Duration, bytes_done: u64, bytes_total: u64) {
        if bytes_done > self.bytes_done {
            self.bytes_done = bytes_done;
            self.advanced_at = now;
        }
        self.bytes_total = bytes_total;
    }

    /// Time at which the load deadline passes without further progress.
    #[must_use]
    pub fn deadline(&self, deadlines: &Deadlines) -> Duration {
        self.advanced_at + deadlines.load
    }

    /// Cause of death if the load deadline has passed.
    #[must_use]
    pub fn overdue(&self, now: Duration, deadlines: &Deadlines) -> Option<DeathCause> {
        (now >= self.deadline(deadlines)).then(|| DeathCause::LoadStalled {
            stalled_for: now.saturating_sub(self.advanced_at),
            bytes_done: self.bytes_done,
            bytes_total: self.bytes_total,
        })
    }
}
