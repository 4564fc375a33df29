//! A KV cache that outlives its process: checksums of its pages, and verified copies of another process's pages.
//!
//! A copy is verified after it was made, so concurrent writes to the original are harmless.

use super::PageId;
use std::os::fd::OwnedFd;
use worker_orcd_ipc::{Fault, Generation};

/// A page, from its first position on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PagePart {
    pub page: PageId,
    /// Group of the page's layers. Without a meaning for a whole page.
    pub group: u32,
    pub tokens: u32,
}

/// A page of another process's KV cache, and its place in this one's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageCopy {
    /// Index in the other KV cache.
    pub from: u32,
    pub to: PageId,
    /// Same as [`PagePart::group`].
    pub group: u32,
    /// Number of sealed positions.
    pub tokens: u32,
    /// Checksum of these positions at their sealing.
    pub checksum: u128,
}

pub trait KvTransfer {
    /// A descriptor of the memory, for another process.
    ///
    /// # Errors
    /// If none is available.
    fn share(&self) -> Result<OwnedFd, Fault>;

    /// Number of positions after which a page is sealed again; a divisor of the positions of a page.
    fn seal_every(&self) -> u32;

    /// Requests checksums of these parts, in order after all launched work.
    ///
    /// # Errors
    /// Those of [`Executor::step`](super::Executor::step).
    fn seal(&mut self, parts: &[PagePart]) -> Result<(), Fault>;

    /// Available checksums that were not returned before, in the order of the requests.
    ///
    /// # Errors
    /// Those of [`Executor::step`](super::Executor::step).
    fn seals(&mut self) -> Result<Vec<u128>, Fault>;

    /// Attaches the memory of another child's KV cache, of the same shape, for reading. This may continue beside steps;
    /// if it fails later, all its pages count as not intact.
    ///
    /// # Errors
    /// If it cannot be attached, or has another size.
    fn attach(&mut self, child: Generation, memory: OwnedFd, bytes: u64) -> Result<(), Fault>;

    /// True if copies take long enough for a standby to make them before their requests arrive.
    fn copies_ahead(&self) -> bool;

    /// True if both KV caches have a page of this number, and there is memory to copy it in advance.
    fn has_room_ahead(&self, child: Generation, page: PageId) -> bool;

    /// Copies pages of that child. Returns for each whether the copy has the checksum. Unsealed positions are zeroed,
    /// and so is a page with another checksum.
    ///
    /// # Errors
    /// Those of [`Executor::step`](super::Executor::step).
    fn adopt(&mut self, child: Generation, pages: &[PageCopy]) -> Result<Vec<bool>, Fault>;

    /// Detaches that child's KV cache.
    fn release(&mut self, child: Generation);

    /// Flips a bit of each page that may have no copy yet: an injected fault.
    #[cfg(feature = "fault-injection")]
    fn flip_bits(&mut self);
}
