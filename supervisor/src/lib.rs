//! The supervisor: it owns every promise made to clients and touches no device.
//!
//! ```text
//! HTTP ─→ http ─→ engine ─→ driver ─→ child (another process, over a Unix socket)
//!          │        │
//!          └─ text ─┘   prompt → ids, ids → text
//! ```
//!
//! * [`commands`] is the command line, [`config`] what it says, [`exit`] how it ends.
//! * [`http`] is what clients see; [`engine`] is the one thing it asks.
//! * `worker_orcd_text` turns text into token ids and back; the child deals in ids alone. Chat templates,
//!   which strangers wrote, are run by [`interpreter`] in a process that may die.
//! * `worker_orcd_requests` journals what clients were promised; `driver` and [`child`] keep a child alive;
//!   [`crash`] tells what became of those that died, [`nvml`] what NVIDIA's library says of it.
//! * [`outgoing`] asks others over HTTP: who is to be told of this worker, or another worker.
//! * [`descriptors`] keeps back from clients what children are made with.
//!
//! Deliberately absent: CUDA, parsing of model files, `unsafe`.

#![forbid(unsafe_code)]
#![warn(unreachable_pub)]

mod accept;
mod allocator;
mod calendar;
mod callback;
mod child;
pub mod commands;
pub mod config;
mod crash;
pub mod descriptors;
mod driver;
pub mod engine;
mod estate;
pub mod exit;
mod hex;
pub mod http;
pub mod interpreter;
mod logging;
mod metrics;
mod nvml;
pub mod outgoing;
pub mod signals;
