//! Counter of generations. Children of a worker are numbered in the order of their spawns, over all devices.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use worker_orcd_ipc::Generation;

/// Last assigned generation, shared by the supervisors of all devices.
#[derive(Debug, Clone)]
pub(crate) struct Generations(Arc<AtomicU32>);

impl Generations {
    pub(crate) fn after(last: Generation) -> Self {
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
