//! The life of a GPU child as a pure state machine.
//!
//! ```text
//!             Spawned          Hello          Ready
//!  Spawning ─────────► Handshaking ───► Loading ───► Serving ◄┄┄┄┄ drain ┄┄┄► Draining
//!     ▲  │                 │               │            │                        │
//!     │  │ SpawnFailed     └──────┬────────┴─────┬──────┴──────────┬─────────────┘
//!     │  │                        │ it died      │ it hangs, lies, │ nothing left to do
//!     │  │                        ▼              ▼ or must go      ▼
//!     │  │                     Reaping ◄─────► Killing (asked → SIGTERM → SIGKILL)
//!     │  │                        │              │         └─► Failed (unreapable)
//!     │  └───────────┬────────────┴──────────────┘
//!     │              ▼
//!     └───────── Backoff        or Failed (permanent cause, too many deaths), or Stopped
//! ```
//!
//! [`Machine::handle`] takes the time and an [`Event`] and gives back [`Effect`]s for the driver
//! to perform; [`Machine::poll_deadline`] says when it wants to see [`Event::Tick`]. Every state
//! but the two final ones has a deadline, so nothing is ever awaited for good.
//!
//! * [`state`] what can be true of a child, [`event`] what can happen, [`effect`] what to do.
//! * [`machine`] the transitions; [`watchdog`] the deadlines of a child that lives;
//!   [`death`] why it ended; [`restart_policy`] what follows from that; [`gpu`] what the device's
//!   driver has to say about it; [`ledger`] who died when.
//!
//! Deliberately absent: clocks (time is an argument: a [`Duration`](std::time::Duration) since
//! the supervisor's start), I/O, threads, tokio, requests, and logging.

#![forbid(unsafe_code)]
#![warn(unreachable_pub)]

pub mod death;
pub mod effect;
pub mod event;
pub mod exit;
pub mod gpu;
pub mod ledger;
pub mod machine;
pub mod restart_policy;
pub mod state;
pub mod watchdog;

pub use death::{Blame, DeathCause, Exit, HandshakeRefusal};
pub use effect::{Effect, EndReason, Signal};
pub use event::{ChildEvent, Event};
pub use exit::SupervisorExit;
pub use gpu::{Condemnation, Need, RecoveryAction, Remedy, Testimony, Xid};
pub use ledger::{Death, Ledger};
pub use machine::{Machine, Settings};
pub use restart_policy::{Failure, RestartPolicy};
pub use state::{KillStage, LoadProgress, State};
pub use watchdog::{Deadlines, Watch};
