//! The supervisor: it serves all clients and accesses no device.
//!
//! ```text
//! HTTP ─→ http ─→ engine ─→ driver ─→ child (another process, over a Unix socket)
//!          │        │
//!          └─ text ─┘   prompt → ids, ids → text
//! ```
//!
//! * [`commands`]: the command line. [`config`]: settings. [`exit`]: exit codes.
//! * [`http`]: the API. [`engine`]: its interface to the children.
//! * `worker_orcd_text`: tokenizer. A child handles only token ids. [`interpreter`]: untrusted chat templates, in a
//!   separate process.
//! * `worker_orcd_requests`: journal of requests. `driver` and `child`: operation of child processes. `crash`: reports
//!   of deaths. `nvml`: GPU monitor.
//! * `worker_orcd_cli`: commands for a running worker or a hub, and the HTTP client. `worker_orcd_process`: started
//!   processes.
//! * [`descriptors`]: file descriptor budget of clients and children.
//!
//! Deliberately absent: CUDA, parsing of model files, `unsafe`.

#![forbid(unsafe_code)]
#![warn(unreachable_pub)]

mod accept;
mod allocator;
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
mod signals;
