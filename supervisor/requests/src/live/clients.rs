//! Actions of clients: submission, cancellation, disconnection; and deadlines.

use super::Requests;
use crate::error_code::ErrorCode;
use crate::record::{Failure, Record};
use std::sync::Arc;
use std::time::Instant;
use worker_orcd_ipc::RequestId;

impl Requests {
    pub fn submit(&mut self, record: Arc<Record>) {
        if let Some(deadline) = record.deadline {
            self.deadlines.insert((deadline, record.id));
        }
        if let Some(wal) = &mut self.wal {
            wal.accepted(&record);
        }
        if let Some(text) = &self.text {
            let mut progress = record.progress.lock();
            progress.deliver_prompt(&record.prompt, text);
            self.wakers.extend(progress.take_waker());
        }
        self.assigned.admit(record);
    }

    pub fn cancel(&mut self, id: RequestId, now: Instant) {
        let failure = Failure::new(ErrorCode::Cancelled, "the job was cancelled");
        self.end_here(id, now, |progress, _| progress.fail(failure));
    }

    /// Ends a request without a reader.
    pub fn abandon(&mut self, id: RequestId, now: Instant) {
        self.end_here(id, now, |_, _| {});
    }

    pub fn expire(&mut self, now: Instant) {
        while let Some((_, id)) = self.deadlines.first().copied().filter(|(at, _)| *at <= now) {
            let failure = Failure::new(ErrorCode::InferenceTimeout, "the job took too long");
            self.end_here(id, now, |progress, _| progress.fail(failure));
        }
    }

    pub fn fail_all(&mut self, failure: &Failure, now: Instant) {
        for id in self.assigned.ids() {
            self.end_here(id, now, |progress, _| progress.fail(failure.clone()));
        }
    }
}
