//! Turns: which request is given to which child now.
//!
//! As long as there is a suspect, the child of one seat has at most one request: whatever else it still
//! has is called back (cancelled there, kept here) before the next suspect's turn, so that a death
//! then has one possible author. The other seats serve everybody else; with one device, everybody waits.
//! Everything that ends, moves on or is called back comes through [`Assignments::hand_out`], so nothing
//! waits for a turn that is not coming.

use super::assignments::{Assignments, Live};
use super::dispatch::{Dispatch, Place};
use crate::placement::Want;
use std::sync::Arc;
use worker_orcd_ipc::{RequestId, SealedPages};
use worker_orcd_lifecycle::SeatId;

impl Assignments {
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
                false => self.seat_for(id),
            };
            if let Some(seat) = seat {
                self.hand_over(id, seat);
            }
        }
        let cell = cell.filter(|cell| self.seat(*cell).is_open());
        if let (Some(cell), Some(suspect)) = (cell, turn) {
            self.call_back_all_but(suspect, cell);
        }
        self.level();
        self.release_kv();
    }

    /// The seat of the suspect whose turn it is: where it is, or the one with the fewest requests, of those
    /// that may have it. While another device is to serve again, the only one that does is everybody else's.
    fn cell(&self) -> Option<SeatId> {
        let suspect = self.live.get(&self.turn()?)?;
        let is_spare = self.devices().in_use() <= 1 || self.open_seats().count() > 1;
        let emptiest = self.emptiest(suspect, |_| is_spare);
        suspect.place.seat().or(emptiest)
    }

    /// The suspect that is with a child, or the oldest that a child may have, or the oldest.
    fn turn(&self) -> Option<RequestId> {
        let live = |id: &RequestId| self.live.get(id);
        let is_with_child =
            |id: &&RequestId| live(id).is_some_and(|live| live.place.seat().is_some());
        let may_go = |id: &&RequestId| {
            live(id).is_some_and(|live| self.open_seats().any(|seat| self.allows(live, seat)))
        };
        let mut suspects = self.suspects.iter();
        let with_child = suspects.clone().find(is_with_child);
        let with_place = || suspects.clone().find(may_go);
        let turn = with_child.or_else(with_place);
        turn.or_else(|| suspects.next()).copied()
    }

    /// The seat where its first token comes soonest, of those that are open and no suspect's.
    pub(super) fn seat_for(&self, id: RequestId) -> Option<SeatId> {
        let cell = self.cell();
        let live = self.live.get(&id)?;
        let seats = self.open_seats();
        let seats = seats.filter(|seat| Some(*seat) != cell && self.allows(live, *seat));
        seats.min_by_key(|seat| {
            let dispatch = &self.seats[usize::from(seat.0)];
            let wait = || {
                dispatch
                    .burden
                    .wait(self.want(live, *seat), dispatch.capacity())
            };
            // Whoever was called back for it goes there.
            (live.goes_to != Some(*seat)).then(wait)
        })
    }

    /// What it would take of the child of this seat.
    pub(super) fn want(&self, live: &Live, seat: SeatId) -> Want {
        let dispatch = &self.seats[usize::from(seat.0)];
        let history = u64::from(live.history());
        let prefixes = dispatch.prefixes.as_ref();
        let cached = prefixes.map_or(0, |it| it.cached_tokens(&live.chain) as u64);
        let adoptable = live.adoptable_by(dispatch);
        let adopted = adoptable.map_or(0, |it| {
            it.pages.iter().map(|page| u64::from(page.tokens)).sum()
        });
        Want {
            history,
            uncached: history.saturating_sub(cached.max(adopted)),
        }
    }

    fn emptiest(&self, live: &Live, may_be: impl Fn(SeatId) -> bool) -> Option<SeatId> {
        let seats = self.open_seats();
        let seats = seats.filter(|seat| may_be(*seat) && self.allows(live, *seat));
        seats.min_by_key(|seat| self.seats[usize::from(seat.0)].given())
    }

    /// A child that owes its last word on a request is not given it again.
    pub(super) fn allows(&self, live: &Live, seat: SeatId) -> bool {
        let dispatch = &self.seats[usize::from(seat.0)];
        let is_leaving = dispatch.is_leaving(live.record.id);
        !is_leaving && self.devices().allow(&live.bond, dispatch.kin())
    }

    pub(super) fn open_seats(&self) -> impl Iterator<Item = SeatId> {
        let seats = (0..).map(SeatId).zip(&self.seats);
        seats.filter(|(_, it)| it.is_open()).map(|(seat, _)| seat)
    }

    /// A suspect's pages are not adopted: what kills may lie in them.
    pub(super) fn hand_over(&mut self, id: RequestId, seat: SeatId) {
        let Some(want) = self.live.get(&id).map(|live| self.want(live, seat)) else {
            return;
        };
        let is_suspect = self.suspects.contains(&id);
        let dispatch = &mut self.seats[usize::from(seat.0)];
        if let Some(live) = self.live.get_mut(&id) {
            live.place = Place::With(seat);
            live.hold = dispatch.burden.take(want);
            dispatch.queue.insert(id);
            live.goes_to = None;
            live.given_at = live.history();
            if let Some(prefixes) = &mut dispatch.prefixes {
                prefixes.note(&live.chain);
            }
            let adopts = live.adoptable_by(dispatch).is_some() && !is_suspect;
            let sealed = live.sealed.take().filter(|_| adopts);
            dispatch.give(Arc::clone(&live.record), sealed);
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
    pub(super) fn came_back(&mut self, id: RequestId) {
        self.vacate(id);
        self.hand_out();
    }
}

impl Live {
    /// Its pages, if this child may adopt them: a child of another kin would have computed others.
    fn adoptable_by(&self, dispatch: &Dispatch) -> Option<&SealedPages> {
        let sealed = self.sealed.as_ref();
        let is_kin = self.sealed_by.is_none() || self.sealed_by.as_ref() == dispatch.kin();
        sealed.filter(|it| is_kin && dispatch.may_adopt_from(it.child))
    }
}
