//! Dispatch to the child of one seat: what is on its way to it, and what is due from it.

use super::ServedBy;
use crate::kin::Kin;
use crate::placement::{Burden, Capacity, Hold};
use crate::prefixes::Prefixes;
use crate::record::Record;
use crate::violation::Violation;
use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};
use std::sync::Arc;
use worker_orcd_ipc::{Command, Generation, RequestId, SealedPage, SealedPages, Submission};
use worker_orcd_lifecycle::SeatId;

/// A child answers a cancellation within a step. Thousands unanswered mean that it never will.
const MAX_LEAVING: usize = 10_000;

#[derive(Debug, Default)]
pub(super) struct Dispatch {
    /// The child takes submissions.
    is_open: bool,
    /// It does not for the time being, because its step is overdue.
    is_doubted: bool,
    /// Kin of the child that serves, or did last.
    kin: Option<Kin>,
    capacity: Capacity,
    /// What the requests take that the child has.
    pub(super) burden: Burden,
    /// Requests that it was given and has not begun.
    pub(super) queue: BTreeSet<RequestId>,
    /// Those called back to go to another seat.
    pub(super) leaves_for: BTreeMap<SeatId, RequestId>,
    /// Beginnings that it has computed, if it has any brothers.
    pub(super) prefixes: Option<Prefixes>,
    orders: VecDeque<Order>,
    /// Ended here while the child still had them: its last words on them are due.
    leaving: HashSet<RequestId>,
    /// The child, which seals its pages under that number.
    child: Option<Generation>,
    /// The child whose sealed pages this one may adopt.
    adopts_from: Option<Generation>,
    /// Children of other devices whose sealed pages it may adopt.
    siblings: Vec<Generation>,
    /// The child stands by and copies pages before their requests come.
    copies_ahead: bool,
}

/// An order for the child.
#[derive(Debug)]
enum Order {
    Submit(Arc<Record>, Option<SealedPages>),
    Cancel(RequestId),
    CopyAhead(Vec<SealedPage>),
    ReleaseKv(Generation),
}

/// The place of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// The request waits for a child, or for its turn.
    Waiting,
    With(SeatId),
    /// Cancelled at the child, not here: it goes on later. The child's answer is due, and what
    /// it says until then still counts.
    CalledBack(SeatId),
}

impl Dispatch {
    pub(super) fn is_open(&self) -> bool {
        self.is_open
    }

    pub(super) fn kin(&self) -> Option<&Kin> {
        self.kin.as_ref()
    }

    pub(super) fn capacity(&self) -> Capacity {
        self.capacity
    }

    pub(super) fn open(&mut self, by: ServedBy) {
        self.is_open = true;
        self.capacity = Capacity {
            slots: by.slots,
            kv_tokens: by.kv_tokens,
        };
        self.kin = Some(by.kin);
        self.end_copies_ahead();
    }

    /// The child ends. The next one of its seat knows of nothing, and copies nothing ahead, until it says so.
    pub(super) fn close(&mut self) {
        self.stop();
        self.orders.clear();
        self.end_copies_ahead();
    }

    /// The child gets what is on its way to it, and nothing more.
    pub(super) fn stop(&mut self) {
        self.is_open = false;
        self.is_doubted = false;
    }

    /// The child gets nothing more for the time being.
    pub(super) fn doubt(&mut self) {
        self.is_doubted = std::mem::take(&mut self.is_open);
    }

    /// It takes submissions again; false if it was not doubted.
    pub(super) fn trust(&mut self) -> bool {
        let was_doubted = std::mem::take(&mut self.is_doubted);
        self.is_open |= was_doubted;
        was_doubted
    }

    /// It takes submissions, or may again.
    pub(super) fn may_take_work(&self) -> bool {
        self.is_open || self.is_doubted
    }

    /// Everything that was on its way to it is there.
    pub(super) fn has_sent_all(&self) -> bool {
        self.orders.is_empty()
    }

    pub(super) fn given(&self) -> usize {
        self.burden.given
    }

    /// The child has nothing, and owes no answer.
    pub(super) fn is_free(&self) -> bool {
        self.given() == 0 && self.leaving.is_empty()
    }

    pub(super) fn give(&mut self, record: Arc<Record>, sealed: Option<SealedPages>) {
        self.orders.push_back(Order::Submit(record, sealed));
    }

    /// The child is told to load.
    pub(super) fn loads(&mut self, child: Generation, adopts_from: Option<Generation>) {
        self.child = Some(child);
        self.adopts_from = adopts_from;
        self.siblings.clear();
        self.end_copies_ahead();
    }

    /// The child stands by, and is told of pages from now on until it serves or ends.
    pub(super) fn begin_copies_ahead(&mut self) {
        self.copies_ahead = true;
    }

    fn end_copies_ahead(&mut self) {
        self.copies_ahead = false;
        self.orders
            .retain(|order| !matches!(order, Order::CopyAhead(_)));
    }

    /// The child whose pages this one copies before their requests come.
    pub(super) fn copies_ahead_from(&self) -> Option<Generation> {
        self.adopts_from.filter(|_| self.copies_ahead)
    }

    pub(super) fn copy_ahead(&mut self, pages: &[SealedPage]) {
        if !pages.is_empty() {
            self.orders.push_back(Order::CopyAhead(pages.to_vec()));
        }
    }

    pub(super) fn child(&self) -> Option<Generation> {
        self.child
    }

    /// Sealed pages of this child of another device may be adopted from now on.
    pub(super) fn attach(&mut self, sibling: Generation) {
        if !self.siblings.contains(&sibling) {
            self.siblings.push(sibling);
        }
    }

    /// Children whose sealed pages this one may adopt.
    pub(super) fn sources(&self) -> impl Iterator<Item = Generation> {
        let siblings = self.siblings.iter().copied();
        self.adopts_from.into_iter().chain(siblings)
    }

    pub(super) fn may_adopt_from(&self, child: Generation) -> bool {
        self.sources().any(|source| source == child)
    }

    /// The child will be given nothing more of that one to adopt.
    pub(super) fn release_kv(&mut self, child: Generation) {
        self.adopts_from = self.adopts_from.filter(|it| *it != child);
        self.siblings.retain(|it| *it != child);
        self.orders.push_back(Order::ReleaseKv(child));
    }

    /// Calls a request back, which goes on later.
    pub(super) fn call_back(&mut self, id: RequestId) {
        self.orders.push_back(Order::Cancel(id));
    }

    /// A prompt is copied only here: a whole queue of them may wait until the child has read the ones
    /// before.
    pub(super) fn next_command(&mut self) -> Option<Command> {
        Some(match self.orders.pop_front()? {
            Order::Submit(record, sealed) => Command::Submit(Box::new(Submission {
                sealed,
                ..record.submission()
            })),
            Order::Cancel(request) => Command::Cancel { request },
            Order::CopyAhead(pages) => Command::CopyAhead { pages },
            Order::ReleaseKv(child) => Command::ReleaseKv { child },
        })
    }

    /// A request that the child has ends here, and is to end there.
    pub(super) fn cancel(&mut self, id: RequestId) {
        self.leave(id);
        if self.is_open {
            self.orders.push_back(Order::Cancel(id));
        }
    }

    pub(super) fn leave(&mut self, id: RequestId) {
        self.leaving.insert(id);
    }

    pub(super) fn is_leaving(&self, id: RequestId) -> bool {
        self.leaving.contains(&id)
    }

    /// The child has said its last word on it, if it was leaving.
    pub(super) fn has_left(&mut self, id: RequestId) -> bool {
        self.leaving.remove(&id)
    }

    pub(super) fn awaits_nobody(&self) -> bool {
        self.leaving.is_empty()
    }

    /// The child has the request no more.
    pub(super) fn forget(&mut self, id: RequestId, hold: Hold) {
        self.burden.remove(hold);
        self.queue.remove(&id);
        self.leaves_for.retain(|_, it| *it != id);
    }

    /// The child is gone, and answers nothing more.
    pub(super) fn bury(&mut self) {
        self.leaving.clear();
        self.prefixes = None;
    }

    /// # Errors
    /// When far too many cancellations have no answer.
    pub(super) fn check_leaving(&self) -> Result<(), Violation> {
        match self.leaving.len() {
            ..=MAX_LEAVING => Ok(()),
            unanswered => Err(Violation::Unanswered(unanswered)),
        }
    }
}

impl Place {
    pub(super) fn seat(self) -> Option<SeatId> {
        match self {
            Self::With(seat) | Self::CalledBack(seat) => Some(seat),
            Self::Waiting => None,
        }
    }
}
