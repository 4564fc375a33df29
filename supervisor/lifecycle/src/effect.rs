//! Effects: what the worker wants done. They are performed in order, at once, and never fail: what
//! goes wrong comes back as an event.

use crate::death::DeathCause;
use crate::exit::SupervisorExit;
use crate::state::State;
use std::fmt;
use worker_orcd_ipc::{Generation, Role};

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// A deed with the child of this generation, which lives in this seat.
    Child {
        seat: SeatId,
        generation: Generation,
        deed: Deed,
    },
    /// The child of `heir` takes the place of the one in `of`, whose end has begun.
    Succession {
        of: SeatId,
        heir: SeatId,
    },
    /// The device gets no further child, and no process is left on it; others are in use.
    DeviceOut(DeviceId),
    /// The device is in use again.
    DeviceIn(DeviceId),
    RefuseNewWork,
    /// Terminal errors for every request that is left.
    EndRequests(EndReason),
    /// Nothing follows.
    End {
        exit: SupervisorExit,
        reason: String,
    },
}

/// A thing that is done with one child.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Deed {
    Spawn,
    /// Send `Command::Load`, with this role.
    Load(Role),
    /// The child is ready, and waits.
    StandBy,
    /// Send `Command::Promote`.
    Promote,
    /// Submit everything that waits, and whatever comes.
    Serve,
    /// The child's end has begun: send nothing more to it; its requests wait.
    Suspend {
        /// State of the child until then.
        noticed_in: State,
    },
    /// The child has found that weights are not what they were. In memory that several children map, that is
    /// true for all of them.
    DoubtWeights(DeathCause),
    /// The child says nothing more that counts: its requests need not wait until it is buried.
    Release,
    /// The child is to go: give what it has to others, then say [`Event::Vacated`](crate::Event::Vacated).
    Vacate,
    /// Send `Command::Shutdown`.
    Dismiss,
    /// A signal to its whole process group.
    Kill(Signal),
    /// The child is gone: close its socket, and requeue or end its requests.
    Bury(DeathCause),
}

/// A place where one child lives at a time: its number, from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SeatId(pub u8);

/// A device of a worker: its number in the worker's list, from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceId(pub u8);

/// For the child that serves, and for the one that stands by or replaces it.
pub(crate) const SEATS_OF_A_DEVICE: u8 = 2;

impl SeatId {
    /// The device that its child computes on.
    #[must_use]
    pub fn device(self) -> DeviceId {
        DeviceId(self.0 / SEATS_OF_A_DEVICE)
    }

    pub(crate) fn first_of(device: DeviceId) -> Self {
        Self(device.0 * SEATS_OF_A_DEVICE)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    Term,
    Kill,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndReason {
    DrainDeadline,
    StoppedAtOnce,
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
