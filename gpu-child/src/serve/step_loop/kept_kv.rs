//! KV cache adoption from other children, and sealing of this child's pages for others.

use super::super::Doing;
use super::{INSPECTION_INTERVAL, StepLoop, scheduler_fault};
use crate::device::PageId;
use crate::scheduler::Adoption;
use std::time::{Duration, Instant};
use worker_orcd_ipc::{Fault, FdKind, Generation, KvSource, SealedPage, Sealing, Submission};

impl StepLoop<'_> {
    /// Submits a request, or queues it until [`adopt`](Self::adopt) has copied its pages from another child.
    pub(super) fn submit(&mut self, submission: Box<Submission>) -> Result<(), Fault> {
        let Some(first) = self.first_to_adopt(&submission) else {
            return self.scheduler.submit(*submission).map_err(scheduler_fault);
        };
        // A request with the same prefix finds the pages adopted for the other.
        let begins_alike = |other: &Submission| self.first_to_adopt(other) == Some(first);
        if self.adopting.iter().any(begins_alike) {
            self.adopt()?;
        }
        self.adopting.push(*submission);
        Ok(())
    }

    /// First adoptable page of a request, with the child that has sealed it.
    fn first_to_adopt(&self, submission: &Submission) -> Option<(Generation, SealedPage)> {
        let sealed = submission.sealed.as_ref();
        let sealed = sealed.filter(|it| self.adopts_from.contains(&it.child))?;
        Some((sealed.child, *sealed.pages.first()?))
    }

    /// Attaches the KV cache of another device's child. On failure its tokens are recomputed.
    pub(super) fn attach(&mut self, source: KvSource) {
        let (Some(kv), Some(late_fd_socket)) = (self.executor.kv_transfer(), &self.late_fd_socket)
        else {
            return;
        };
        let memory = late_fd_socket.take(FdKind::KvCache);
        if self.adopts_from.contains(&source.child) {
            // A new supervisor repeats the introductions of its predecessor.
            return;
        }
        let memory = memory.map_err(|error| error.to_string());
        let attached = memory.and_then(|memory| {
            let attached = kv.attach(source.child, memory, source.bytes);
            attached.map_err(|fault| fault.to_string())
        });
        match attached {
            Ok(()) => self.adopts_from.push(source.child),
            Err(why) => eprintln!("worker-orcd-gpu: no pages of another device: {why}"),
        }
    }

    /// Copies the sealed pages of the queued requests and submits these. False if there are none.
    pub(super) fn adopt(&mut self) -> Result<bool, Fault> {
        let mut rest = std::mem::take(&mut self.adopting);
        if rest.is_empty() {
            return Ok(false);
        }
        self.status.step_begins(self.step, Instant::now());
        self.status.does(Doing::TakesOver);
        while let Some((child, _)) = rest.first().and_then(|it| self.first_to_adopt(it)) {
            let is_of_it = |submission: &Submission| {
                let sealed = submission.sealed.as_ref();
                sealed.is_some_and(|sealed| sealed.child == child)
            };
            let (of_it, others) = rest.into_iter().partition(is_of_it);
            rest = others;
            self.adopt_from(child, of_it)?;
        }
        self.update_status();
        Ok(true)
    }

    fn adopt_from(&mut self, child: Generation, submissions: Vec<Submission>) -> Result<(), Fault> {
        let make_room = |submission: &Submission| self.scheduler.make_room_for(submission);
        let adoptions: Vec<_> = submissions.iter().map(make_room).collect();
        let copies: Vec<_> = adoptions.iter().flat_map(Adoption::copies).collect();
        let intact = self
            .executor
            .kv_transfer()
            .map(|kv| kv.adopt(child, &copies));
        let mut intact = intact.transpose()?.into_iter().flatten();
        for (submission, adoption) in submissions.into_iter().zip(adoptions) {
            let submitted = self
                .scheduler
                .submit_with(submission, adoption, &mut intact);
            submitted.map_err(scheduler_fault)?;
        }
        Ok(())
    }

    /// Time to wait for commands while no step is in flight.
    pub(super) fn patience(&self) -> Duration {
        match self.ahead.is_empty() {
            true => INSPECTION_INTERVAL,
            false => Duration::ZERO,
        }
    }

    /// Copies the next sealed page of the other child, while idle.
    pub(super) fn copy_ahead(&mut self) -> Result<(), Fault> {
        let next = self.ahead.pop_front().zip(self.copies_from);
        let (Some((sealed, child)), Some(kv)) = (next, self.executor.kv_transfer()) else {
            return Ok(());
        };
        if !kv.has_room_ahead(child, PageId(sealed.page)) {
            return Ok(());
        }
        if let Some(copy) = self.scheduler.make_room_ahead(sealed) {
            self.status.step_begins(self.step, Instant::now());
            self.status.does(Doing::TakesOver);
            let is_intact = kv.adopt(child, &[copy])?[0];
            self.scheduler.keep_ahead(copy, is_intact);
            self.update_status();
        }
        Ok(())
    }

    /// Requests checksums of computed pages. Returns the seals not reported yet.
    pub(super) fn seal(&mut self) -> Result<Vec<Sealing>, Fault> {
        let Some(kv) = self.executor.kv_transfer() else {
            return Ok(Vec::new());
        };
        let every = kv.seal_every();
        kv.seal(&self.scheduler.take_unsealed(every))?;
        self.scheduler.learn_seals(kv.seals()?);
        Ok(self.scheduler.take_sealed(every))
    }

    /// Detaches that child's KV cache: no request will name its pages any more.
    pub(super) fn release_kv(&mut self, child: Generation) {
        self.adopts_from.retain(|it| *it != child);
        if self.copies_from.take_if(|it| *it == child).is_some() {
            self.scheduler.forget_ahead();
        }
        if let Some(kv) = self.executor.kv_transfer() {
            kv.release(child);
        }
    }
}
