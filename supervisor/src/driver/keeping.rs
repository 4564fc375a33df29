//! The open model file between two children: taken from the one that opened it when it is ready,
//! given to each later one with its order to load.
//!
//! So what the path names by then, if anything, is nothing to the streams that run. Without the
//! open file (no descriptor was left) the next child opens the path again; whether it is still the
//! same model is compared either way.

use crate::driver::Driver;
use tracing::warn;
use worker_orcd_ipc::{LoadOrder, ModelFile};
use worker_orcd_lifecycle::{ChildEvent, SeatId};

impl Driver {
    pub(super) fn order_to_load(&mut self, seat: SeatId) -> LoadOrder {
        let model_file = match self.hand_model_out(seat) {
            true => ModelFile::HandedOver,
            false => ModelFile::AtPath,
        };
        LoadOrder {
            model_file,
            ..self.settings.load.clone()
        }
    }

    fn hand_model_out(&mut self, seat: SeatId) -> bool {
        let child = &mut self.seats[usize::from(seat.0)].child;
        let (Some(model), Some(child)) = (&self.kept_model, child) else {
            return false;
        };
        child
            .hand_out_model(model)
            .inspect_err(|error| warn!(%error, "model_file_not_handed_on"))
            .is_ok()
    }

    /// Called when a child is ready.
    ///
    /// # Errors
    /// When the child handed over something else.
    pub(super) fn keep_model(&mut self, seat: SeatId) -> Result<(), ChildEvent> {
        let Some(child) = &mut self.seats[usize::from(seat.0)].child else {
            return Ok(());
        };
        if self.kept_model.is_some() {
            return Ok(());
        }
        match child.take_model() {
            Ok(Some(model)) => self.kept_model = Some(model),
            Ok(None) => warn!("model_file_not_handed_over"),
            Err(error) if error.kind() == std::io::ErrorKind::InvalidData => {
                return Err(ChildEvent::Violation(error.to_string()));
            }
            Err(error) => warn!(%error, "model_file_not_kept_open"),
        }
        Ok(())
    }
}
