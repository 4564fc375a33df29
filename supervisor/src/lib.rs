//! The supervisor: it owns every promise made to clients and touches no device.
//!
//! ```text
//! HTTP ─→ http ─→ engine ─→ driver ─→ child (another process, over a Unix socket)
//!          │        │
//!          └─ text ─┘   prompt → ids, ids → text
//! ```
//!
//! * [`text`] turns text into token ids and back; the child deals in ids alone.
//!
//! Deliberately absent: CUDA, parsing of model files, `unsafe`.

#![forbid(unsafe_code)]

mod calendar;
pub mod child;
mod driver;
pub mod engine;
pub mod error_code;
pub mod requests;
pub mod text;
