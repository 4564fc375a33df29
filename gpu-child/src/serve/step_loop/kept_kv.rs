//! The KV cache of another child, and what the next one will need of this one's.

use super::super::Doing;
use super::{INSPECTION_INTERVAL, StepLoop};
use crate::device::PageId;
use crate::scheduler::Adoption;
use std::time::{Duration, Instant};
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
        let intact = kv.adopt(&adoption.copies())?;
        self.update_status();
        Ok(Some((adoption, intact)))
    }

    /// Time for which commands are waited for, when no step is on its way.
    pub(super) fn patience(&self) -> Duration {
        match self.ahead.is_empty() {
            true => INSPECTION_INTERVAL,
            false => Duration::ZERO,
        }
    }

    /// Copies the next of the pages that the other child has sealed, while there is nothing else to do.
    pub(super) fn copy_ahead(&mut self) -> Result<(), Fault> {
        let next = self.ahead.pop_front();
        let (Some(sealed), Some(kv)) = (next, self.executor.kv_custody()) else {
            return Ok(());
        };
        if !kv.has_room_ahead(PageId(sealed.page)) {
            return Ok(());
        }
        if let Some(copy) = self.scheduler.make_room_ahead(sealed) {
            self.status.step_begins(self.step, Instant::now());
            self.status.does(Doing::TakesOver);
            let is_intact = kv.adopt(&[copy])?[0];
            self.scheduler.keep_ahead(copy, is_intact);
            self.update_status();
        }
        Ok(())
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
        self.scheduler.forget_ahead();
        if let Some(kv) = self.executor.kv_custody() {
            kv.release();
        }
    }
}
