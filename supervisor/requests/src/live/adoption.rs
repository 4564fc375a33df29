//! Sealed KV cache pages: the pages of each request, and the child that may adopt them.

use super::Requests;
use super::assignments::Assignments;
use crate::violation::Violation;
use worker_orcd_ipc::{Generation, KvSource, MAX_LAYER_GROUPS, SealedPage, SealedPages, Sealing};
use worker_orcd_lifecycle::SeatId;

impl Requests {
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
        let kin = dispatch.kin().cloned();
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
        let most = MAX_LAYER_GROUPS * live.history() as usize;
        let is_possible = first + said.pages.len() <= most;
        if first <= pages.len() && is_possible {
            let known = whole_pages(&pages).len().min(first);
            pages.truncate(first);
            pages.extend(&said.pages);
            let news = whole_pages(&pages)[known..].to_vec();
            live.sealed_by = kin;
            live.sealed = (!pages.is_empty()).then_some(SealedPages { child, pages });
            self.assigned.copy_ahead(child, &news);
        }
        Ok(())
    }
}

/// All pages but the last, which may be sealed again with more tokens. Other pages of its block may be, too, so a
/// standby copies only full pages.
fn whole_pages(pages: &[SealedPage]) -> &[SealedPage] {
    pages.split_last().map_or(&[], |(_, whole)| whole)
}

impl Assignments {
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
}

#[cfg(test)]
mod tests;
