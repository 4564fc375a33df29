//! Dispatch to the child of one seat: queued commands, and answers that the child owes.

use super::ServedBy;
use crate::determinism::DeterminismClass;
use crate::placement::{Capacity, ChildLoad, Reservation};
use crate::prefixes::Prefixes;
use crate::record::Record;
use crate::violation::Violation;
use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};
use std::sync::Arc;
use worker_orcd_ipc::{Command, Generation, RequestId, SealedPage, SealedPages, Submission};
use worker_orcd_lifecycle::SeatId;

/// Limit of unanswered cancellations. A child answers one within a step, so thousands show that it never will.
const MAX_LEAVING: usize = 10_000;

#[derive(Debug, Default)]
pub(super) struct Dispatch {
    /// The child accepts submissions.
    is_open: bool,
    /// The child gets no submissions for now, because its step is overdue.
    is_overdue: bool,
    /// Determinism class of the child that serves or served last.
    class: Option<DeterminismClass>,
    capacity: Capacity,
    /// Load by the requests that the child has.
    pub(super) load: ChildLoad,
    /// Requests that the child has not begun.
    pub(super) queue: BTreeSet<RequestId>,
    /// Requests that were called back for another seat, by that seat.
    pub(super) departs_for: BTreeMap<SeatId, RequestId>,
    /// Estimate of the child's prefix cache. `None` with a single device.
    pub(super) prefixes: Option<Prefixes>,
    orders: VecDeque<Order>,
    /// Requests that ended here while the child had them. The child's last report on each is pending.
    leaving: HashSet<RequestId>,
    /// Generation of the child, which identifies its sealed pages.
    child: Option<Generation>,
    /// Child of which this one may adopt sealed pages.
    adopts_from: Option<Generation>,
    /// Children of other devices of which this one may adopt sealed pages.
    siblings: Vec<Generation>,
    /// The child is a standby and copies pages before their requests arrive.
    copies_ahead: bool,
}

/// Queued command for the child.
#[derive(Debug)]
enum Order {
    Submit(Arc<Record>, Option<SealedPages>),
    Cancel(RequestId),
    CopyAhead(Vec<SealedPage>),
    ReleaseKv(Generation),
}

/// Location of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// The request waits for a child, or for its turn.
    Waiting,
    With(SeatId),
    /// The request was cancelled at the child, but continues later. Reports of the child remain valid until it
    /// confirms.
    CalledBack(SeatId),
}

impl Dispatch {
    pub(super) fn is_open(&self) -> bool {
        self.is_open
    }

    pub(super) fn class(&self) -> Option<&DeterminismClass> {
        self.class.as_ref()
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
        self.class = Some(by.class);
        self.end_copies_ahead();
    }

    /// Closes the seat, because its child ends. Queued commands are dropped, and the next child copies no pages ahead
    /// until it stands by.
    pub(super) fn close(&mut self) {
        self.stop();
        self.orders.clear();
        self.end_copies_ahead();
    }

    /// Stops submissions. Queued commands are still sent.
    pub(super) fn stop(&mut self) {
        self.is_open = false;
        self.is_overdue = false;
    }

    /// Suspends submissions to an overdue child.
    pub(super) fn set_overdue(&mut self) {
        self.is_overdue = std::mem::take(&mut self.is_open);
    }

    /// Resumes submissions. Returns false if they were not suspended.
    pub(super) fn trust(&mut self) -> bool {
        let was_overdue = std::mem::take(&mut self.is_overdue);
        self.is_open |= was_overdue;
        was_overdue
    }

    /// True if the child accepts submissions, or may do so again.
    pub(super) fn may_take_work(&self) -> bool {
        self.is_open || self.is_overdue
    }

    /// True if no command is queued.
    pub(super) fn has_sent_all(&self) -> bool {
        self.orders.is_empty()
    }

    pub(super) fn given(&self) -> usize {
        self.load.given
    }

    /// True if the child has no request and owes no answer.
    pub(super) fn is_free(&self) -> bool {
        self.given() == 0 && self.leaving.is_empty()
    }

    pub(super) fn give(&mut self, record: Arc<Record>, sealed: Option<SealedPages>) {
        self.orders.push_back(Order::Submit(record, sealed));
    }

    /// Notes the generation of a child that loads.
    pub(super) fn loads(&mut self, child: Generation, adopts_from: Option<Generation>) {
        self.child = Some(child);
        self.adopts_from = adopts_from;
        self.siblings.clear();
        self.end_copies_ahead();
    }

    /// Starts copying pages ahead, until the child serves or ends.
    pub(super) fn begin_copies_ahead(&mut self) {
        self.copies_ahead = true;
    }

    fn end_copies_ahead(&mut self) {
        self.copies_ahead = false;
        self.orders
            .retain(|order| !matches!(order, Order::CopyAhead(_)));
    }

    /// Child of which this standby copies pages ahead.
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

    /// Allows adoption of sealed pages from this child of another device.
    pub(super) fn attach(&mut self, sibling: Generation) {
        if !self.siblings.contains(&sibling) {
            self.siblings.push(sibling);
        }
    }

    /// Children of which this one may adopt sealed pages.
    pub(super) fn sources(&self) -> impl Iterator<Item = Generation> {
        let siblings = self.siblings.iter().copied();
        self.adopts_from.into_iter().chain(siblings)
    }

    pub(super) fn may_adopt_from(&self, child: Generation) -> bool {
        self.sources().any(|source| source == child)
    }

    /// Releases the KV cache of `child`: no later submission adopts from it.
    pub(super) fn release_kv(&mut self, child: Generation) {
        self.adopts_from = self.adopts_from.filter(|it| *it != child);
        self.siblings.retain(|it| *it != child);
        self.orders.push_back(Order::ReleaseKv(child));
    }

    /// Cancels a request at the child. The request continues later.
    pub(super) fn call_back(&mut self, id: RequestId) {
        self.orders.push_back(Order::Cancel(id));
    }

    /// Removes and returns the next command. A prompt is copied only here, so a long queue holds no copies.
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

    /// Cancels a request at the child, because it has ended here.
    pub(super) fn cancel(&mut self, id: RequestId) {
        self.depart(id);
        if self.is_open {
            self.orders.push_back(Order::Cancel(id));
        }
    }

    pub(super) fn depart(&mut self, id: RequestId) {
        self.leaving.insert(id);
    }

    pub(super) fn is_leaving(&self, id: RequestId) -> bool {
        self.leaving.contains(&id)
    }

    /// Notes the child's last report on a request. True if the request was leaving.
    pub(super) fn has_left(&mut self, id: RequestId) -> bool {
        self.leaving.remove(&id)
    }

    pub(super) fn awaits_nobody(&self) -> bool {
        self.leaving.is_empty()
    }

    /// Removes a request from the child's load.
    pub(super) fn forget(&mut self, id: RequestId, reservation: Reservation) {
        self.load.remove(reservation);
        self.queue.remove(&id);
        self.departs_for.retain(|_, it| *it != id);
    }

    /// Clears the state of a dead child, which will not answer any more.
    pub(super) fn reaped(&mut self) {
        self.leaving.clear();
        self.prefixes = None;
    }

    /// Checks the number of unanswered cancellations.
    ///
    /// # Errors
    /// [`Violation::Unanswered`] above `MAX_LEAVING`.
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
