//! Checksums of pages: requested from the device, received, reported to the supervisor.

use super::Scheduler;
use super::sequence::Sequence;
use crate::device::{PageId, PagePart};
use crate::kv_pages::KvPages;
use std::collections::VecDeque;
use worker_orcd_ipc::{SealedPage, Sealing};

/// Contents of a page since its last allocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Contents {
    pub part: PagePart,
    pub epoch: u64,
}

#[derive(Debug, Default)]
pub(super) struct Seals {
    /// Last requested contents by page; without a checksum until the device has answered.
    last: Vec<Option<(Contents, Option<u128>)>>,
    /// Outstanding requests, in the order of the device's answers.
    asked: VecDeque<Contents>,
    /// The supervisor receives reports of sealed pages.
    are_told: bool,
}

impl Seals {
    pub(super) fn are_told(&self) -> bool {
        self.are_told
    }

    fn of(&self, contents: Contents) -> Option<u128> {
        let (last, checksum) = self.last(contents.part.page)?;
        checksum.filter(|_| last == contents)
    }

    fn is_last(&self, contents: Contents) -> bool {
        let last = self.last(contents.part.page);
        last.is_some_and(|(last, _)| last == contents)
    }

    fn last(&self, page: PageId) -> Option<(Contents, Option<u128>)> {
        *self.last.get(page.0 as usize)?
    }

    fn set_last(&mut self, contents: Contents, checksum: Option<u128>) {
        let page = contents.part.page.0 as usize;
        if self.last.len() <= page {
            self.last.resize(page + 1, None);
        }
        self.last[page] = Some((contents, checksum));
    }

    /// Registers a request. True if the device has not received it yet.
    fn ask(&mut self, contents: Contents) -> bool {
        let is_new = !self.is_last(contents);
        if is_new {
            self.set_last(contents, None);
            self.asked.push_back(contents);
        }
        is_new
    }

    pub(super) fn learn(&mut self, contents: Contents, checksum: u128) {
        self.set_last(contents, Some(checksum));
    }

    /// Records the device's answers, in the order of the requests.
    fn answer(&mut self, checksums: Vec<u128>) {
        for checksum in checksums {
            let asked = self.asked.pop_front();
            // The page may hold more by now, or be reallocated.
            if let Some(contents) = asked.filter(|contents| self.is_last(*contents)) {
                self.learn(contents, checksum);
            }
        }
    }
}

impl Scheduler {
    /// Page contents to checksum, a multiple of `every` positions. Each is returned once.
    pub fn take_unsealed(&mut self, every: u32) -> Vec<PagePart> {
        let Self {
            running,
            cache,
            seals,
            ..
        } = self;
        seals.are_told = true;
        let untold = running.iter().flat_map(|it| it.untold(cache, every));
        let untold = untold.flatten();
        let unsealed = untold.filter(|contents| seals.ask(*contents));
        unsealed.map(|contents| contents.part).collect()
    }

    /// Records the device's answers to [`Self::take_unsealed`], in the same order.
    pub fn learn_seals(&mut self, checksums: Vec<u128>) {
        self.seals.answer(checksums);
    }

    /// Sealed pages not reported yet, and an empty list for a request that has released reported pages.
    pub fn take_sealed(&mut self, every: u32) -> Vec<Sealing> {
        let Self {
            running,
            waiting,
            cache,
            seals,
            ..
        } = self;
        let all = running.iter_mut().chain(waiting);
        let sealed = all.filter_map(|sequence| {
            let is_told_too_much = sequence.take_told_too_much();
            let sealing = sealing(sequence, cache, seals, every);
            (is_told_too_much || !sealing.pages.is_empty()).then_some(sealing)
        });
        sealed.collect()
    }
}

/// The next sealed pages of a sequence, up to the first block with an outstanding checksum.
fn sealing(sequence: &mut Sequence, cache: &KvPages, seals: &Seals, every: u32) -> Sealing {
    let sealed = |contents: Option<Contents>| {
        let Some(contents) = contents else {
            return Some(SealedPage::GIVEN_BACK);
        };
        let PagePart { page, tokens } = contents.part;
        Some(SealedPage {
            page: page.0,
            tokens,
            checksum: seals.of(contents)?,
        })
    };
    let mut pages: Vec<_> = sequence.untold(cache, every).map_while(sealed).collect();
    let groups = cache.geometry().groups.count();
    let blocks = pages.len() / groups;
    pages.truncate(blocks * groups);
    let first = groups * sequence.mark_reported(cache, blocks, every);
    Sealing {
        request: sequence.request,
        first: first as u32,
        pages,
    }
}
