//! The supervisor: it serves all clients and accesses no device.
//!
//! ```text
//! HTTP ─→ http ─→ worker_orcd_engine ─→ child (another process, over a Unix socket)
//!          │        │
//!          └─ text ─┘   prompt → ids, ids → text
//! ```
//!
//! * [`commands`]: the command line. [`config`]: settings. [`exit`]: exit codes.
//! * [`http`]: the API. `metrics`, `logging`: metrics and log events.
//! * `worker_orcd_engine`: operation of the children, crash reports, GPU monitor, and processes for untrusted chat
//!   templates. `worker_orcd_requests`: journal of requests.
//! * `worker_orcd_text`: tokenizer. A child handles only token ids.
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
pub mod commands;
pub mod config;
pub mod descriptors;
pub mod exit;
pub mod http;
mod logging;
mod metrics;
mod signals;
