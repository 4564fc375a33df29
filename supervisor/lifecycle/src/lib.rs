//! The life of a GPU child, and of the worker around it, as two pure state machines.
//!
//! ```text
//!                                           ┌──► StandingBy
//!                                           │        ▼
//!  Vacant ──► Spawning ──► Handshaking ──► Loading ──► Serving      a Life, in its seat
//!    ▲            │             └────┬─────────┴──────────┘
//!    │            │                  │ it died             it hangs, lies or must go
//!    │            │                  ▼                     ▼
//!    │            │               Reaping ◄──────────► Killing (asked → SIGTERM → SIGKILL)
//!    └────────────┴──────────────────┴─────────────────────┘   └──► Unreapable
//!
//!  Serve ┄┄► Drain ┄┄► Leave (as soon as no process is left) ──► Over      the Worker
//!
//!  InUse ┄┄► Leaving (as soon as no process is left) ──► Out ┄┄► InUse     each of its devices
//! ```
//!
//! [`Worker::handle`] takes the time and an [`Event`] and gives back [`Effect`]s for the driver
//! to perform; [`Worker::poll_deadline`] says when it wants to see [`Event::Tick`]. There always is
//! such a time until it is over, so nothing is ever awaited for good.
//!
//! * [`worker`] the course, and how it all ends; `standing` whether a device is in use; `staff` who follows whom
//!   on it, `seats` whose each one is, `generations` their numbers, `standby` whether one is wanted; [`life`] one child's transitions, [`state`] what can be true of it;
//!   [`event`] what can happen, [`effect`] what to do.
//! * [`watchdog`] the deadlines of a child that lives; [`death`] why it ended; [`restart_policy`] what
//!   follows from that; [`gpu`] what the device's driver has to say about it; [`ledger`] how many died lately, and whether anything came of them.
//!
//! Deliberately absent: clocks (time is an argument: a [`Duration`](std::time::Duration) since
//! the supervisor's start), I/O, threads, tokio, requests, and logging.

#![forbid(unsafe_code)]
#![warn(unreachable_pub)]

mod course;
pub mod death;
pub mod effect;
pub mod event;
pub mod exit;
mod generations;
pub mod gpu;
pub mod ledger;
pub mod life;
pub mod restart_policy;
mod seats;
mod staff;
mod standby;
mod standing;
pub mod state;
pub mod watchdog;
pub mod worker;

pub use death::{Blame, DeathCause, Exit, HandshakeRefusal};
pub use effect::{Deed, DeviceId, Effect, EndReason, SeatId, Signal};
pub use event::{ChildEvent, Event};
pub use exit::SupervisorExit;
pub use gpu::{Condemnation, Need, RecoveryAction, Remedy, Testimony, Xid};
pub use ledger::Ledger;
pub use life::{Achieved, Life};
pub use restart_policy::{RestartPolicy, WorkerFailure};
pub use standing::{Absence, Standing};
pub use state::{KillStage, LoadProgress, State};
pub use watchdog::{Deadlines, Watch};
pub use worker::{Before, Settings, Worker};
