//! Requests of an earlier supervisor without a connection. They continue, and wait for their clients to reconnect.
//!
//! Only the client that submitted a request may read the rest of it. Requests of clients that do not reconnect in time
//! are cancelled.

use crate::record::Record;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tracing::info;
use worker_orcd_ipc::{ClientId, RequestId};

/// Time for a client to reconnect.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Unclaimed requests by answer, each with its parts in order.
#[derive(Debug, Default)]
pub struct Orphans(Mutex<HashMap<String, Vec<Arc<Record>>>>);

impl Orphans {
    pub fn add(&self, record: Arc<Record>) {
        let mut orphans = self.0.lock();
        let parts = orphans.entry(record.answer().to_owned()).or_default();
        // A newer job with the id of an ended one replaces it.
        parts.retain(|known| known.job_id != record.job_id);
        parts.push(record);
        parts.sort_by_key(|record| record.id);
    }

    /// Number of parts of an answer. `owner`: if set, only answers of that client are found.
    pub fn parts(&self, answer: &str, owner: Option<ClientId>) -> Option<usize> {
        let orphans = self.0.lock();
        let parts = orphans.get(answer)?;
        let is_theirs = |record: &Arc<Record>| owner.is_none_or(|owner| owner == record.client);
        parts.iter().all(is_theirs).then_some(parts.len())
    }

    /// Removes and returns the requests of an answer for a reader. `owner`: if set, only answers of that client are
    /// found.
    pub fn take(&self, answer: &str, owner: Option<ClientId>) -> Option<Vec<Arc<Record>>> {
        self.parts(answer, owner)?;
        self.0.lock().remove(answer)
    }

    /// Drops all unclaimed requests, and returns the unfinished ones for cancellation.
    pub fn give_up(&self) -> Vec<RequestId> {
        let given_up: Vec<_> = self.0.lock().drain().flat_map(|(_, parts)| parts).collect();
        if !given_up.is_empty() {
            info!(count = given_up.len(), "unclaimed_streams_dropped");
        }
        let unfinished = given_up.iter().filter(|it| it.progress.lock().close());
        unfinished.map(|it| it.id).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{NewRequest, OnFault};
    use crate::testing::{Journal, request};

    #[test]
    fn the_rest_is_for_who_asked_and_only_once() {
        let orphans = Orphans::default();
        let now = Journal::serving().now;
        let record = Record::new(RequestId(1), request("a"), OnFault::Resume, now);
        let owner = record.client;
        orphans.add(Arc::new(record));
        let stranger = ClientId(owner.0 ^ 1);
        assert!(orphans.take("a", Some(stranger)).is_none());
        assert!(orphans.take("b", None).is_none());
        assert!(orphans.take("a", Some(owner)).is_some());
        assert!(orphans.take("a", Some(owner)).is_none());
    }

    #[test]
    fn an_answer_is_all_of_its_parts_and_the_last_job_of_a_name() {
        let orphans = Orphans::default();
        let now = Journal::serving().now;
        for (id, job) in [(3, "a.1"), (2, "a.0"), (1, "b"), (4, "b")] {
            let new = NewRequest {
                part_of: job.starts_with('a').then(|| "a".to_owned()),
                ..request(job)
            };
            let record = Record::new(RequestId(id), new, OnFault::Resume, now);
            orphans.add(Arc::new(record));
        }
        let taken = |answer: &str| {
            let taken = orphans.take(answer, None).unwrap_or_default();
            taken.iter().map(|record| record.id.0).collect::<Vec<_>>()
        };
        assert_eq!(orphans.parts("a", None), Some(2));
        assert!(taken("a.0").is_empty(), "an answer is not found by a part");
        assert_eq!(taken("a"), [2, 3]);
        assert_eq!(taken("b"), [4]);
    }

    #[test]
    fn who_has_not_come_back_is_given_up_and_its_work_is_too() {
        let orphans = Orphans::default();
        let now = Journal::serving().now;
        let record = |id, job| Record::new(RequestId(id), request(job), OnFault::Resume, now);
        for (id, job) in [(1, "came back"), (2, "did not")] {
            orphans.add(Arc::new(record(id, job)));
        }
        assert!(orphans.take("came back", None).is_some());
        assert_eq!(orphans.give_up(), [RequestId(2)]);
        assert!(orphans.take("did not", None).is_none());
    }
}
