//! All seats of a worker, by number.

use crate::child::spawn::Spawner;
use crate::driver::seat::{Seat, SeatEvent};
use futures_util::future::select_all;
use std::ops::{Index, IndexMut};
use std::time::Instant;
use worker_orcd_lifecycle::SeatId;

pub(super) struct Seats(Vec<Seat>);

impl Seats {
    pub(super) fn new(ids: impl Iterator<Item = SeatId>, now: Instant, spawner: &Spawner) -> Self {
        Self(ids.map(|id| Seat::new(id, now, spawner)).collect())
    }

    /// Next event of any seat. Cancel-safe.
    pub(super) async fn next(&mut self) -> (SeatId, SeatEvent) {
        let next = |seat| Box::pin(next_of(seat));
        let (first, ..) = select_all(self.0.iter_mut().map(next)).await;
        first
    }

    pub(super) fn ids(&self) -> impl Iterator<Item = SeatId> + use<> {
        (0..).map(SeatId).take(self.0.len())
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Seat> {
        self.0.iter()
    }
}

async fn next_of(seat: &mut Seat) -> (SeatId, SeatEvent) {
    (seat.id, seat.next().await)
}

impl Index<SeatId> for Seats {
    type Output = Seat;

    fn index(&self, seat: SeatId) -> &Seat {
        &self.0[usize::from(seat.0)]
    }
}

impl IndexMut<SeatId> for Seats {
    fn index_mut(&mut self, seat: SeatId) -> &mut Seat {
        &mut self.0[usize::from(seat.0)]
    }
}
