//! The disposable process that owns one device, its model and its KV cache.
//!
//! ```text
//! entry ─ serve ─┬─ reader, heartbeat, link          (threads and words)
//!                └─ engine ─┬─ scheduler ─ kv_cache  (pure: who runs, in which pages)
//!                           ├─ device    ─ sampler   (a step: tokens in, tokens out)
//!                           ├─ grammars              (threads: what may be drawn next)
//!                           ├─ trace, logprobs, pooling  (what the device saw, on request)
//!                           └─ flight_recorder       (what it was doing, for after its death)
//!           loader ─┬─ model ─ gguf                  (an untrusted file, checked)
//!                   └─ custody                       (the open file, for the next child)
//! ```
//!
//! Synchronous threads, no async runtime. The process is made to be killed at any moment: nothing
//! that a client was promised lives here. It never outlives its parent, its control socket or a
//! device error.
//!
//! Deliberately absent: text (the supervisor's), HTTP, retries, and any fallback from one device
//! to another.

pub mod confinement;
pub mod custody;
pub mod device;
pub mod entry;
pub mod exit;
#[cfg(feature = "fault-injection")]
pub mod fault_injection;
pub mod flight_recorder;
pub mod grammars;
pub mod kv_pages;
pub mod loader;
pub mod logprobs;
pub mod model;
pub mod pooling;
pub mod questions;
pub mod rng;
pub mod sampler;
pub mod scheduler;
mod sentinel;
pub mod serve;
pub mod trace;
