//! Rows of a step on their way to the embeddings that they are of.

use super::StepLoop;
use crate::pooling::HiddenRows;
use worker_orcd_ipc::Fault;

impl StepLoop<'_> {
    /// Gives embeddings their rows of a step.
    pub(super) fn pool(&mut self, rows: HiddenRows) -> Result<(), Fault> {
        for row in rows.into_rows() {
            if !row.is_finite() {
                return Err(Fault::NonFiniteLogits {
                    step: self.step,
                    request: row.request,
                });
            }
            self.scheduler.pool(&row);
        }
        Ok(())
    }
}
