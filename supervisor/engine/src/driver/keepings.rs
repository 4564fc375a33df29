//! Retained memory by device, and the model file that all devices share.

use crate::driver::keeping::Keeping;
use std::ops::{Index, IndexMut};
use worker_orcd_lifecycle::{DeviceId, SeatId};

pub(super) struct Keepings(Vec<Keeping>);

impl Keepings {
    /// Empty state for `devices` devices.
    pub(super) fn new(devices: usize) -> Self {
        Self((0..devices).map(|_| Keeping::default()).collect())
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Keeping> {
        self.0.iter()
    }

    pub(super) fn of(&self, device: DeviceId) -> &Keeping {
        &self.0[usize::from(device.0)]
    }

    /// Shares a model file that a child has handed over. The next child of each device gets it.
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

/// Index by a seat of the device.
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
