//! What the machine wants done. Effects are performed in order, at once, and never fail: what
//! goes wrong comes back as an event.

use crate::death::DeathCause;
use crate::exit::SupervisorExit;
use worker_orcd_ipc::Generation;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    Spawn {
        generation: Generation,
    },
    /// Send `Command::Load`.
    Load {
        generation: Generation,
    },
    /// Submit everything that waits, and whatever comes.
    Serve {
        generation: Generation,
    },
    /// Send nothing more to this child; its requests wait.
    Suspend {
        generation: Generation,
    },
    /// Send `Command::Shutdown`.
    Dismiss {
        generation: Generation,
    },
    /// To the child's whole process group.
    Kill {
        generation: Generation,
        signal: Signal,
    },
    /// It is over: close its socket, and requeue or end its requests.
    Bury {
        generation: Generation,
        cause: DeathCause,
    },
    RefuseNewWork,
    /// Terminal errors for every request that is left.
    EndRequests(EndReason),
    /// Nothing follows.
    End {
        exit: SupervisorExit,
        reason: String,
    },
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
