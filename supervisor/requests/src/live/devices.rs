//! Several children: the devices in use, and what moves between them.
//!
//! The client of a request has received output of one determinism class, and only children of that class compute the
//! same bits. A request is therefore pinned to the class from its first token on (or from the first log probability of
//! its prompt). A request without output may go to any device.
//!
//! * Sealed KV cache pages: the pages of each request, and the child that may adopt them.
//! * Recall: from all children before a hand-over to another driver, or from one child to the others.
//! * Overdue children: requests move to another child before the death is certain. A child on a failed device may
//!   notice the failure later than its streams could continue elsewhere. If an overdue child resumes, it accepts
//!   requests again and drops those that left; its reports about them are ignored. If it dies, the requests that left
//!   are judged by their state at the departure, as after a [release](Requests::release).

use super::Requests;
use super::assignments::Assignments;
use super::dispatch::{Dispatch, Place};
use crate::determinism::DeterminismClass;
use crate::record::{Failure, Record};
use crate::violation::Violation;
use std::num::NonZeroU8;
use std::time::Instant;
use worker_orcd_ipc::{
    Generation, KvSource, MAX_PAGE_GROUPS, RequestId, SealedPage, SealedPages, Sealing,
};
use worker_orcd_lifecycle::{DeviceId, SeatId};

#[derive(Debug)]
pub(super) struct Devices(Vec<Device>);

#[derive(Debug, Clone, Default)]
struct Device {
    /// Failure for requests that only this device could continue. `Some`: the device gets no further child.
    stranded: Option<Failure>,
    /// Determinism class of the newest child that served on the device.
    class: Option<DeterminismClass>,
}

/// Children that may continue a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Pin {
    /// Any child: the client has received nothing.
    Free,
    /// Children of the first device's class: an earlier supervisor began the request, and its log does not name the
    /// class.
    Unknown,
    To(DeterminismClass),
}

impl Requests {
    // === devices ===

    /// Takes a device out of use. Requests that no other device can continue end with `failure`. Requests of the
    /// device's present child end once they have left it.
    pub fn strand(&mut self, device: DeviceId, failure: &Failure, now: Instant) {
        self.assigned.devices_mut().get_mut(device).stranded = Some(failure.clone());
        let of_it = self.assigned.seats_of(device);
        of_it.for_each(Dispatch::stop);
        self.end_hopeless(now);
        self.assigned.hand_out();
    }

    /// Returns a device to use.
    pub fn readmit(&mut self, device: DeviceId) {
        self.assigned.devices_mut().get_mut(device).stranded = None;
    }

    /// Ends requests that no device in use can continue.
    pub(super) fn end_hopeless(&mut self, now: Instant) {
        for (id, failure) in self.assigned.hopeless() {
            self.end(id, now, |progress, _| progress.fail(failure));
        }
    }

    // === sealed pages ===

    /// Notes that the child of this seat loads, and the child of which it may adopt sealed pages.
    pub fn loads(&mut self, seat: SeatId, child: Generation, adopts_from: Option<KvSource>) {
        let other = adopts_from.map(|other| other.child);
        self.assigned.seat(seat).loads(child, other);
    }

    /// Notes that the child of this seat has access to the KV cache of another device's child.
    pub fn attached(&mut self, seat: SeatId, sibling: Generation) {
        self.assigned.seat(seat).attach(sibling);
    }

    /// Starts copying ahead: the standby of this seat copies full pages of the active child before their requests
    /// arrive.
    pub fn copies_ahead(&mut self, seat: SeatId) {
        self.assigned.seat(seat).begin_copies_ahead();
        let from = self.assigned.seat(seat).copies_ahead_from();
        let lists = self
            .assigned
            .iter_mut()
            .filter_map(|live| live.sealed.as_ref());
        let lists = lists.filter(|sealed| Some(sealed.child) == from);
        let whole: Vec<_> = lists
            .map(|sealed| whole_pages(&sealed.pages).to_vec())
            .collect();
        let dispatch = self.assigned.seat(seat);
        whole.iter().for_each(|pages| dispatch.copy_ahead(pages));
    }

    /// Drops all sealed pages of this seat's child, because they may be wrong.
    pub fn distrust(&mut self, seat: SeatId) {
        let child = self.assigned.seat(seat).child();
        for live in self.assigned.iter_mut() {
            live.sealed = live.sealed.take().filter(|it| Some(it.child) != child);
        }
    }

    /// Adds pages that the child of a seat has sealed for a request. An impossible list is dropped, and its tokens are
    /// computed again.
    pub(super) fn sealed(&mut self, seat: SeatId, said: &Sealing) -> Result<(), Violation> {
        let request = said.request;
        let dispatch = self.assigned.seat(seat);
        let (child, is_leaving) = (dispatch.child(), dispatch.is_leaving(request));
        let class = dispatch.class().cloned();
        let live = self.assigned.get_mut_with(request, seat);
        let (Some(live), Some(child)) = (live, child) else {
            let what = "pages";
            return match is_leaving {
                true => Ok(()),
                false => Err(Violation::UnknownRequest { what, request }),
            };
        };
        let sealed = live.sealed.take().filter(|it| it.child == child);
        let mut pages = sealed.map_or_else(Vec::new, |it| it.pages);
        let first = said.first as usize;
        // Each page holds at least one token, and each token is in one page per group of layers.
        let most = MAX_PAGE_GROUPS * live.history() as usize;
        let is_possible = first + said.pages.len() <= most;
        if first <= pages.len() && is_possible {
            let known = whole_pages(&pages).len().min(first);
            pages.truncate(first);
            pages.extend(&said.pages);
            let news = whole_pages(&pages)[known..].to_vec();
            live.sealed_by = class;
            live.sealed = (!pages.is_empty()).then_some(SealedPages { child, pages });
            self.assigned.copy_ahead(child, &news);
        }
        Ok(())
    }

    // === recall ===

    /// Calls back all requests and stops submissions. Reports of children remain valid until they confirm.
    pub fn recall(&mut self) {
        self.assigned.seats_mut().for_each(Dispatch::stop);
        for seat in self.assigned.all_seats() {
            self.assigned.withdraw(seat);
        }
    }

    /// Calls back the requests of this seat's child, which continue on others. The child gets no further submissions.
    pub fn withdraw(&mut self, seat: SeatId) {
        self.assigned.withdraw(seat);
        self.assigned.hand_out();
    }

    /// True if the child of this seat has no request, and all commands were sent to it.
    pub fn is_withdrawn(&mut self, seat: SeatId) -> bool {
        let dispatch = self.assigned.seat(seat);
        dispatch.is_free() && dispatch.has_sent_all()
    }

    // === overdue children ===

    /// True if this child and another child of its class accept requests, so that requests could move.
    pub fn may_set_overdue(&mut self, seat: SeatId) -> bool {
        let class = self.assigned.seat(seat).class().cloned();
        let open: Vec<_> = self.assigned.open_seats().collect();
        let mut others = open.iter().filter(|other| **other != seat);
        open.contains(&seat)
            && others.any(|other| self.assigned.seat(*other).class() == class.as_ref())
    }

    /// Moves requests of an overdue child to other children that have room. The child gets no submissions until it is
    /// [trusted](Self::trust) again. Returns the number of moved requests.
    pub fn set_overdue(&mut self, seat: SeatId) -> usize {
        if !self.may_set_overdue(seat) {
            return 0;
        }
        self.totals.overdue_children += 1;
        self.assigned.seat(seat).set_overdue();
        let mut left = 0;
        for id in self.assigned.may_depart(seat).collect::<Vec<_>>() {
            let Some(other) = self.assigned.seat_with_room(id) else {
                continue;
            };
            self.assigned.renounce(id, seat);
            self.interrupt(id, seat);
            self.assigned.hand_over(id, other);
            left += 1;
        }
        left
    }

    /// Resumes submissions to a child that made progress. Returns false if it was not overdue.
    pub fn trust(&mut self, seat: SeatId) -> bool {
        let was_overdue = self.assigned.seat(seat).trust();
        if was_overdue {
            self.totals.recoveries += self.assigned.forget_left(seat) as u64;
            self.assigned.hand_out();
        }
        was_overdue
    }
}

impl Devices {
    pub(super) fn new(devices: NonZeroU8) -> Self {
        Self(vec![Device::default(); usize::from(devices.get())])
    }

    /// Notes that a child of this class serves on the device.
    pub(super) fn serves(&mut self, device: DeviceId, class: DeterminismClass) {
        *self.get_mut(device) = Device {
            stranded: None,
            class: Some(class),
        };
    }

    /// Number of devices that have a child or will get one.
    pub(super) fn in_use(&self) -> usize {
        self.left().count()
    }

    /// True if a child of this class may continue a request with this pin.
    pub(super) fn allow(&self, pin: &Pin, class: Option<&DeterminismClass>) -> bool {
        match pin {
            Pin::Free => true,
            Pin::Unknown => class == self.first_class(),
            Pin::To(its) => class == Some(its),
        }
    }

    /// Failure for a request with this pin, if no present or future child can continue it.
    fn despair(&self, pin: &Pin) -> Option<&Failure> {
        let Pin::To(its) = pin else {
            return None;
        };
        let may_have = |device: &Device| device.class.as_ref().is_none_or(|class| class == its);
        if self.left().any(may_have) {
            return None;
        }
        let mut stranded = self.0.iter().filter(|it| may_have(it));
        stranded.find_map(|it| it.stranded.as_ref())
    }

    fn any_stranded(&self) -> bool {
        self.in_use() < self.0.len()
    }

    /// Determinism class of the first device in use that has one.
    fn first_class(&self) -> Option<&DeterminismClass> {
        self.left().find_map(|device| device.class.as_ref())
    }

    fn left(&self) -> impl Iterator<Item = &Device> {
        self.0.iter().filter(|device| device.stranded.is_none())
    }

    fn get_mut(&mut self, device: DeviceId) -> &mut Device {
        &mut self.0[usize::from(device.0)]
    }
}

impl Pin {
    pub(super) fn of(record: &Record) -> Self {
        let progress = record.progress.lock();
        let scores_sent = progress.scores_sent().unwrap_or(0);
        match progress.tokens_out() > 0 || scores_sent > 0 {
            true => Self::Unknown,
            false => Self::Free,
        }
    }
}

impl Assignments {
    // === devices ===

    fn seats_of(&mut self, device: DeviceId) -> impl Iterator<Item = &mut Dispatch> {
        let seats = (0..).map(SeatId).zip(self.seats_mut());
        let of_it = seats.filter(move |(seat, _)| seat.device() == device);
        of_it.map(|(_, dispatch)| dispatch)
    }

    /// Waiting requests that no device can continue, each with its failure.
    fn hopeless(&self) -> Vec<(RequestId, Failure)> {
        if !self.devices().any_stranded() {
            return Vec::new();
        }
        let waiting = self.iter().filter(|live| live.place == Place::Waiting);
        let hopeless = waiting.filter_map(|live| {
            let failure = self.devices().despair(&live.pin)?;
            Some((live.record.id, failure.clone()))
        });
        hopeless.collect()
    }

    // === sealed pages ===

    /// Sends sealed pages of `child` to the standbys that copy ahead from it.
    fn copy_ahead(&mut self, child: Generation, pages: &[SealedPage]) {
        let behind = self.seats_mut();
        for dispatch in behind.filter(|it| it.copies_ahead_from() == Some(child)) {
            dispatch.copy_ahead(pages);
        }
    }

    /// Releases KV caches that no request can adopt any more: the child that computed there takes no more work, and no
    /// request has pages of it.
    pub(super) fn release_kv(&mut self) {
        let open: Vec<_> = self.open_seats().collect();
        for seat in open {
            let sources: Vec<_> = self.seat(seat).sources().collect();
            for source in sources {
                if !self.may_take_work(source) && !self.has_sealed_by(source) {
                    self.seat(seat).release_kv(source);
                }
            }
        }
    }

    fn may_take_work(&mut self, child: Generation) -> bool {
        let mut left = self.seats_mut().filter(|it| it.may_take_work());
        left.any(|dispatch| dispatch.child() == Some(child))
    }

    fn has_sealed_by(&mut self, child: Generation) -> bool {
        let mut sealed = self.iter_mut().filter_map(|live| live.sealed.as_ref());
        sealed.any(|it| it.child == child)
    }

    // === recall ===

    fn withdraw(&mut self, seat: SeatId) {
        self.seat(seat).stop();
        let with_it = self.of(seat).filter(|live| live.place == Place::With(seat));
        let ids: Vec<_> = with_it.map(|live| live.record.id).collect();
        for id in ids {
            self.call_back(id, seat);
        }
    }

    // === overdue children ===

    /// Seat where a request could start immediately.
    fn seat_with_room(&self, id: RequestId) -> Option<SeatId> {
        let seat = self.seat_for(id)?;
        let dispatch = &self.seats[usize::from(seat.0)];
        let demand = self.demand(self.get(id)?, seat);
        let has_room = dispatch.load.has_room(demand, dispatch.capacity());
        has_room.then_some(seat)
    }

    /// Cancels a request at an overdue child, while it continues elsewhere.
    fn renounce(&mut self, id: RequestId, seat: SeatId) {
        self.note_departure(id, seat);
        let dispatch = self.seat(seat);
        dispatch.call_back(id);
        dispatch.depart(id);
    }
}

/// All pages but the last, which may be sealed again with more tokens. Other pages of its block may be, too, so a
/// standby copies only full pages.
fn whole_pages(pages: &[SealedPage]) -> &[SealedPage] {
    pages.split_last().map_or(&[], |(_, whole)| whole)
}

#[cfg(test)]
mod adoption_tests;
#[cfg(test)]
mod overdue_tests;
#[cfg(test)]
mod tests;
