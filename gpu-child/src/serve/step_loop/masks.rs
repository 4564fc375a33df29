//! Grammars on their way between the scheduler and the threads that know them.

use super::StepLoop;
use std::time::{Duration, Instant};
use worker_orcd_ipc::Fault;

/// Time that a step waits for masks of sequences that would sit it out otherwise. A mask takes less, as
/// a rule; a step takes more, so that to miss one is worse. One that is later is not waited for again.
const MASK_PATIENCE: Duration = Duration::from_micros(300);

/// The same where there is nothing else to compute: then commands are looked at.
const IDLE_PATIENCE: Duration = Duration::from_millis(1);

impl StepLoop<'_> {
    /// Takes in the masks that are here, or will be in a moment.
    pub(super) fn hear_masks(&mut self) -> Result<(), Fault> {
        self.ask_for_masks()?;
        let now = Instant::now();
        while let Some(answer) = self.grammars.answer_by(now) {
            self.scheduler.hear_mask(answer.ticket, answer.mask);
        }
        let deadline = now + MASK_PATIENCE;
        while self.in_flight.is_empty() && self.scheduler.a_mask_is_due() {
            match self.grammars.answer_by(deadline) {
                Some(answer) => self.scheduler.hear_mask(answer.ticket, answer.mask),
                None => self.scheduler.go_without_masks(),
            }
        }
        self.ask_for_masks()
    }

    /// Waits for a mask while nothing else can be computed.
    pub(super) fn wait_for_a_mask(&mut self) {
        let answer = self.grammars.answer_by(Instant::now() + IDLE_PATIENCE);
        if let Some(answer) = answer {
            self.scheduler.hear_mask(answer.ticket, answer.mask);
        }
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
