//! The KV cache of another child, and what the next one will need of this one's.

use super::super::Doing;
use super::StepLoop;
use crate::scheduler::Adoption;
use std::time::Instant;
use worker_orcd_ipc::{Fault, Sealing, Submission};

impl StepLoop<'_> {
    /// Copies what another child has computed of a request. Gives what came of it, page by page.
    pub(super) fn adopt(
        &mut self,
        submission: &Submission,
    ) -> Result<Option<(Adoption, Vec<bool>)>, Fault> {
        let sealed = submission.sealed.as_ref();
        let sealed = sealed.filter(|it| Some(it.child) == self.adopts_from);
        let (Some(sealed), Some(kv)) = (sealed, self.executor.kv_custody()) else {
            return Ok(None);
        };
        self.status.step_begins(self.step, Instant::now());
        self.status.does(Doing::TakesOver);
        let adoption = self.scheduler.make_room_for(submission, &sealed.pages);
        let intact = kv.adopt(&adoption.copies)?;
        self.update_status();
        Ok(Some((adoption, intact)))
    }

    /// Memory for what the other child has computed since, while there is nothing else to do.
    pub(super) fn make_ready(&mut self) {
        if let Some(kv) = self.executor.kv_custody() {
            kv.make_ready();
        }
    }

    /// Has what was computed sealed. Gives the seals that the supervisor was not told of yet.
    pub(super) fn seal(&mut self) -> Result<Vec<Sealing>, Fault> {
        let Some(kv) = self.executor.kv_custody() else {
            return Ok(Vec::new());
        };
        let every = kv.seal_every();
        kv.seal(&self.scheduler.take_unsealed(every))?;
        self.scheduler.learn_seals(kv.seals()?);
        Ok(self.scheduler.take_sealed(every))
    }

    /// Nobody will bring pages of the other child any more.
    pub(super) fn release_kv(&mut self) {
        self.adopts_from = None;
        if let Some(kv) = self.executor.kv_custody() {
            kv.release();
        }
    }
}
