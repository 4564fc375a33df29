//! Generations: the numbers of a worker's children, in the order in which they were ordered.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use worker_orcd_ipc::Generation;

/// The number given last; the staffs of all devices take theirs from the same one.
#[derive(Debug, Clone)]
pub(crate) struct Generations(Arc<AtomicU32>);

impl Generations {
    pub(crate) fn behind(last: Generation) -> Self {
        Self(Arc::new(AtomicU32::new(last.0)))
    }

    pub(crate) fn newest(&self) -> Generation {
        Generation(self.0.load(Ordering::Relaxed))
    }

    pub(crate) fn next(&self) -> Generation {
        let next = self.newest().next();
        self.0.store(next.0, Ordering::Relaxed);
        next
    }
}
