//! The open model file between two children: taken from the one that opened it when it is ready,
//! given to each later one with its order to load.
//!
//! So what the path names by then, if anything, is nothing to the streams that run. Without the
//! open file (no descriptor was left) the next child opens the path again; whether it is still the
//! same model is compared either way.

use crate::child::Child;
use crate::child::custody::KeptModel;
use tracing::warn;
use worker_orcd_ipc::ModelFile;
use worker_orcd_lifecycle::ChildEvent;

/// The first child's open file, for all later ones.
#[derive(Debug, Default)]
pub(super) struct Keeping(Option<KeptModel>);

impl Keeping {
    pub(super) fn has_model(&self) -> bool {
        self.0.is_some()
    }

    /// The file for a child that is to load.
    pub(super) fn hand_out(&self, child: Option<&mut Child>) -> ModelFile {
        let (Some(model), Some(child)) = (&self.0, child) else {
            return ModelFile::AtPath;
        };
        match child.hand_out_model(model) {
            Ok(()) => ModelFile::HandedOver,
            Err(error) => {
                warn!(%error, "model_file_not_handed_on");
                ModelFile::AtPath
            }
        }
    }

    /// Called when a child is ready.
    ///
    /// # Errors
    /// When the child handed over something else.
    pub(super) fn keep(&mut self, child: &mut Child) -> Result<(), ChildEvent> {
        if self.has_model() {
            return Ok(());
        }
        match child.take_model() {
            Ok(Some(model)) => self.0 = Some(model),
            Ok(None) => warn!("model_file_not_handed_over"),
            Err(error) if error.kind() == std::io::ErrorKind::InvalidData => {
                return Err(ChildEvent::Violation(error.to_string()));
            }
            Err(error) => warn!(%error, "model_file_not_kept_open"),
        }
        Ok(())
    }
}
