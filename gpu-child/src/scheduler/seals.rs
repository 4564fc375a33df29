//! Checksums of pages: which the device is asked for, which are known, and who is told.

use super::Scheduler;
use super::sequence::Sequence;
use crate::device::{PageId, PagePart};
use crate::kv_pages::KvPages;
use std::collections::VecDeque;
use worker_orcd_ipc::{SealedPage, Sealing};

/// What was computed of a page since it was allocated the last time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Contents {
    pub part: PagePart,
    pub epoch: u64,
}

#[derive(Debug, Default)]
pub(super) struct Seals {
    /// By page: the last that was asked for; no checksum until the device has answered.
    last: Vec<Option<(Contents, Option<u128>)>>,
    /// In the order in which the device was asked.
    asked: VecDeque<Contents>,
    /// Somebody is told.
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

    /// True for what the device was not asked for yet.
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

    /// Answers of the device, in the order of the questions.
    fn answer(&mut self, checksums: Vec<u128>) {
        for checksum in checksums {
            let asked = self.asked.pop_front();
            // The page may hold more by now, or be another.
            if let Some(contents) = asked.filter(|contents| self.is_last(*contents)) {
                self.learn(contents, checksum);
            }
        }
    }
}

impl Scheduler {
    /// What the device is to take checksums of, `every` so many positions. It is given once.
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

    /// What the device has answered to [`Self::take_unsealed`], in the same order.
    pub fn learn_seals(&mut self, checksums: Vec<u128>) {
        self.seals.answer(checksums);
    }

    /// Sealed pages that the supervisor was not told of yet, and an empty list for a request that has given
    /// up those it was told of.
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

/// The next sealed pages of a sequence, up to the first block of which not all checksums are known yet.
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
    let first = groups * sequence.tell(cache, blocks, every);
    Sealing {
        request: sequence.request,
        first: first as u32,
        pages,
    }
}
