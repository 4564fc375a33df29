//! Waiting for something to become true, with an end.

use std::time::{Duration, Instant};

/// Time that a test waits for what should happen within a second or two, on a busy machine. It
/// guards against hanging; it is no promise about speed.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// The first `Some` that `probe` gives. Panics after [`PATIENCE`], naming what never came.
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
