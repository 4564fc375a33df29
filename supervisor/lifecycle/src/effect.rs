//! Effects: outputs of the worker. The driver performs them immediately and in order. An effect returns no error:
//! a failure comes back as an event.

use crate::death::DeathCause;
use crate::exit::SupervisorExit;
use crate::state::State;
use std::fmt;
use worker_orcd_ipc::{Generation, Role};

/// Output of the worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Action on the child of this generation in this seat.
    Child {
        seat: SeatId,
        generation: Generation,
        action: ChildAction,
    },
    /// The child of seat `successor` takes over from the ending child of seat `predecessor`.
    Failover {
        predecessor: SeatId,
        successor: SeatId,
    },
    /// The device is out of service: no process is left on it, and it gets no further child. Other devices are in use.
    DeviceOut(DeviceId),
    /// The device is in use again.
    DeviceIn(DeviceId),
    /// Refuse new requests from now on.
    RefuseNewWork,
    /// End all remaining requests with a terminal error.
    EndRequests(EndReason),
    /// Exit the supervisor. The last effect.
    End {
        exit: SupervisorExit,
        reason: String,
    },
}

/// Action on one child.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChildAction {
    /// Start the child process.
    Spawn,
    /// Send `Command::Load`, with this role.
    Load(Role),
    /// Record that the child is loaded and waits for promotion.
    StandBy,
    /// Send `Command::Promote`.
    Promote,
    /// Submit the queued requests to the child, and new ones as they arrive.
    Serve,
    /// Send no further request to the child: its end has begun. Its requests wait.
    Suspend {
        /// State of the child before its end began.
        previous_state: State,
    },
    /// Drop the retained weights: the child found them changed or not resident. Children that map the same memory are
    /// affected too.
    InvalidateWeights(DeathCause),
    /// Requeue the child's requests before its reaping: no further message of it is accepted.
    Release,
    /// Move the child's requests to other children, then send [`Event::Vacated`](crate::Event::Vacated).
    Vacate,
    /// Send `Command::Shutdown`.
    Dismiss,
    /// Send a signal to the child's process group.
    Kill(Signal),
    /// Close the socket of the exited child, and requeue or end its requests.
    Reap(DeathCause),
}

/// Number of a seat, from 0. A seat holds at most one child at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SeatId(pub u8);

/// Number of a device, from 0: its index in the worker's list of devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceId(pub u8);

/// Seats per device: one for the serving child, one for its standby or replacement.
pub(crate) const SEATS_OF_A_DEVICE: u8 = 2;

impl SeatId {
    /// Device of the seat.
    #[must_use]
    pub fn device(self) -> DeviceId {
        DeviceId(self.0 / SEATS_OF_A_DEVICE)
    }

    pub(crate) fn first_of(device: DeviceId) -> Self {
        Self(device.0 * SEATS_OF_A_DEVICE)
    }
}

/// Signal of [`ChildAction::Kill`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    Term,
    Kill,
}

/// Reason of [`Effect::EndRequests`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndReason {
    /// The drain's timeout passed.
    DrainDeadline,
    /// A second stop signal.
    StoppedAtOnce,
    /// The worker failed; see [`Worker::failure`](crate::Worker::failure).
    Failed,
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl fmt::Display for SeatId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}
