//! Requests that have ended and are still read, in the log.
//!
//! Whoever reads slowly has not had the end yet. And an answer of several parts is one answer to its client: a part that
//! has ended stays in the log until nobody reads the answer any more, however long the other parts take.

use super::Restored;
use crate::requests::record::{Record, StreamEvent};
use std::collections::BTreeSet;
use std::sync::{Arc, Weak};
use worker_orcd_ipc::RequestId;

/// They are the reader's: with the reader, they go.
#[derive(Debug, Default)]
pub(super) struct Ended(Vec<(Weak<Record>, StreamEvent)>);

impl Ended {
    pub(super) fn add(&mut self, record: &Arc<Record>, end: StreamEvent) {
        self.0.retain(|(record, _)| record.strong_count() > 0);
        self.0.push((Arc::downgrade(record), end));
    }

    /// Those that somebody may still read.
    pub(super) fn wanted(&self) -> Vec<(Arc<Record>, StreamEvent)> {
        let held =
            |(record, end): &(Weak<Record>, StreamEvent)| Some((record.upgrade()?, end.clone()));
        self.0.iter().filter_map(held).collect()
    }
}

/// Takes out those that ended long ago, but for parts of an answer of which another part has not.
pub(super) fn forget_old(requests: &mut Vec<Restored>, old: &BTreeSet<RequestId>) {
    let young = requests.iter().filter(|it| !old.contains(&it.id));
    let wanted: BTreeSet<_> = young.filter_map(|it| it.part_of.clone()).collect();
    requests.retain(|request| {
        let answer = request.part_of.as_ref();
        !old.contains(&request.id) || answer.is_some_and(|answer| wanted.contains(answer))
    });
}
