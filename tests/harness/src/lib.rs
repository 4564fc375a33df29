//! Worker seen from outside: shared by tests, the chaos runner, benchmarks and xtask.
//!
//! * [`client`]: HTTP/1.1 and server-sent events over a plain `TcpStream`, so that a test can do what a
//!   library forbids: send half a request, read one byte a second, vanish.
//! * [`launch`]: process of a program, until it serves. [`log`]: its log. [`wait`]: waiting with a deadline.
//!
//! Deliberately absent: any part of the worker, so that xtask links none of it; choice of program and settings, and
//! cleanup, which belong to each user.

#![forbid(unsafe_code)]

pub mod client;
pub mod launch;
pub mod log;
pub mod wait;

pub use client::{Client, EventStream, Response, SseEvent};
pub use launch::Launched;
pub use log::Log;
