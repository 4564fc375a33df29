//! Slots and pages: admission, and parking when pages run out.
//!
//! * A client gets a slot only if one remains for each waiting client that holds fewer.
//! * A request without enough pages lets at most [`PATIENCE`] others pass. Then none is admitted before it.
//! * Pages are taken from the client that holds the most, newest sequence first.

use super::Scheduler;
use super::fair_queue::Candidate;
use super::sequence::Sequence;
use std::collections::{BTreeMap, BTreeSet};
use worker_orcd_ipc::{Began, ClientId, FinishReason, Finished};

/// Requests that may pass one that waits for pages: enough to fill a batch with short ones.
pub(super) const PATIENCE: u32 = 8;

/// Reason for which a request is not admitted now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NoRoom {
    Slots,
    Pages,
}

impl Scheduler {
    pub(super) fn never_fits(&self, sequence: &Sequence) -> Option<FinishReason> {
        sequence
            .outgrows(&self.cache)
            .then(|| self.out_of_memory(sequence))
    }

    /// If pages `are_short`, leaves only the longest-running prompt among the candidates, if it is one: the others
    /// would be parked again before they finish, each because of the next.
    pub(super) fn keep_the_first(&self, candidates: &mut Vec<Candidate>, are_short: bool) {
        let first = self.running.first().map(|it| it.serial);
        let is_first = |it: &Candidate| Some(it.serial) == first;
        if are_short && candidates.iter().any(is_first) {
            candidates.retain(is_first);
        }
    }

    /// Removes the waiting requests that may not be admitted now.
    pub(super) fn keep_admissible(&self, candidates: &mut Vec<Candidate>) {
        let is_full = self.running.len() >= self.limits.max_running as usize;
        let head = self.head_of_queue();
        // Parked, and their newest token is still in flight.
        let unknown = self.waiting.iter().filter(|it| it.has_unknown());
        let unknown: Vec<u64> = unknown.map(|it| it.serial).collect();
        candidates.retain(|it| {
            let is_turned_away = is_full
                || head.is_some_and(|head| head != it.serial)
                || unknown.contains(&it.serial);
            !(it.waits && is_turned_away)
        });
    }

    /// Gives a waiting request a slot and pages for all its tokens.
    pub(super) fn admit(&mut self, serial: u64) -> Result<(), NoRoom> {
        let at = self.waiting.iter().position(|it| it.serial == serial);
        let at = at.filter(|at| self.may_take_slot(&self.waiting[*at]));
        let mut sequence = self.waiting.remove(at.ok_or(NoRoom::Slots)?);
        let saved = sequence.adopt_prefix(&mut self.cache);
        // Admission has priority over the adopted tails of waiting requests.
        let is_short = !self.has_pages_for(&sequence);
        if is_short && !(self.give_up_tails() && self.has_pages_for(&sequence)) {
            sequence.give_up_pages(&mut self.cache);
            // A parked sequence may have outgrown the cache.
            match self.never_fits(&sequence) {
                Some(reason) => self.finish(sequence, reason),
                None => {
                    sequence.passed_by.get_or_insert(0);
                    self.wait(sequence);
                }
            }
            return Err(NoRoom::Pages);
        }
        sequence.take_pages(&mut self.cache);
        if !std::mem::replace(&mut sequence.was_running, true) {
            let cached_tokens = saved.min(sequence.prompt_len()) as u32;
            self.began.push(Began {
                request: sequence.request,
                cached_tokens,
            });
            self.counters.prompt_tokens += sequence.prompt_len() as u64;
            self.counters.prefix_hit_tokens += u64::from(cached_tokens);
        }
        sequence.passed_by = None;
        self.ask_for_first_mask(&mut sequence);
        for passed_by in self
            .waiting
            .iter_mut()
            .filter_map(|it| it.passed_by.as_mut())
        {
            *passed_by += 1;
        }
        self.running.push(sequence);
        Ok(())
    }

    /// Gives each running sequence the pages for its next positions, the longest-running first. True if a sequence was
    /// parked.
    pub(super) fn make_room(&mut self) -> bool {
        self.slide(self.seals.are_sent());
        let before = self.running.len();
        let mut index = 0;
        while index < self.running.len() {
            let Self {
                running,
                cache,
                limits,
                ..
            } = self;
            let sequence = &mut running[index];
            let has_hope = !sequence.outgrows(cache);
            if sequence.will_be_full(limits) || sequence.take_pages(cache) {
                index += 1;
            } else if has_hope && self.give_back_the_spare() {
                // The same sequence again: there may be pages now.
            } else if has_hope && let Some(victim) = self.least_deserving() {
                self.park(victim);
                index -= usize::from(victim < index);
            } else if self.running[index].has_unknown() {
                // The token in flight may end it with another reason.
                index += 1;
            } else {
                self.end_for_lack_of_memory(index);
            }
        }
        self.running.len() < before
    }

    /// Releases pages that the next positions do not need. True if there were any.
    fn give_back_the_spare(&mut self) -> bool {
        if self.give_up_tails() || self.slide(false) {
            return true;
        }
        let Self { running, cache, .. } = self;
        let before = cache.available_pages();
        for sequence in running {
            sequence.give_up_ahead(cache);
        }
        cache.available_pages() > before
    }

    /// Releases pages outside the windows of running sequences. True if there were any.
    fn slide(&mut self, waits_for_seals: bool) -> bool {
        let Self { running, cache, .. } = self;
        let before = cache.available_pages();
        for sequence in running {
            sequence.slide(cache, waits_for_seals);
        }
        cache.available_pages() > before
    }

    /// The request before which no other is admitted.
    fn head_of_queue(&self) -> Option<u64> {
        let is_out_of_patience =
            |it: &&Sequence| it.passed_by.is_some_and(|passed_by| passed_by >= PATIENCE);
        let head = self.waiting.iter().find(is_out_of_patience);
        head.map(|it| it.serial)
    }

    fn may_take_slot(&self, sequence: &Sequence) -> bool {
        let free = (self.limits.max_running as usize).saturating_sub(self.running.len());
        if free > self.waiting.len() || self.head_of_queue() == Some(sequence.serial) {
            return free > 0;
        }
        let mut held: BTreeMap<ClientId, usize> = BTreeMap::new();
        for sequence in &self.running {
            *held.entry(sequence.client).or_default() += 1;
        }
        let holds = |client| held.get(&client).copied().unwrap_or(0);
        let own = holds(sequence.client);
        let waiting: BTreeSet<ClientId> = self.waiting.iter().map(|it| it.client).collect();
        free > waiting.into_iter().filter(|it| holds(*it) < own).count()
    }

    /// True if there are pages for all the sequence's tokens, or, if it runs alone, for its next position. Beyond
    /// these, one block for each running sequence must remain: otherwise the sequence would only be parked again.
    fn has_pages_for(&self, sequence: &Sequence) -> bool {
        let missing = match self.running.is_empty() {
            true => sequence.missing_pages(&self.cache),
            false => sequence.pages_to_come(&self.cache),
        };
        let groups = self.cache.geometry().groups.count();
        let wanted = missing + groups * self.running.len();
        wanted <= self.cache.available_pages() as usize
    }

    /// The newest sequence of the client that holds the most pages. The longest-running sequence does not count.
    fn least_deserving(&self) -> Option<usize> {
        let others = self.running.iter().enumerate().skip(1);
        let mut clients: BTreeMap<ClientId, (usize, usize)> = BTreeMap::new();
        for (index, sequence) in others {
            let (pages, newest) = clients.entry(sequence.client).or_default();
            *pages += sequence.page_count(&self.cache);
            *newest = index;
        }
        clients.into_values().max().map(|(_, newest)| newest)
    }

    fn park(&mut self, index: usize) {
        let mut sequence = self.running.remove(index);
        sequence.give_up_pages(&mut self.cache);
        self.mask_requests.extend(sequence.constraint.give_up());
        self.wait(sequence);
    }

    fn wait(&mut self, sequence: Sequence) {
        let at = self
            .waiting
            .partition_point(|it| it.serial < sequence.serial);
        self.waiting.insert(at, sequence);
    }

    /// Ends a sequence for which the whole arena is too small.
    fn end_for_lack_of_memory(&mut self, index: usize) {
        let mut sequence = self.running.remove(index);
        sequence.give_up_pages(&mut self.cache);
        let reason = self.out_of_memory(&sequence);
        self.finish(sequence, reason);
    }

    pub(super) fn finish(&mut self, mut sequence: Sequence, reason: FinishReason) {
        self.mask_requests.extend(sequence.constraint.give_up());
        self.finished.push(Finished {
            request: sequence.request,
            reason,
        });
    }

    fn out_of_memory(&self, sequence: &Sequence) -> FinishReason {
        let geometry = self.cache.geometry();
        FinishReason::OutOfMemory {
            needed_bytes: sequence.least_pages(&self.cache) as u64 * geometry.page_bytes,
            available_bytes: u64::from(geometry.pages) * geometry.page_bytes,
        }
    }
}
