//! Failover: start of service of a child, and transfer of another child's requests to it.

use super::Driver;
use std::sync::Arc;
use tracing::warn;
use worker_orcd_ipc::{Command, FdKind, Generation, KvReaders};
use worker_orcd_lifecycle::{DeathCause, SeatId};
use worker_orcd_requests::{Kin, ServedBy};

impl Driver {
    pub(super) fn serve(&mut self, seat: SeatId, generation: Generation) {
        if let Some(model) = self.seats[seat].model.take() {
            self.compare_with_inherited(model.digest());
            self.models.put(seat.device(), &model);
            self.install();
            let occupied = &mut self.seats[seat];
            self.keeping[seat].serves(occupied);
            let model = self.model.insert(model);
            self.chronicle.ready(self.now, occupied, generation, model);
            let by = ServedBy {
                text: Arc::clone(&model.text),
                kin: Kin::of(&model.device),
                slots: model.max_running as usize,
                kv_tokens: model.kv_capacity_tokens,
            };
            self.requests.serve(seat, by);
            self.introduce(seat);
        }
        for seat in self.seats.ids() {
            if let Some(generation) = self.seats[seat].to_release.take() {
                self.release(seat, generation);
            }
        }
    }

    /// Releases the KV cache of a dying child unless successors adopt from it. Siblings hold their descriptors already,
    /// and the next child of the device needs the memory.
    pub(super) fn release_kv(&mut self, seat: SeatId, generation: Generation) {
        if self.settings.load.kv_readers != KvReaders::Successors {
            self.keeping[seat].release_kv(generation);
        }
    }

    /// Exchanges KV caches between children of several devices that compute the same bits. After a death the survivor
    /// continues from the pages of the dead child.
    fn introduce(&mut self, seat: SeatId) {
        let siblings = self
            .worker
            .seats()
            .filter(|it| it.device() != seat.device());
        let serving = siblings.filter(|it| self.worker.seat(*it).state().takes_work());
        let alike: Vec<_> = serving.filter(|it| self.are_alike(seat, *it)).collect();
        for sibling in alike {
            self.lend_kv(seat, sibling);
            self.lend_kv(sibling, seat);
        }
    }

    fn are_alike(&self, one: SeatId, other: SeatId) -> bool {
        let kin = |seat: SeatId| Some(Kin::of(&self.models.of(seat.device())?.device));
        let layout = |seat: SeatId| self.seats[seat].vitals.as_ref()?.arena_layout();
        kin(one).is_some() && kin(one) == kin(other) && layout(one) == layout(other)
    }

    /// Lends the KV cache of one child to another child.
    fn lend_kv(&mut self, from: SeatId, to: SeatId) {
        let lender = self.worker.seat(from).generation();
        let kept = self.keeping[from].kv_of(lender);
        let (Some((memory, source)), Some(child)) = (kept, &self.seats[to].child) else {
            return;
        };
        match child.put(FdKind::KvCache, memory) {
            Ok(()) => {
                self.send(to, &Command::Attach(source));
                self.requests.attached(to, source.child);
            }
            Err(error) => warn!(%error, "kv_cache_not_lent"),
        }
    }

    /// Transfers the requests of a child before it is reaped, once another child serves.
    pub(super) fn release(&mut self, seat: SeatId, generation: Generation) {
        self.release_kv(seat, generation);
        let (chronicle, seat) = (&mut self.chronicle, &mut self.seats[seat]);
        if !self.worker.foremost().state().takes_work() {
            seat.to_release = Some(generation);
            return;
        }
        chronicle.released(self.now, seat, generation, &self.requests);
        self.requests.release(seat.id);
    }

    /// Reaps the child of a seat.
    pub(super) fn bury(&mut self, seat: SeatId, generation: Generation, cause: &DeathCause) {
        let now = self.now;
        self.release_kv(seat, generation);
        let of_device = |it: &SeatId| *it != seat && it.device() == seat.device();
        let mut others = self.seats.ids().filter(of_device);
        let others = others.any(|other| self.seats[other].child.is_some());
        let (bereft, requests) = (&mut self.seats[seat], &mut self.requests);
        let (chronicle, keeping) = (&mut self.chronicle, &mut self.keeping[seat]);
        chronicle.gpu[seat].keeps(keeping.bytes());
        let scene = chronicle.buried(now, bereft, generation, cause, requests);
        let ascribed = requests.bury(seat, cause, &scene, now);
        let unfinished = bereft.takes_over_to_serve();
        bereft.clear();
        keeping.bury(cause, unfinished, others);
        self.absolve(seat, cause, &scene, ascribed);
    }
}
