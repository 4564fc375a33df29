//! Sums over the children of one device, or of all.

use super::{ChildSnapshot, DeviceSnapshot, EngineSnapshot};
use std::time::Instant;
use worker_orcd_ipc::Load;

impl EngineSnapshot {
    /// Sum of the gauges of a device's children. `None`: no child has reported any.
    #[must_use]
    pub fn load_on(&self, device: &DeviceSnapshot) -> Option<(Load, Instant)> {
        let loads = self.children_on(device).filter_map(|child| child.load);
        loads.reduce(together)
    }

    /// Tokens per second accepted from the children of a device, over the last seconds.
    #[must_use]
    pub fn tokens_per_second_on(&self, device: &DeviceSnapshot) -> f64 {
        pace(self.children_on(device))
    }
}

/// Tokens per second of all children together.
pub(crate) fn pace<'a>(children: impl Iterator<Item = &'a ChildSnapshot>) -> f64 {
    // The sum of no floats is -0.
    0.0 + children.map(|it| it.tokens_per_second).sum::<f64>()
}

/// Sum of two loads, with the earlier time. The values are unchecked input of children, so sums saturate.
pub(crate) fn together(one: (Load, Instant), other: (Load, Instant)) -> (Load, Instant) {
    let (a, b) = (one.0, other.0);
    let load = Load {
        running: a.running.saturating_add(b.running),
        waiting: a.waiting.saturating_add(b.waiting),
        kv_used_tokens: a.kv_used_tokens.saturating_add(b.kv_used_tokens),
        counters: a.counters.plus(b.counters),
        step_budget_us: a.step_budget_us.max(b.step_budget_us),
    };
    (load, one.1.min(other.1))
}
