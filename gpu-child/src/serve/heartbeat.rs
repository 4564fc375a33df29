//! A thread that does nothing but say that the process lives, and how far it is. It never waits
//! for the engine, so a step that hangs is told apart from a process that does.

use super::{Link, Status};
use std::thread;
use std::time::{Duration, Instant};
use worker_orcd_ipc::HEARTBEAT_INTERVAL_MS;

/// Sends heartbeats until the conversation is over.
pub(super) fn beat(link: &Link, status: &Status) {
    loop {
        thread::sleep(Duration::from_millis(HEARTBEAT_INTERVAL_MS));
        if !status.events(Instant::now()).all(|event| link.send(event)) {
            return;
        }
    }
}
