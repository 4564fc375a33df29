//! A worker from outside: what tests, the chaos runner, benchmarks and xtask share.
//!
//! * [`client`] speaks HTTP/1.1 and reads server-sent events over a plain `TcpStream`, so that a test
//!   can do what a library forbids: send half a request, read one byte a second, vanish.
//! * [`launch`] starts the program and waits until it serves; [`log`] is what it wrote.
//! * [`wait`] waits for something to become true, with an end.
//!
//! Deliberately absent: any part of the worker, so that xtask links none of it; which program is
//! started, with which settings, and what has to be left behind, which is for each user to say.

#![forbid(unsafe_code)]

pub mod client;
pub mod launch;
pub mod log;
pub mod wait;

pub use client::{Client, EventStream, Response, SseEvent};
pub use launch::Launched;
pub use log::Log;
