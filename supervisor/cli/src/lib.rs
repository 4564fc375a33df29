//! Commands of `worker-orcd` that are clients of a running worker or of a hub, and what they share with the server.
//!
//! ```text
//! chat, top, bench ── remote ── outgoing ─→ a worker, or any server of the OpenAI API
//! pull ── curl, pip ─→ a hub, or a package index
//!   └─ probe ─→ the child's program, which alone reads a model file
//! ```
//!
//! * [`chat`], [`top`], [`bench`]: commands for a running worker. `remote`: its address, its key, and its answers.
//!   [`outgoing`]: HTTP client, also for the server's callback.
//! * [`pull`]: download of a model, also at a server's start. [`model_name`]: names of models and files that are here.
//! * [`key_file`]: files of API keys. [`units`]: values of options with units.
//!
//! The executable is `worker-orcd`, whose command line has these commands.
//!
//! Deliberately absent: the server, with its settings, routes, journal and children. A change of the server does not
//! compile these commands again. `doctor` and `upgrade` are in the server's crate: one examines its settings and
//! devices, the other reads a report in its format.

#![forbid(unsafe_code)]
#![warn(unreachable_pub)]

pub mod bench;
pub mod chat;
pub mod key_file;
pub mod model_name;
pub mod outgoing;
pub mod pull;
mod remote;
pub mod top;
pub mod units;
