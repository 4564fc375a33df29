//! A KV cache that outlives its process: pages get checksums, and pages of another process are copied and
//! believed by theirs.
//!
//! A copy is checked after it was made, so it does not matter who still writes the original.

use super::PageId;
use std::os::fd::OwnedFd;
use worker_orcd_ipc::{Fault, Generation};

/// A page, from its first position on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PagePart {
    pub page: PageId,
    pub tokens: u32,
}

/// A page of another process's KV cache, and its place in this one's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageCopy {
    /// Index in the other KV cache.
    pub from: u32,
    pub to: PageId,
    /// Positions that are sealed.
    pub tokens: u32,
    /// Of these, as they were sealed.
    pub checksum: u128,
}

pub trait KvCustody {
    /// A descriptor of the memory, for another process.
    ///
    /// # Errors
    /// When none can be had.
    fn share(&self) -> Result<OwnedFd, Fault>;

    /// Positions after which a page is worth sealing again; a divisor of those of a page.
    fn seal_every(&self) -> u32;

    /// Has checksums taken of what was computed, behind everything that was launched.
    ///
    /// # Errors
    /// As [`Executor::step`](super::Executor::step).
    fn seal(&mut self, parts: &[PagePart]) -> Result<(), Fault>;

    /// The checksums that are there by now and were not given before, in the order in which they were
    /// to be taken.
    ///
    /// # Errors
    /// As [`Executor::step`](super::Executor::step).
    fn seals(&mut self) -> Result<Vec<u128>, Fault>;

    /// Takes the memory of another child's KV cache, of the same shape, to be read. That may take place beside steps;
    /// where it fails later, no page of it is intact.
    ///
    /// # Errors
    /// When it cannot be taken, or has not that many bytes.
    fn attach(&mut self, child: Generation, memory: OwnedFd, bytes: u64) -> Result<(), Fault>;

    /// Copies take long enough for a standby to make them before their requests come.
    fn copies_ahead(&self) -> bool;

    /// There is a page of this number in both KV caches, and the memory to copy it before it is needed.
    fn has_room_ahead(&self, child: Generation, page: PageId) -> bool;

    /// Copies pages of that child, and tells of each whether the copy has the checksum. What is not sealed is cleared, and
    /// so is a page that has another.
    ///
    /// # Errors
    /// As [`Executor::step`](super::Executor::step).
    fn adopt(&mut self, child: Generation, pages: &[PageCopy]) -> Result<Vec<bool>, Fault>;

    /// Lets go of that child's KV cache.
    fn release(&mut self, child: Generation);

    /// Changes a bit of each page that may have no copy yet, as a fault would.
    #[cfg(feature = "fault-injection")]
    fn flip_bits(&mut self);
}
