//! Statistics of the scheduler, sent to the supervisor with each heartbeat.

use super::Scheduler;
use worker_orcd_ipc::Load;

impl Scheduler {
    #[must_use]
    pub fn load(&self) -> Load {
        let geometry = self.cache.geometry();
        Load {
            running: self.running.len() as u32,
            waiting: self.waiting.len() as u32,
            kv_used_tokens: geometry.tokens_in(self.cache.used_pages()),
            counters: self.counters,
            // Set by the pacer, which measures time.
            step_budget_us: None,
        }
    }

    #[must_use]
    pub fn kv_used_bytes(&self) -> u64 {
        u64::from(self.cache.used_pages()) * self.cache.geometry().page_bytes
    }
}
