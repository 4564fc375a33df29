//! Requests of an earlier supervisor whose clients have lost their connection with it: they go on, and wait
//! for somebody who asks for the rest.
//!
//! Who asked for a request may have the rest of it, and nobody else. Who has not come back after a while
//! will not.

use crate::requests::record::Record;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use worker_orcd_ipc::ClientId;

/// Time for a client to come back.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// By job.
#[derive(Debug, Default)]
pub(crate) struct Orphans(Mutex<HashMap<String, Arc<Record>>>);

impl Orphans {
    pub(crate) fn add(&self, record: Arc<Record>) {
        self.0.lock().insert(record.job_id.clone(), record);
    }

    /// The request of a job, which then has a reader. With an owner, only among that client's.
    pub(crate) fn take(&self, job_id: &str, owner: Option<ClientId>) -> Option<Arc<Record>> {
        let mut orphans = self.0.lock();
        let is_theirs = |record: &Arc<Record>| owner.is_none_or(|owner| owner == record.client);
        orphans.get(job_id).filter(|it| is_theirs(it))?;
        orphans.remove(job_id)
    }

    /// Those that nobody has asked for.
    pub(crate) fn take_all(&self) -> Vec<Arc<Record>> {
        self.0.lock().drain().map(|(_, record)| record).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::requests::record::OnFault;
    use crate::requests::testing::{Journal, request};
    use worker_orcd_ipc::RequestId;

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
        assert!(orphans.take_all().is_empty());
    }
}
