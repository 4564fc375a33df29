//! Addresses of this process, by whole pages.

use super::errors::Outcome;
use cudarc::driver::sys::CUresult;
use nix::sys::mman::{
    MapFlags, MmapAdvise, ProtFlags, madvise, mmap, mmap_anonymous, mprotect, munmap,
};
use std::ffi::c_void;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

/// 64 KiB: no page of Linux on the machines in question is larger.
const PAGE: u64 = 64 << 10;

/// Range of addresses, unmapped on drop.
#[derive(Debug)]
pub struct Pages {
    start: NonNull<c_void>,
    bytes: usize,
}

// SAFETY: addresses are a process's, not a thread's, and these have one owner.
unsafe impl Send for Pages {}

impl Pages {
    /// Reserves addresses without access.
    ///
    /// # Errors
    /// There are none.
    pub fn reserve(bytes: u64) -> Outcome<Self> {
        let bytes = NonZeroUsize::new(bytes as usize).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_NORESERVE;
        // SAFETY: unused addresses, which the kernel chooses.
        let start = unsafe { mmap_anonymous(None, bytes, ProtFlags::PROT_NONE, flags) };
        Ok(Self {
            start: start.map_err(|_| CUresult::CUDA_ERROR_OUT_OF_MEMORY)?,
            bytes: bytes.get(),
        })
    }

    /// Zeroed memory, with an inaccessible page behind it that catches an overrun.
    ///
    /// # Errors
    /// There is not enough memory.
    pub fn allocate(bytes: u64) -> Outcome<Self> {
        let size = bytes.checked_next_multiple_of(PAGE);
        let whole = size.and_then(|size| size.checked_add(PAGE));
        let pages = Self::reserve(whole.ok_or(CUresult::CUDA_ERROR_OUT_OF_MEMORY)?)?;
        let memory = pages.start()..pages.start() + bytes.next_multiple_of(PAGE);
        pages.allow(memory, ProtFlags::PROT_READ | ProtFlags::PROT_WRITE)?;
        Ok(pages)
    }

    /// The first address.
    pub fn start(&self) -> u64 {
        self.start.as_ptr() as u64
    }

    /// All addresses.
    pub fn range(&self) -> Range<u64> {
        self.start()..self.start() + self.bytes as u64
    }

    /// Sets the host's access.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn allow(&self, range: Range<u64>, access: ProtFlags) -> Outcome {
        let (start, bytes) = self.inside(&range)?;
        // SAFETY: pages of this range alone. The host has no reference into memory of the device.
        let outcome = unsafe { mprotect(start, bytes.get(), access) };
        outcome.map_err(|_| CUresult::CUDA_ERROR_OUT_OF_MEMORY)
    }

    /// Maps a file there, or nothing. Access is not permitted yet.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn put(&self, range: Range<u64>, file: Option<(BorrowedFd<'_>, u64)>) -> Outcome {
        let (start, bytes) = self.inside(&range)?;
        let (at, none) = (start.addr(), ProtFlags::PROT_NONE);
        let private = MapFlags::MAP_PRIVATE | MapFlags::MAP_NORESERVE;
        // SAFETY: replaces pages of this range alone, to which the host has no reference.
        let put = unsafe {
            match file {
                Some((file, offset)) => {
                    let flags = MapFlags::MAP_SHARED | MapFlags::MAP_FIXED;
                    mmap(Some(at), bytes, none, flags, file, offset as i64)
                }
                None => mmap_anonymous(Some(at), bytes, none, private | MapFlags::MAP_FIXED),
            }
        };
        put.map(drop)
            .map_err(|_| CUresult::CUDA_ERROR_OUT_OF_MEMORY)
    }

    fn inside(&self, range: &Range<u64>) -> Outcome<(NonNull<c_void>, NonZeroUsize)> {
        let own = self.range();
        let inside = own.start <= range.start && range.end <= own.end && range.start < range.end;
        let offset = range.start.wrapping_sub(own.start) as usize;
        let bytes = NonZeroUsize::new(range.end.wrapping_sub(range.start) as usize);
        match bytes {
            // SAFETY: inside, as just checked.
            Some(bytes) if inside => Ok((unsafe { self.start.byte_add(offset) }, bytes)),
            _ => Err(CUresult::CUDA_ERROR_INVALID_VALUE),
        }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: mapped in `reserve`, and not used any more.
        let _ = unsafe { munmap(self.start, self.bytes) };
    }
}

/// Zeroes memory by releasing its pages, as far as it is whole pages. Returns the range that it zeroed.
///
/// # Safety
/// The range is mapped and writable, and the host has no reference into it.
pub unsafe fn forget(range: Range<u64>, is_shared: bool) -> Range<u64> {
    let (start, end) = (range.start.next_multiple_of(PAGE), range.end / PAGE * PAGE);
    let nothing = range.start..range.start;
    let Some(at) = NonNull::new(start as *mut c_void).filter(|_| start < end) else {
        return nothing;
    };
    // Pages of a file must be removed from the file.
    let advice = match is_shared {
        true => MmapAdvise::MADV_REMOVE,
        false => MmapAdvise::MADV_DONTNEED,
    };
    // SAFETY: pages inside the range, to which the caller guarantees that there is no reference.
    match unsafe { madvise(at, (end - start) as usize, advice) } {
        Ok(()) => start..end,
        Err(_) => nothing,
    }
}
