//! Choice of the child for each request: suspect scheduling, and rebalancing between children.
//!
//! While there are suspects, the child of one seat has at most one request. All its other requests are called back
//! (cancelled there, kept here) before a suspect's turn, so a death then has one possible cause. The other seats serve
//! all other requests. With a single device, the other requests wait. Every end, acquittal and call-back leads to
//! [`Assignments::hand_out`], so no request waits for a turn that never comes.
//!
//! A request is placed on arrival, by an estimate. If the estimate is wrong, a child with room takes over requests that
//! another child has not begun: a request in a child's queue is called back and moved. A request that a child has begun
//! stays, because a move interrupts the client's stream.

use super::assignments::{Assignments, Live};
use super::dispatch::{Dispatch, Place};
use crate::placement::Demand;
use std::collections::BTreeMap;
use std::sync::Arc;
use worker_orcd_ipc::{ClientId, RequestId, SealedPages};
use worker_orcd_lifecycle::SeatId;

/// Minimum gain of a move, in prompt tokens: about the work of a child while the request is in transit, one step on
/// each side.
const WORTH: u64 = 1024;

impl Assignments {
    /// Assigns waiting requests to children. A suspect gets a seat of its own. Other requests go to the other seats,
    /// and wait if there is none.
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
        self.rebalance();
        self.release_kv();
    }

    /// Seat of the suspect that is next: its present seat, else the permitted seat with the fewest requests. While
    /// another device will serve again, the only open seat is left to the other requests.
    fn cell(&self) -> Option<SeatId> {
        let suspect = self.live.get(&self.turn()?)?;
        let is_spare = self.devices().in_use() <= 1 || self.open_seats().count() > 1;
        let emptiest = self.emptiest(suspect, |_| is_spare);
        suspect.place.seat().or(emptiest)
    }

    /// Next suspect: the one that is with a child, else the oldest that an open seat may have, else the oldest.
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

    /// Open seat with the shortest estimated time to the first token, except the suspect's seat.
    pub(super) fn seat_for(&self, id: RequestId) -> Option<SeatId> {
        let cell = self.cell();
        let live = self.live.get(&id)?;
        let seats = self.open_seats();
        let seats = seats.filter(|seat| Some(*seat) != cell && self.allows(live, *seat));
        seats.min_by_key(|seat| {
            let dispatch = &self.seats[usize::from(seat.0)];
            let wait = || {
                dispatch
                    .load
                    .wait(self.demand(live, *seat), dispatch.capacity())
            };
            // A request that was called back for this seat goes there.
            (live.goes_to != Some(*seat)).then(wait)
        })
    }

    /// Demand of a request on the child of this seat.
    pub(super) fn demand(&self, live: &Live, seat: SeatId) -> Demand {
        let dispatch = &self.seats[usize::from(seat.0)];
        let history = u64::from(live.history());
        let prefixes = dispatch.prefixes.as_ref();
        let cached = prefixes.map_or(0, |it| it.cached_tokens(&live.chain) as u64);
        let adoptable = live.adoptable_by(dispatch);
        let adopted = adoptable.map_or(0, |it| {
            it.pages.iter().map(|page| u64::from(page.tokens)).sum()
        });
        Demand {
            history,
            uncached: history.saturating_sub(cached.max(adopted)),
        }
    }

    fn emptiest(&self, live: &Live, may_be: impl Fn(SeatId) -> bool) -> Option<SeatId> {
        let seats = self.open_seats();
        let seats = seats.filter(|seat| may_be(*seat) && self.allows(live, *seat));
        seats.min_by_key(|seat| self.seats[usize::from(seat.0)].given())
    }

    /// True if this seat may have the request: its class permits it, and its child owes no last report on it.
    pub(super) fn allows(&self, live: &Live, seat: SeatId) -> bool {
        let dispatch = &self.seats[usize::from(seat.0)];
        let is_leaving = dispatch.is_leaving(live.record.id);
        !is_leaving && self.devices().allow(&live.pin, dispatch.class())
    }

    pub(super) fn open_seats(&self) -> impl Iterator<Item = SeatId> {
        let seats = (0..).map(SeatId).zip(&self.seats);
        seats.filter(|(_, it)| it.is_open()).map(|(seat, _)| seat)
    }

    /// Assigns a request to a seat. Sealed pages of a suspect are not adopted, because they may contain the cause of
    /// the deaths.
    pub(super) fn hand_over(&mut self, id: RequestId, seat: SeatId) {
        let Some(demand) = self.live.get(&id).map(|live| self.demand(live, seat)) else {
            return;
        };
        let is_suspect = self.suspects.contains(&id);
        let dispatch = &mut self.seats[usize::from(seat.0)];
        if let Some(live) = self.live.get_mut(&id) {
            live.place = Place::With(seat);
            live.reservation = dispatch.load.take(demand);
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

    /// Calls a request back from its child.
    pub(super) fn call_back(&mut self, id: RequestId, seat: SeatId) {
        if let Some(live) = self.live.get_mut(&id) {
            live.place = Place::CalledBack(seat);
            live.record.progress.lock().pause();
            self.seat(seat).call_back(id);
        }
    }

    /// Returns a request to the waiting ones, because its child has confirmed the call-back.
    pub(super) fn came_back(&mut self, id: RequestId) {
        self.vacate(id);
        self.hand_out();
    }

    // === rebalancing ===

    /// Calls back at most one request for each pair of children.
    pub(super) fn rebalance(&mut self) {
        // While there are suspects, placement is evidence about them.
        if self.key.is_none() || !self.suspects.is_empty() {
            return;
        }
        let open: Vec<_> = self.open_seats().collect();
        let is_behind = |it: &&SeatId| !self.dispatch(**it).queue.is_empty();
        let behind: Vec<_> = open.iter().filter(is_behind).copied().collect();
        for from in behind {
            for to in open.iter().filter(|to| **to != from) {
                if self.may_gain(from, *to)
                    && let Some(id) = self.to_move(from, *to)
                {
                    self.send_over(id, from, *to);
                }
            }
        }
    }

    fn send_over(&mut self, id: RequestId, from: SeatId, to: SeatId) {
        if let Some(live) = self.live.get_mut(&id) {
            live.place = Place::CalledBack(from);
            live.goes_to = Some(to);
            live.was_moved = true;
            let dispatch = self.seat(from);
            dispatch.departs_for.insert(to, id);
            dispatch.queue.remove(&id);
            dispatch.call_back(id);
        }
    }

    /// True if the shorter queue alone could justify a move: for a request with its whole history in the other child's
    /// cache.
    fn may_gain(&self, from: SeatId, to: SeatId) -> bool {
        let (old, new) = (self.dispatch(from), self.dispatch(to));
        let none = Demand::default();
        let here = old.load.wait(none, old.capacity());
        let there = new.load.wait(none, new.capacity());
        there + WORTH < here && !old.departs_for.contains_key(&to)
    }

    /// Request to move from one child to the other: the youngest unbegun request of the client with the most of them
    /// there, if the move pays off.
    fn to_move(&self, from: SeatId, to: SeatId) -> Option<RequestId> {
        let queue = self.dispatch(from).queue.iter();
        let waiting: Vec<_> = queue.filter_map(|id| self.live.get(id)).collect();
        let mut of_client: BTreeMap<ClientId, usize> = BTreeMap::new();
        for live in &waiting {
            *of_client.entry(live.record.client).or_default() += 1;
        }
        let may_go = waiting.into_iter().filter(|live| {
            let is_here = live.place == Place::With(from) && !live.was_moved;
            is_here && self.allows(live, to)
        });
        let chosen = may_go.max_by_key(|live| (of_client[&live.record.client], live.record.id))?;
        self.gains(chosen, from, to).then_some(chosen.record.id)
    }

    fn gains(&self, live: &Live, from: SeatId, to: SeatId) -> bool {
        let (old, new) = (self.dispatch(from), self.dispatch(to));
        let demand = self.demand(live, to);
        let here = old.load.without(live.reservation);
        let here = here.wait(live.reservation.demand(), old.capacity());
        let there = new.load.wait(demand, new.capacity());
        new.load.has_room(demand, new.capacity()) && there + WORTH < here
    }

    fn dispatch(&self, seat: SeatId) -> &Dispatch {
        &self.seats[usize::from(seat.0)]
    }
}

impl Live {
    /// Sealed pages that this child may adopt. Pages of another determinism class hold different bits.
    fn adoptable_by(&self, dispatch: &Dispatch) -> Option<&SealedPages> {
        let sealed = self.sealed.as_ref();
        let is_same_class = self.sealed_by.is_none() || self.sealed_by.as_ref() == dispatch.class();
        sealed.filter(|it| is_same_class && dispatch.may_adopt_from(it.child))
    }
}

#[cfg(test)]
mod tests;
