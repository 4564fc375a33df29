//! Heartbeat thread: reports liveness and progress. It never waits for the engine, so the supervisor distinguishes a
//! hung step from a hung process.

use super::{Link, Status};
use std::thread;
use std::time::{Duration, Instant};
use worker_orcd_ipc::HEARTBEAT_INTERVAL_MS;

const INTERVAL: Duration = Duration::from_millis(HEARTBEAT_INTERVAL_MS);

/// Sends heartbeats until the connection ends, and one immediately when a step becomes overdue.
pub(super) fn beat(link: &Link, status: &Status) {
    let mut beat_at = Instant::now() + INTERVAL;
    let mut was_overdue = false;
    loop {
        let now = Instant::now();
        let overdue_at = status.overdue_at().filter(|at| *at > now);
        let wake_at = overdue_at.map_or(beat_at, |at| at.min(beat_at));
        thread::sleep(wake_at.saturating_duration_since(now));
        let now = Instant::now();
        let is_overdue = status.is_overdue(now);
        let is_news = is_overdue && !was_overdue;
        if now < beat_at && !is_news {
            continue;
        }
        if !link.send_each(|| status.events(now)) {
            return;
        }
        was_overdue = is_overdue;
        beat_at = now + INTERVAL;
    }
}
