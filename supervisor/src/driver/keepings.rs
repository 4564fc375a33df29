//! What is kept of each device, and the model file, which all of them share.

use crate::driver::keeping::Keeping;
use std::ops::{Index, IndexMut};
use worker_orcd_lifecycle::{DeviceId, SeatId};

pub(super) struct Keepings(Vec<Keeping>);

impl Keepings {
    /// Of so many devices.
    pub(super) fn new(devices: usize) -> Self {
        Self((0..devices).map(|_| Keeping::default()).collect())
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Keeping> {
        self.0.iter()
    }

    pub(super) fn of(&self, device: DeviceId) -> &Keeping {
        &self.0[usize::from(device.0)]
    }

    /// A child has handed over the file: the next child of any device gets it.
    pub(super) fn share_model(&mut self) {
        let model = self.iter().find_map(|keeping| keeping.model.clone());
        for keeping in &mut self.0 {
            keeping.model = keeping.model.take().or_else(|| model.clone());
        }
    }
}

impl FromIterator<Keeping> for Keepings {
    fn from_iter<T: IntoIterator<Item = Keeping>>(each: T) -> Self {
        Self(each.into_iter().collect())
    }
}

/// By a seat of the device.
impl Index<SeatId> for Keepings {
    type Output = Keeping;

    fn index(&self, seat: SeatId) -> &Keeping {
        &self.0[usize::from(seat.device().0)]
    }
}

impl IndexMut<SeatId> for Keepings {
    fn index_mut(&mut self, seat: SeatId) -> &mut Keeping {
        &mut self.0[usize::from(seat.device().0)]
    }
}
