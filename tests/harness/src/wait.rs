//! Waiting for a condition, with a deadline.

use std::time::{Duration, Instant};

/// Deadline for events that take some seconds, on a machine with dozens of busy processes. It guards against hangs and is
/// no limit on speed.
pub const PATIENCE: Duration = Duration::from_secs(180);

/// First `Some` of `probe`. Panics after [`PATIENCE`] with the name of what was awaited.
pub fn until<T>(what: &str, probe: impl FnMut() -> Option<T>) -> T {
    within(PATIENCE, what, probe)
}

pub fn within<T>(patience: Duration, what: &str, mut probe: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = probe() {
            return found;
        }
        assert!(
            start.elapsed() < patience,
            "waited {patience:?} in vain for: {what}"
        );
        std::thread::sleep(Duration::from_millis(10));
    }
}
