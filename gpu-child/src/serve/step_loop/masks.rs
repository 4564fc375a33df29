//! Grammars on their way between the scheduler and the threads that know them.

use super::super::Doing;
use super::StepLoop;
use std::time::{Duration, Instant};
use worker_orcd_ipc::Fault;

/// Time that the draws of a step wait for masks of some rows, while others could draw. A mask takes less, as
/// a rule; a row takes more, so that to compute one again is worse. One that is later is not waited for again.
const MASK_PATIENCE: Duration = Duration::from_micros(300);

/// The same where nobody else waits, and where the device still computes: then commands are looked at.
const ALONE_PATIENCE: Duration = Duration::from_millis(10);

/// And where there is nothing to compute.
const IDLE_PATIENCE: Duration = Duration::from_millis(1);

impl StepLoop<'_> {
    /// Takes in the masks that are here.
    pub(super) fn hear_masks(&mut self) -> Result<(), Fault> {
        self.ask_for_masks()?;
        let now = Instant::now();
        while self.hear_a_mask_by(now) {}
        self.ask_for_masks()
    }

    /// Waits for the masks of the step begun last. Those that do not come in time are gone without.
    pub(super) fn wait_for_draws(&mut self) -> Result<(), Fault> {
        let patience = match (self.scheduler.others_draw(), self.executor.is_ahead()) {
            (false, _) => ALONE_PATIENCE,
            (true, false) => MASK_PATIENCE,
            // It computes as long as it did before, and nobody draws before it has.
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

    /// Waits for a mask while nothing else can be computed.
    pub(super) fn wait_for_a_mask(&mut self) {
        self.hear_a_mask_by(Instant::now() + IDLE_PATIENCE);
    }

    /// Passes on what the scheduler wants.
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
