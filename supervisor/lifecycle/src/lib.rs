//! State machines of a GPU child and of the worker that runs one child per device. Pure functions of events and time.
//!
//! ```text
//!                                           ┌──► StandingBy
//!                                           │        ▼
//!  Vacant ──► Spawning ──► Handshaking ──► Loading ──► Serving      a Life, in its seat
//!    ▲            │             └────┬─────────┴──────────┘
//!    │            │                  │ process exits       hang, violation or dismissal
//!    │            │                  ▼                     ▼
//!    │            │               Reaping ◄──────────► Killing (Shutdown → SIGTERM → SIGKILL)
//!    └────────────┴──────────────────┴─────────────────────┘   └──► Unreapable
//!
//!  Serve ┄┄► Drain ┄┄► Leave (until no process is left) ──► Over      the Worker
//!
//!  InUse ┄┄► Leaving (until no process is left) ──► Out ┄┄► InUse     each device
//! ```
//!
//! [`Worker::handle`] takes the time and an [`Event`] and returns [`Effect`]s, which the driver performs.
//! [`Worker::poll_deadline`] returns the time of the next [`Event::Tick`]. Until the worker is over there is always
//! such a time, so every wait has a deadline.
//!
//! Each device has two seats. A seat holds one child at a time, and its children are numbered by generation.
//!
//! * [`worker`]: phase and end of the worker. `device_supervisor`: children of one device, restart and failover.
//!   `device_status`: whether a device is in use. `seats`, `generations`, `standby`: parts of a device supervisor.
//! * [`life`]: transitions of one child. [`state`]: its states. [`event`]: inputs. [`effect`]: outputs.
//! * [`watchdog`]: deadlines of a running child. [`death`]: causes of death. [`restart_policy`]: restart, delay or
//!   failure after a death. [`gpu`]: errors that NVIDIA's driver reports. [`ledger`]: recent deaths of a device.
//!
//! Deliberately absent: clocks (time is an argument, a [`Duration`](std::time::Duration) since the supervisor's
//! start), I/O, threads, tokio, requests, and logging.

#![forbid(unsafe_code)]
#![warn(unreachable_pub)]

pub mod death;
mod device_status;
mod device_supervisor;
pub mod effect;
pub mod event;
pub mod exit;
mod generations;
pub mod gpu;
pub mod ledger;
pub mod life;
mod phase;
pub mod restart_policy;
mod seats;
mod standby;
pub mod state;
pub mod watchdog;
pub mod worker;

pub use death::{Blame, DeathCause, HandshakeRefusal};
pub use device_status::{DeviceStatus, OutOfServiceReason};
pub use effect::{ChildAction, DeviceId, Effect, EndReason, SeatId, Signal};
pub use event::{ChildEvent, Event};
pub use exit::SupervisorExit;
pub use gpu::{Condemnation, GpuVerdict, Need, RecoveryAction, Remedy, Xid};
pub use ledger::Ledger;
pub use life::{Achieved, Life};
pub use restart_policy::{RestartPolicy, WorkerFailure};
pub use state::{KillStage, LoadProgress, State};
pub use watchdog::{Deadlines, Watch};
pub use worker::{PreviousChild, Settings, Worker};
pub use worker_orcd_ipc::Exit;
