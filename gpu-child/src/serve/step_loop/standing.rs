//! Statistics and memory usage for the supervisor's reports.

use super::StepLoop;
use std::time::{Duration, Instant};
use worker_orcd_ipc::Load;

/// Age limit of the memory report. A query may take a system call; a heartbeat shows no finer resolution anyway.
const MEMORY_REPORT_INTERVAL: Duration = Duration::from_millis(500);

impl StepLoop<'_> {
    pub(super) fn update_status(&mut self) {
        if self.memory_asked.elapsed() >= MEMORY_REPORT_INTERVAL {
            self.memory = self.executor.memory();
            self.memory_asked = Instant::now();
        }
        self.memory.kv_used_bytes = self.scheduler.kv_used_bytes();
        let load = Load {
            step_budget_us: self.pacer.budget().map(|it| it.as_micros() as u32),
            ..self.scheduler.load()
        };
        self.status.between_steps(self.step, load, self.memory);
        if let Some(oldest) = self.in_flight.front() {
            let since = oldest.began.max(self.last_end);
            self.status.step_begins(oldest.step, since);
        }
    }
}
