//! Transport of masks between the scheduler and the grammar threads.

use super::super::Doing;
use super::StepLoop;
use std::time::{Duration, Instant};
use worker_orcd_ipc::Fault;

/// Wait for masks of some rows while others could sample. Usually a mask takes less. A row takes more, so recomputing
/// one is worse. A late mask is not waited for again.
const MASK_PATIENCE: Duration = Duration::from_micros(300);

/// Wait if no other row samples or the device still computes; then commands are handled.
const ALONE_PATIENCE: Duration = Duration::from_millis(10);

/// Wait if there is nothing to compute.
const IDLE_PATIENCE: Duration = Duration::from_millis(1);

impl StepLoop<'_> {
    /// Applies the masks that have arrived.
    pub(super) fn hear_masks(&mut self) -> Result<(), Fault> {
        self.ask_for_masks()?;
        let now = Instant::now();
        while self.hear_a_mask_by(now) {}
        self.ask_for_masks()
    }

    /// Waits for the masks of the last launched step. Rows with late masks do not sample.
    pub(super) fn wait_for_draws(&mut self) -> Result<(), Fault> {
        let patience = match (self.scheduler.others_draw(), self.executor.is_ahead()) {
            (false, _) => ALONE_PATIENCE,
            (true, false) => MASK_PATIENCE,
            // The step takes about as long as the last one, and no row samples before its end.
            (true, true) => MASK_PATIENCE.max(self.last_took / 2).min(ALONE_PATIENCE),
        };
        self.status.does(Doing::WaitsForMasks);
        let deadline = Instant::now() + patience;
        while self.scheduler.draws_wait() && self.hear_a_mask_by(deadline) {}
        self.ask_for_masks()
    }

    fn hear_a_mask_by(&mut self, deadline: Instant) -> bool {
        let answer = self.grammars.answer_by(deadline);
        let is_here = answer.is_some();
        if let Some(answer) = answer {
            self.scheduler
                .hear_mask(answer.ticket, &answer.forced, answer.mask);
        }
        is_here
    }

    /// Waits for a mask while there is nothing else to compute.
    pub(super) fn wait_for_a_mask(&mut self) {
        self.hear_a_mask_by(Instant::now() + IDLE_PATIENCE);
    }

    /// Sends the scheduler's requests to the grammar threads.
    pub(super) fn ask_for_masks(&mut self) -> Result<(), Fault> {
        let mut wishes = self.scheduler.take_wishes().into_iter();
        let heard = wishes.try_for_each(|wish| self.grammars.hear(wish));
        heard.map_err(|error| Fault::Io {
            message: format!("a thread cannot be started: {error}"),
        })
    }
}

#[cfg(test)]
mod tests;
