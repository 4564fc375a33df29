//! Requests that have ended and are still read, in the log.
//!
//! Whoever reads slowly has not had the end yet. And an answer of several parts is one answer to its client: a part that
//! has ended stays in the log until nobody reads the answer any more, however long the other parts take.

use super::Restored;
use crate::record::{Record, StreamEvent};
use std::collections::BTreeSet;
use std::sync::{Arc, Weak};
use worker_orcd_ipc::RequestId;

/// They are the reader's: with the reader, they go.
#[derive(Debug, Default)]
pub(super) struct Ended {
    all: Vec<(Weak<Record>, StreamEvent)>,
    /// Length at which those without a reader are dropped: twice what was left the last time, so that a request costs the
    /// same however many there are. A restored log adds thousands in one turn.
    limit: usize,
}

const LEAST_LIMIT: usize = 64;

impl Ended {
    pub(super) fn add(&mut self, record: &Arc<Record>, end: StreamEvent) {
        if self.all.len() >= self.limit {
            self.all.retain(|(record, _)| record.strong_count() > 0);
            self.limit = LEAST_LIMIT.max(2 * self.all.len());
        }
        self.all.push((Arc::downgrade(record), end));
    }

    /// Those that somebody may still read.
    pub(super) fn wanted(&self) -> Vec<(Arc<Record>, StreamEvent)> {
        let held =
            |(record, end): &(Weak<Record>, StreamEvent)| Some((record.upgrade()?, end.clone()));
        self.all.iter().filter_map(held).collect()
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

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "a test begins at some moment")]
mod tests {
    use super::*;
    use crate::error_code::ErrorCode;
    use crate::record::{Failure, OnFault};
    use crate::testing::request;
    use std::time::Instant;

    #[test]
    fn those_without_a_reader_are_dropped_before_the_others_have_doubled() {
        let end = || StreamEvent::Failed(Failure::new(ErrorCode::Cancelled, "no"));
        let record = |id| {
            Arc::new(Record::new(
                RequestId(id),
                request("a"),
                OnFault::Fail,
                Instant::now(),
            ))
        };
        let mut ended = Ended::default();
        let mut read = Vec::new();
        for id in 0..1000 {
            let record = record(id);
            ended.add(&record, end());
            // Nine of ten have no reader.
            if id % 10 == 0 {
                read.push(record);
            }
            let most = LEAST_LIMIT.max(2 * read.len()) + 1;
            assert!(ended.all.len() <= most, "{} of {most}", ended.all.len());
        }
        assert_eq!(ended.wanted().len(), read.len());
    }
}
