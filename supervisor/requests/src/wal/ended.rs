//! Ended requests in the log that still have a reader.
//!
//! A slow reader has not received the end yet. An answer of several parts is one answer for the client: an ended part
//! stays in the log until the whole answer is read, however long the other parts take.

use super::Restored;
use crate::record::{Record, StreamEvent};
use std::collections::BTreeSet;
use std::sync::{Arc, Weak};
use worker_orcd_ipc::RequestId;

/// Ended requests and their ends. The reader owns the record: an entry expires with it.
#[derive(Debug, Default)]
pub(super) struct Ended {
    all: Vec<(Weak<Record>, StreamEvent)>,
    /// Length at which expired entries are dropped: twice the number that was left the last time, so the cost per
    /// request is constant. A restored log adds thousands of entries at once.
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

    /// Entries that still have a reader.
    pub(super) fn wanted(&self) -> Vec<(Arc<Record>, StreamEvent)> {
        let held =
            |(record, end): &(Weak<Record>, StreamEvent)| Some((record.upgrade()?, end.clone()));
        self.all.iter().filter_map(held).collect()
    }
}

/// Removes `old` requests, except parts of an answer that has another part outside `old`.
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
            // Nine of ten requests have no reader.
            if id % 10 == 0 {
                read.push(record);
            }
            let most = LEAST_LIMIT.max(2 * read.len()) + 1;
            assert!(ended.all.len() <= most, "{} of {most}", ended.all.len());
        }
        assert_eq!(ended.wanted().len(), read.len());
    }
}
