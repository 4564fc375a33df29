//! Processes that the supervisor and its commands start.
//!
//! * [`signal_mask`]: signals that are blocked, except while a program is started.
//! * [`reap`]: a started process, its group and its end. `oom`: detection of OOM kills.
//! * [`probe`]: queries to the child's program, which need no running child.
//!
//! Deliberately absent: sockets and messages of a child, and decisions about its end.

#![forbid(unsafe_code)]
#![warn(unreachable_pub)]

mod oom;
pub mod probe;
pub mod reap;
pub mod signal_mask;
