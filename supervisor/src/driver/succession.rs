//! One child serves, and another one's requests go to it.

use super::Driver;
use crate::requests::{Kin, ServedBy};
use std::sync::Arc;
use worker_orcd_ipc::Generation;
use worker_orcd_lifecycle::SeatId;

impl Driver {
    pub(super) fn serve(&mut self, seat: SeatId, generation: Generation) {
        if let Some(model) = self.seats[seat].model.take() {
            self.compare_with_inherited(model.digest());
            let occupied = &mut self.seats[seat];
            self.keeping[seat].serves(occupied);
            self.models.put(seat.device(), &model);
            self.handles
                .install(&self.models.together().unwrap_or_else(|| Arc::clone(&model)));
            let model = self.model.insert(model);
            self.chronicle.ready(self.now, occupied, generation, model);
            let by = ServedBy {
                text: Arc::clone(&model.text),
                kin: Kin::of(&model.device),
                slots: model.max_running as usize,
                kv_tokens: model.kv_capacity_tokens,
            };
            self.requests.serve(seat, by);
        }
        for seat in self.seats.ids() {
            if let Some(generation) = self.seats[seat].to_release.take() {
                self.release(seat, generation);
            }
        }
    }

    /// Once another child serves, nobody waits until this one is buried.
    pub(super) fn release(&mut self, seat: SeatId, generation: Generation) {
        let (chronicle, seat) = (&mut self.chronicle, &mut self.seats[seat]);
        if !self.worker.foremost().state().takes_work() {
            seat.to_release = Some(generation);
            return;
        }
        chronicle.released(self.now, seat, generation, &self.requests);
        self.requests.release(seat.id);
    }
}
