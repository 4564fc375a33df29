//! Rows of a step, consumed by embeddings and log probabilities of prompts.

use super::StepLoop;
use crate::logprobs::PromptRows;
use crate::pooling::HiddenRows;
use worker_orcd_ipc::{Fault, RequestId, Scored};

impl StepLoop<'_> {
    /// Adds the rows of a step to embeddings.
    pub(super) fn pool(&mut self, rows: HiddenRows) -> Result<(), Fault> {
        for row in rows.into_rows() {
            if !row.is_finite() {
                return Err(self.not_finite(row.request));
            }
            self.scheduler.pool(&row);
        }
        Ok(())
    }

    /// Log probabilities of prompts from the rows of a step.
    pub(super) fn score(&mut self, rows: PromptRows) -> Result<Vec<Scored>, Fault> {
        let scored = rows.answer().map_err(|request| self.not_finite(request))?;
        self.scheduler.score(&scored);
        Ok(scored)
    }

    fn not_finite(&self, request: RequestId) -> Fault {
        Fault::NonFiniteLogits {
            step: self.step,
            request,
        }
    }
}
