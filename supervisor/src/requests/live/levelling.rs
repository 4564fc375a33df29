//! Levelling: a child that has room is given what another has not begun.
//!
//! A request is given to a child as soon as it is there, by an estimate. Where it turns out otherwise, one that
//! waits is called back and goes over; a stream that a child has begun stays where it is, because moving it costs its
//! client a pause.

use super::assignments::{Assignments, Live};
use super::dispatch::{Dispatch, Place};
use crate::requests::placement::Stage;
use std::collections::BTreeMap;
use worker_orcd_ipc::{ClientId, RequestId};
use worker_orcd_lifecycle::SeatId;

/// Tokens of a prompt that moving must save: about what a child computes while the request is on its way.
const WORTH: u64 = 256;

impl Assignments {
    /// Calls back at most one request for each pair of children.
    pub(super) fn level(&mut self) {
        // While somebody is suspected, who is where says something about them.
        if self.key.is_none() || !self.suspects.is_empty() {
            return;
        }
        let open: Vec<_> = self.open_seats().collect();
        for to in &open {
            for from in open.iter().filter(|from| *from != to) {
                if self.may_level(*from, *to)
                    && let Some(id) = self.to_move(*from, *to)
                    && let Some(live) = self.live.get_mut(&id)
                {
                    live.place = Place::CalledBack(*from);
                    live.goes_to = Some(*to);
                    live.was_moved = true;
                    self.seat(*from).call_back(id);
                }
            }
        }
    }

    /// A cheap look at whether there can be anything to do.
    fn may_level(&self, from: SeatId, to: SeatId) -> bool {
        let (from, to) = (self.dispatch(from), self.dispatch(to));
        from.burden.waiting > 0 && to.burden.given < to.capacity().slots
    }

    /// The youngest request that the one has not begun, of the client with the most of them there, if it
    /// would have its first token sooner with the other.
    fn to_move(&self, from: SeatId, to: SeatId) -> Option<RequestId> {
        let on_its_way = |live: &Live| live.goes_to == Some(to);
        if self.of(from).any(on_its_way) {
            return None;
        }
        let waits = |live: &&Live| {
            live.place == Place::With(from) && live.hold.stage() == Stage::Waits && !live.was_moved
        };
        let waiting = || self.of(from).filter(waits);
        let mut of_client: BTreeMap<ClientId, usize> = BTreeMap::new();
        for live in waiting() {
            *of_client.entry(live.record.client).or_default() += 1;
        }
        let may_go = waiting().filter(|live| self.allows(live, to));
        let chosen = may_go.max_by_key(|live| (of_client[&live.record.client], live.record.id))?;
        self.gains(chosen, from, to).then_some(chosen.record.id)
    }

    fn gains(&self, live: &Live, from: SeatId, to: SeatId) -> bool {
        let (old, new) = (self.dispatch(from), self.dispatch(to));
        let want = self.want(live, to);
        let here = old.burden.without(live.hold);
        let here = here.wait(live.hold.want(), old.capacity());
        let there = new.burden.wait(want, new.capacity());
        new.burden.has_room(want, new.capacity()) && there + WORTH < here
    }

    fn dispatch(&self, seat: SeatId) -> &Dispatch {
        &self.seats[usize::from(seat.0)]
    }
}
