//! The deadlines of a child that lives: how long it may be silent, compute, load, and die.

use crate::death::DeathCause;
use crate::state::LoadProgress;
use std::time::Duration;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deadlines {
    /// Time from asking the spawn thread to having a process.
    pub spawn: Duration,
    /// Time from having a process to its hello.
    pub handshake: Duration,
    /// Time between two heartbeats.
    pub heartbeat: Duration,
    /// Time for one step of the engine, as the child's own clock measures it.
    pub step: Duration,
    /// Time between two advances of the load's progress; also from the last one to ready.
    pub load: Duration,
    /// Time from noticing a death by one sign (exit, closed socket, last words) to the other signs.
    pub reap: Duration,
    /// Time from `Command::Shutdown` to SIGTERM.
    pub dismiss: Duration,
    /// Time from SIGTERM to SIGKILL.
    pub terminate: Duration,
    /// Time from SIGKILL to giving the process up as unreapable.
    pub kill: Duration,
}

impl Default for Deadlines {
    fn default() -> Self {
        Self {
            // A fork and an exec; seconds only when the machine swaps.
            spawn: Duration::from_secs(10),
            // Dynamic linking from a cold disk, no device work: the hello comes first.
            handshake: Duration::from_secs(10),
            // Many heartbeats. A machine whose every core computes can delay one thread by some
            // hundred milliseconds, and a needless kill costs a reload of the model.
            heartbeat: Duration::from_secs(2),
            // Long: a chunk of a prompt is honest work on few slow cores too, and its time grows
            // with the model.
            step: Duration::from_secs(60),
            // The child reports at every heartbeat; a disk that delivers nothing for this long
            // will not.
            load: Duration::from_secs(30),
            // The kernel closes a dead process's sockets before it can be waited for, so both
            // signs come within microseconds; a core dump is what takes time.
            reap: Duration::from_secs(1),
            // The drain is over by then: what is left is freeing memory.
            dismiss: Duration::from_secs(1),
            terminate: Duration::from_secs(1),
            // Tearing down a CUDA context of 140 GB takes seconds; a process in this state for
            // longer is stuck in NVIDIA's driver.
            kill: Duration::from_secs(10),
        }
    }
}

/// Absence of the supervisor itself (a stopped or suspended machine) from which on the child's
/// silence in that time proves nothing and is forgiven.
///
/// Far above any scheduling delay of a driver that does not block, far below the heartbeat deadline.
pub const OWN_ABSENCE: Duration = Duration::from_millis(500);

/// Time for descriptors to come back: clients' connections end all the time.
pub(crate) const STARVED_PAUSE: Duration = Duration::from_millis(250);

/// The pulse of a child.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Watch {
    pub heartbeat_at: Duration,
    /// Time that the step in progress had run at the last heartbeat.
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

    /// The moment at which silence alone will have become a cause of death.
    #[must_use]
    pub fn deadline(&self, deadlines: &Deadlines) -> Duration {
        self.heartbeat_at + deadlines.heartbeat
    }

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

    pub fn advance(&mut self, now: Duration, bytes_done: u64, bytes_total: u64) {
        if bytes_done > self.bytes_done {
            self.bytes_done = bytes_done;
            self.advanced_at = now;
        }
        self.bytes_total = bytes_total;
    }

    #[must_use]
    pub fn deadline(&self, deadlines: &Deadlines) -> Duration {
        self.advanced_at + deadlines.load
    }

    #[must_use]
    pub fn overdue(&self, now: Duration, deadlines: &Deadlines) -> Option<DeathCause> {
        (now >= self.deadline(deadlines)).then(|| DeathCause::LoadStalled {
            stalled_for: now.saturating_sub(self.advanced_at),
            bytes_done: self.bytes_done,
            bytes_total: self.bytes_total,
        })
    }
}
