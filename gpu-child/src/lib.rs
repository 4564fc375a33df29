//! The disposable process that owns one device, its model and its KV cache.
//!
//! ```text
//! entry ─ serve ─┬─ reader, heartbeat, link          (threads and messages)
//!                └─ engine ─┬─ scheduler ─ kv_pages  (pure: sequences and pages of a step)
//!                           ├─ device    ─ sampler   (a step: tokens in, tokens out)
//!                           ├─ grammars              (threads: masks of allowed tokens)
//!                           ├─ trace, logprobs, pooling  (rows of the device, on request)
//!                           └─ flight_recorder       (recent actions, for a crash report)
//!           loader ─┬─ model ─ gguf                  (an untrusted file, checked)
//!                   └─ fd_socket                     (the open file, for the next child)
//! ```
//!
//! Synchronous threads, no async runtime. The process may be killed at any moment: no state that a client depends on
//! lives only here. It never outlives its parent, its control socket or a device error.
//!
//! Deliberately absent: text (the supervisor's), HTTP, retries, and any fallback from one device to another.

pub mod confinement;
pub mod device;
pub mod entry;
pub mod exit;
#[cfg(feature = "fault-injection")]
pub mod fault_injection;
pub mod fd_socket;
pub mod flight_recorder;
pub mod grammars;
pub mod kv_pages;
pub mod loader;
pub mod logprobs;
pub mod model;
pub mod pooling;
pub mod questions;
pub mod scheduler;
mod sentinel;
pub mod serve;
pub mod trace;
