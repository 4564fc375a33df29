//! Which request is with which child, and who is given to a child next.
//!
//! As long as there is a suspect, the child of one seat has at most one request: whatever else it still
//! has is called back (cancelled there, kept here) before the next suspect's turn, so that a death
//! then has one possible author. The other seats serve everybody else; with one seat, everybody waits.
//! Everything that ends, moves on or is called back comes through [`Assignments::hand_out`], so nothing
//! waits for a turn that is not coming.

use super::dispatch::{Dispatch, Place};
use super::probation::{Inquest, Verdict};
use crate::requests::fingerprint::Fingerprint;
use crate::requests::record::{OnFault, Record};
use crate::requests::suspicion::{Sighting, Suspicion, Toll};
use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU8;
use std::sync::Arc;
use tracing::{info, warn};
use worker_orcd_ipc::{RequestId, SealedPages};
use worker_orcd_lifecycle::SeatId;

#[derive(Debug)]
pub(super) struct Assignments {
    /// Requests by number, hence in the order of arrival.
    live: BTreeMap<RequestId, Live>,
    /// One for each seat.
    seats: Vec<Dispatch>,
    /// Seats that are open at once.
    serving: usize,
    /// Each of them runs alone in its seat, in this order.
    suspects: BTreeSet<RequestId>,
}

#[derive(Debug)]
pub(super) struct Live {
    pub(super) record: Arc<Record>,
    place: Place,
    /// Length of its history when the child got it.
    given_at: u32,
    /// The child that it left before that one was buried.
    left: Option<Left>,
    suspicion: Suspicion,
    /// Pages of a child that hold its first tokens.
    pub(super) sealed: Option<SealedPages>,
}

/// A child that a request left, and the request as it was then.
#[derive(Debug, Clone, Copy)]
struct Left {
    seat: SeatId,
    given_at: u32,
    history: u32,
}

impl Assignments {
    pub(super) fn new(serving: NonZeroU8) -> Self {
        Self {
            live: BTreeMap::new(),
            seats: (0..=serving.get()).map(|_| Dispatch::default()).collect(),
            serving: usize::from(serving.get()),
            suspects: BTreeSet::new(),
        }
    }

    // === looking ===

    pub(super) fn len(&self) -> usize {
        self.live.len()
    }

    pub(super) fn ids(&self) -> Vec<RequestId> {
        self.live.keys().copied().collect()
    }

    pub(super) fn records(&self) -> impl Iterator<Item = &Record> {
        self.live.values().map(|live| &*live.record)
    }

    /// With the pages of a child that hold its first tokens.
    pub(super) fn records_with_pages(
        &self,
    ) -> impl Iterator<Item = (&Record, Option<&SealedPages>)> {
        let live = self.live.values();
        live.map(|live| (&*live.record, live.sealed.as_ref()))
    }

    /// Another child has sealed pages of it.
    pub(super) fn has_pages(&mut self, id: RequestId, sealed: SealedPages) {
        if let Some(live) = self.live.get_mut(&id) {
            live.sealed = Some(sealed);
        }
    }

    pub(super) fn get(&self, id: RequestId) -> Option<&Live> {
        self.live.get(&id)
    }

    /// The request, if the child of that seat has it.
    pub(super) fn get_with(&self, id: RequestId, seat: SeatId) -> Option<&Live> {
        let live = self.get(id);
        live.filter(|live| live.place.seat() == Some(seat))
    }

    /// As [`get_with`](Self::get_with).
    pub(super) fn get_mut_with(&mut self, id: RequestId, seat: SeatId) -> Option<&mut Live> {
        let live = self.live.get_mut(&id);
        live.filter(|live| live.place.seat() == Some(seat))
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Live> {
        self.live.values_mut()
    }

    pub(super) fn place(&self, id: RequestId) -> Option<Place> {
        self.get(id).map(|live| live.place)
    }

    /// Requests that the present child of a seat was given, in the order of arrival.
    pub(super) fn of(&self, seat: SeatId) -> impl Iterator<Item = &Live> {
        let live = self.live.values();
        live.filter(move |live| live.place.seat() == Some(seat))
    }

    /// Those that a child was given.
    pub(super) fn with_child(&self) -> usize {
        let seats = self.live.values().filter_map(|live| live.place.seat());
        seats.count()
    }

    pub(super) fn suspects(&self) -> &BTreeSet<RequestId> {
        &self.suspects
    }

    pub(super) fn seat(&mut self, seat: SeatId) -> &mut Dispatch {
        &mut self.seats[usize::from(seat.0)]
    }

    pub(super) fn seats_mut(&mut self) -> impl Iterator<Item = &mut Dispatch> {
        self.seats.iter_mut()
    }

    // === a request ===

    /// Admits a request, which goes to a child if one may have it.
    pub(super) fn admit(&mut self, record: Arc<Record>) {
        let id = record.id;
        let live = Live {
            record,
            place: Place::Waiting,
            given_at: 0,
            left: None,
            suspicion: Suspicion::default(),
            sealed: None,
        };
        self.live.insert(id, live);
        if let Some(seat) = self.seat_for_anybody() {
            self.hand_over(id, seat);
        }
    }

    /// Removes a request that ends. [`Self::fill_gap`] gives others its turn.
    pub(super) fn remove(&mut self, id: RequestId) -> Option<Arc<Record>> {
        let Live { record, place, .. } = self.live.remove(&id)?;
        if let Some(seat) = place.seat() {
            self.seat(seat).release();
        }
        Some(record)
    }

    /// The last suspect gives way to everybody, any other end may leave the child to the next.
    pub(super) fn fill_gap(&mut self, removed: RequestId) {
        let was_suspect = self.suspects.remove(&removed);
        if was_suspect || !self.suspects.is_empty() {
            self.hand_out();
        }
    }

    /// Puts a request whose child is gone back to those who wait.
    pub(super) fn interrupt(&mut self, id: RequestId, seat: SeatId) -> Option<&Live> {
        let live = self.live.get_mut(&id)?;
        if live.place.seat() != Some(seat) {
            return None;
        }
        live.place = Place::Waiting;
        self.seat(seat).release();
        self.get(id)
    }

    /// Requests of a seat that no other death has met at the place where they are, so that its own makes
    /// none of them a suspect, and that are to go on. They are noted as they are now.
    pub(super) fn depart(&mut self, seat: SeatId) -> Vec<RequestId> {
        let mut departed = Vec::new();
        for (id, live) in &mut self.live {
            let history = live.history();
            let goes_on = live.record.on_fault == OnFault::Resume;
            let may_go = live.left.is_none() && live.suspicion.is_clean_at(history);
            if goes_on && may_go && live.place == Place::With(seat) {
                live.left = Some(Left {
                    seat,
                    given_at: live.given_at,
                    history,
                });
                departed.push(*id);
            }
        }
        departed
    }

    /// Requests that the dead child of a seat had, also those that have left it.
    pub(super) fn bereft(&self, seat: SeatId) -> Vec<RequestId> {
        let had = |live: &&Live| {
            live.place.seat() == Some(seat) || live.left.is_some_and(|left| left.seat == seat)
        };
        let had = self.live.values().filter(had);
        had.map(|live| live.record.id).collect()
    }

    pub(super) fn forget_left(&mut self, seat: SeatId) {
        for live in self.live.values_mut() {
            live.left = live.left.filter(|left| left.seat != seat);
        }
    }

    // === suspects ===

    /// The verdict of a death about a request that was with the child.
    pub(super) fn accuse(&mut self, id: RequestId, of: &Inquest<'_>, toll: Toll) -> Verdict {
        let Some(live) = self.live.get_mut(&id) else {
            return Verdict::Unchanged;
        };
        let left = live.left.filter(|left| left.seat == of.seat);
        let (history, given_at) = match left {
            Some(left) => (left.history, left.given_at),
            None => (live.history(), live.given_at),
        };
        let spot = of.scene.spot(id, history, history > given_at);
        if spot.is_none() && !of.may_be_beside_a_step() {
            return Verdict::Unchanged;
        }
        live.suspicion.note(Sighting {
            spot,
            history,
            signature: (of.cause.label(), of.scene.within),
            alone: of.alone && self.suspects.contains(&id),
        });
        let is_suspect = live.suspicion.is_suspect();
        let job_id = live.record.job_id.as_str();
        if live.suspicion.is_proven(toll) {
            let deaths = live.suspicion.deaths();
            return Verdict::Proven { deaths };
        }
        if is_suspect && self.suspects.insert(id) {
            warn!(job_id, request = id.0, "job_on_probation");
            return Verdict::OnProbation;
        }
        if !is_suspect && self.suspects.remove(&id) {
            info!(job_id, request = id.0, "job_off_probation");
        }
        Verdict::Unchanged
    }

    /// The same request in other jobs would kill as many children again; one that got past the fatal step
    /// has shown that it does not.
    pub(super) fn twins(&self, fingerprint: Fingerprint) -> Vec<RequestId> {
        let live = self.live.values();
        let may_kill = live.filter(|it| self.suspects.contains(&it.record.id) || !it.has_tokens());
        let twins = may_kill.filter(|it| Fingerprint::of_record(&it.record) == fingerprint);
        twins.map(|live| live.record.id).collect()
    }

    // === who is next ===

    /// Gives each child what it may have now. A suspect gets a seat for itself; who is no suspect goes
    /// to the other seats, and waits where there is none.
    pub(super) fn hand_out(&mut self) {
        let waiting: Vec<_> = self
            .live
            .values()
            .filter(|live| live.place == Place::Waiting)
            .map(|live| live.record.id)
            .collect();
        let turn = self.turn();
        let cell = self.cell();
        for id in waiting {
            let seat = match self.suspects.contains(&id) {
                true if turn == Some(id) => cell.filter(|cell| self.seat(*cell).is_free()),
                true => None,
                false => self.seat_for_anybody(),
            };
            if let Some(seat) = seat {
                self.hand_over(id, seat);
            }
        }
        let cell = cell.filter(|cell| self.seat(*cell).is_open());
        if let (Some(cell), Some(suspect)) = (cell, turn) {
            self.call_back_all_but(suspect, cell);
        }
        self.release_kv();
    }

    /// The seat of the suspect whose turn it is: where it is, or the one with the fewest requests. As
    /// long as only one of several is open, it is everybody else's.
    fn cell(&self) -> Option<SeatId> {
        let suspect = self.live.get(&self.turn()?)?;
        let is_spare = self.serving == 1 || self.open_seats().count() > 1;
        let emptiest = self.emptiest(|_| is_spare);
        suspect.place.seat().or(emptiest)
    }

    /// The suspect that is with a child, or the oldest.
    fn turn(&self) -> Option<RequestId> {
        let is_with_child = |id: &&RequestId| {
            let live = self.live.get(id);
            live.is_some_and(|live| live.place.seat().is_some())
        };
        let mut suspects = self.suspects.iter();
        suspects
            .find(is_with_child)
            .or(self.suspects.first())
            .copied()
    }

    /// The seat with the fewest requests, of those that are open and no suspect's.
    fn seat_for_anybody(&self) -> Option<SeatId> {
        let cell = self.cell();
        self.emptiest(|seat| Some(seat) != cell)
    }

    fn emptiest(&self, may_be: impl Fn(SeatId) -> bool) -> Option<SeatId> {
        let seats = self.open_seats().filter(|seat| may_be(*seat));
        seats.min_by_key(|seat| self.seats[usize::from(seat.0)].given())
    }

    pub(super) fn open_seats(&self) -> impl Iterator<Item = SeatId> {
        let seats = (0..).map(SeatId).zip(&self.seats);
        seats.filter(|(_, it)| it.is_open()).map(|(seat, _)| seat)
    }

    /// A suspect's pages are not adopted: what kills may lie in them.
    fn hand_over(&mut self, id: RequestId, seat: SeatId) {
        let adopts_from = self.seat(seat).adopts_from();
        let is_suspect = self.suspects.contains(&id);
        if let Some(live) = self.live.get_mut(&id) {
            live.place = Place::With(seat);
            live.given_at = live.history();
            let record = Arc::clone(&live.record);
            let sealed = live.sealed.take();
            let sealed = sealed.filter(|it| Some(it.child) == adopts_from && !is_suspect);
            self.seat(seat).give(record, sealed);
        }
    }

    fn call_back_all_but(&mut self, suspect: RequestId, seat: SeatId) {
        let is_other =
            |(id, live): &(&RequestId, &Live)| **id != suspect && live.place == Place::With(seat);
        let others: Vec<_> = self
            .live
            .iter()
            .filter(is_other)
            .map(|(id, _)| *id)
            .collect();
        for id in others {
            self.call_back(id, seat);
        }
    }

    /// The child that has it is to let go of it.
    pub(super) fn call_back(&mut self, id: RequestId, seat: SeatId) {
        if let Some(live) = self.live.get_mut(&id) {
            live.place = Place::CalledBack(seat);
            live.record.progress.lock().pause();
            self.seat(seat).call_back(id);
        }
    }

    /// The child has let go of it.
    pub(super) fn came_back(&mut self, seat: SeatId, id: RequestId) {
        if let Some(live) = self.live.get_mut(&id) {
            live.place = Place::Waiting;
            self.seat(seat).release();
        }
        self.hand_out();
    }

    /// Called for each token of a suspect.
    pub(super) fn acquit_if_past(&mut self, id: RequestId) {
        let Some(live) = self.live.get(&id) else {
            return;
        };
        if live.suspicion.is_acquitted_at(live.history()) {
            info!(job_id = live.record.job_id, request = id.0, "job_acquitted");
            self.suspects.remove(&id);
            self.hand_out();
        }
    }

    /// Somebody may wait until the child has nothing else.
    pub(super) fn hand_out_to_suspects(&mut self) {
        if !self.suspects.is_empty() {
            self.hand_out();
        }
    }
}

impl Live {
    /// Tokens of its prompt and its answer.
    pub(super) fn history(&self) -> u32 {
        let tokens = self.record.progress.lock().tokens_out();
        self.record.tokens_in().saturating_add(tokens)
    }

    fn has_tokens(&self) -> bool {
        self.record.progress.lock().tokens_out() > 0
    }
}
