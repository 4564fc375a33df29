//! A NaN put among the logits after they were computed and before they are checked, so that it
//! is the device's own check that finds it.

use std::sync::atomic::{AtomicBool, Ordering};

/// There is one engine in a process.
static ORDERED: AtomicBool = AtomicBool::new(false);

/// The next logits of this process will hold a NaN.
pub(super) fn order() {
    ORDERED.store(true, Ordering::Relaxed);
}

/// Called by the device between computing and checking.
pub(crate) fn spoil(logits: &mut [f32]) {
    if !logits.is_empty() && ORDERED.swap(false, Ordering::Relaxed) {
        logits[0] = f32::NAN;
    }
}
