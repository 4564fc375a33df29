//! The KV cache of the CPU device as others may have it: a file without a name, whose pages they read.
//!
//! The other process may be alive and write what is read here, so its file is not mapped: a page is read
//! into its place, and its checksum is taken there.

use super::CpuExecutor;
use super::kv::spans;
use super::memory::{HostMemory, room, taken_bytes};
use super::pool::Disjoint;
use crate::device::common::kv::{KvLayout, PAGE_TOKENS};
use crate::device::{KvTransfer, PageCopy, PageId, PagePart};
use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;
use std::sync::atomic::{AtomicBool, Ordering};
use twox_hash::xxhash3_128::Hasher;
use worker_orcd_ipc::{Fault, Generation};

/// What is not sealed is computed again, while a client waits; sealing costs little of what computing did.
const SEAL_EVERY: u32 = 2;

#[derive(Debug, Default)]
pub struct KvSharing {
    /// Checksums that were not requested yet.
    seals: Vec<u128>,
    others: BTreeMap<Generation, File>,
}

impl KvTransfer for CpuExecutor {
    fn share(&self) -> Result<OwnedFd, Fault> {
        let shared = self.kv.arena().share();
        shared.map_err(|error| fault(&format!("sharing it: {error}")))
    }

    fn seal_every(&self) -> u32 {
        SEAL_EVERY
    }

    fn seal(&mut self, parts: &[PagePart]) -> Result<(), Fault> {
        let (shape, layout) = (self.kv.shape(), self.kv.layout());
        let arena = self.kv.arena().halves();
        let mut sums = vec![0; parts.len()];
        let places = Disjoint::new(&mut sums);
        self.device.pool.run(parts.len(), &|item| {
            let part = parts[item];
            let page = &arena[part.page.0 as usize * shape.page()..][..shape.page()];
            // SAFETY: each part has a checksum of its own.
            let place = unsafe { places.part(item, 1) };
            place[0] = checksum(layout, page, part.group, part.tokens as usize);
        });
        self.kv_sharing.seals.extend(sums);
        Ok(())
    }

    fn seals(&mut self) -> Result<Vec<u128>, Fault> {
        Ok(std::mem::take(&mut self.kv_sharing.seals))
    }

    fn attach(&mut self, child: Generation, memory: OwnedFd, bytes: u64) -> Result<(), Fault> {
        let file = File::from(memory);
        let found = file.metadata().map_err(|error| fault(&error.to_string()))?;
        let page_bytes = self.kv.shape().page_bytes();
        if found.len() != bytes || bytes == 0 || !bytes.is_multiple_of(page_bytes) {
            let length = found.len();
            let message = format!("{length} of {bytes} bytes, in pages of {page_bytes}");
            return Err(fault(&message));
        }
        self.kv_sharing.others.insert(child, file);
        Ok(())
    }

    fn copies_ahead(&self) -> bool {
        true
    }

    /// As much memory as the other has taken is left to it.
    fn has_room_ahead(&self, child: Generation, page: PageId) -> bool {
        let shape = self.kv.shape();
        let other = self.kv_sharing.others.get(&child);
        let others = other.and_then(|other| taken_bytes(other).ok());
        let is_there = page.0 < self.kv.geometry().pages;
        let has_room = |others| leaves_as_much(room(), shape.page_bytes(), others);
        is_there && others.is_some_and(has_room)
    }

    fn adopt(&mut self, child: Generation, pages: &[PageCopy]) -> Result<Vec<bool>, Fault> {
        let (shape, layout) = (self.kv.shape(), self.kv.layout().clone());
        let other = self.kv_sharing.others.get(&child);
        let intact: Vec<_> = pages.iter().map(|_| AtomicBool::new(false)).collect();
        let places = Disjoint::new(self.kv.arena_mut().halves_mut());
        self.device.pool.run(pages.len(), &|item| {
            let copy = pages[item];
            // SAFETY: a page is copied to once.
            let place = unsafe { places.part(copy.to.0 as usize * shape.page(), shape.page()) };
            let is_intact = other.is_some_and(|other| fetch(&layout, other, &copy, place));
            intact[item].store(is_intact, Ordering::Relaxed);
            // Attention reads whole pages, and what was never written must be a number.
            if !is_intact {
                place.fill(0);
            }
        });
        Ok(intact.into_iter().map(AtomicBool::into_inner).collect())
    }

    fn release(&mut self, child: Generation) {
        self.kv_sharing.others.remove(&child);
    }

    #[cfg(feature = "fault-injection")]
    fn flip_bits(&mut self) {
        let pages = self.kv.shape().page();
        let halves = self.kv.arena_mut().halves_mut();
        halves.iter_mut().step_by(pages).for_each(|half| *half ^= 1);
    }
}

/// So much may be taken, and what the other has taken is still there a second time.
fn leaves_as_much(room: Option<HostMemory>, wanted: u64, others: u64) -> bool {
    room.is_none_or(|room| room.available >= others.saturating_add(wanted))
}

/// Reads a page from another process's memory; true if it is what was sealed.
fn fetch(layout: &KvLayout, other: &File, copy: &PageCopy, place: &mut [u16]) -> bool {
    let tokens = copy.tokens as usize;
    // SAFETY: any bytes are `u16`s.
    let bytes = unsafe { place.align_to_mut::<u8>().1 };
    let offset = u64::from(copy.from) * layout.shape.page_bytes();
    if tokens > PAGE_TOKENS || other.read_exact_at(bytes, offset).is_err() {
        return false;
    }
    if tokens < PAGE_TOKENS {
        // Also what no layer of the group has: it is not part of the checksum.
        let read = place.to_vec();
        place.fill(0);
        for span in spans(layout, copy.group, 0..tokens) {
            place[span.clone()].copy_from_slice(&read[span]);
        }
    }
    checksum(layout, place, copy.group, tokens) == copy.checksum
}

/// XXH3 of the first positions of a page.
fn checksum(layout: &KvLayout, page: &[u16], group: u32, tokens: usize) -> u128 {
    let mut hasher = Hasher::new();
    let mut add = |halves: &[u16]| {
        // SAFETY: a `u16` is two bytes.
        hasher.write(unsafe { halves.align_to::<u8>().1 });
    };
    match tokens {
        PAGE_TOKENS => add(page),
        _ => spans(layout, group, 0..tokens).for_each(|span| add(&page[span])),
    }
    hasher.finish_128()
}

fn fault(message: &str) -> Fault {
    Fault::Io {
        message: format!("a KV cache that outlives its process: {message}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use worker_orcd_ipc::MemoryBound;

    #[test]
    fn as_much_as_the_other_has_is_left_to_it() {
        let room = |available| {
            Some(HostMemory {
                total: 1000,
                available,
                bound: MemoryBound::Machine,
            })
        };
        assert!(leaves_as_much(room(130), 30, 100));
        assert!(!leaves_as_much(room(129), 30, 100));
        assert!(!leaves_as_much(room(129), 30, u64::MAX));
        assert!(leaves_as_much(None, 30, 100), "no reader is known");
    }
}
