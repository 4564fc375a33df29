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

/// Of memory: no page of Linux on the machines in question is larger.
const PAGE: u64 = 64 << 10;

/// A range of addresses, given back when it is dropped.
#[derive(Debug)]
pub struct Pages {
    start: NonNull<c_void>,
    bytes: usize,
}

// SAFETY: addresses are a process's, not a thread's, and these have one owner.
unsafe impl Send for Pages {}

impl Pages {
    /// Addresses that nothing can be read from or written to.
    ///
    /// # Errors
    /// There are none.
    pub fn reserve(bytes: u64) -> Outcome<Self> {
        let bytes = NonZeroUsize::new(bytes as usize).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_NORESERVE;
        // SAFETY: addresses that nobody has, of the system's choice.
        let start = unsafe { mmap_anonymous(None, bytes, ProtFlags::PROT_NONE, flags) };
        Ok(Self {
            start: start.map_err(|_| CUresult::CUDA_ERROR_OUT_OF_MEMORY)?,
            bytes: bytes.get(),
        })
    }

    /// Memory of zeros, and behind it a page without any: who runs past the end does not get far.
    ///
    /// # Errors
    /// There is not that much.
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

    /// All of them.
    pub fn range(&self) -> Range<u64> {
        self.start()..self.start() + self.bytes as u64
    }

    /// Sets what the host may do there.
    ///
    /// # Errors
    /// The system refuses.
    pub fn allow(&self, range: Range<u64>, access: ProtFlags) -> Outcome {
        let (start, bytes) = self.inside(&range)?;
        // SAFETY: pages of this range alone. Nobody on the host has a reference into memory of the device.
        let outcome = unsafe { mprotect(start, bytes.get(), access) };
        outcome.map_err(|_| CUresult::CUDA_ERROR_OUT_OF_MEMORY)
    }

    /// Puts a file's bytes there, or nothing. No access is allowed yet.
    ///
    /// # Errors
    /// The system refuses.
    pub fn put(&self, range: Range<u64>, file: Option<(BorrowedFd<'_>, u64)>) -> Outcome {
        let (start, bytes) = self.inside(&range)?;
        let (at, none) = (start.addr(), ProtFlags::PROT_NONE);
        let private = MapFlags::MAP_PRIVATE | MapFlags::MAP_NORESERVE;
        // SAFETY: takes the place of pages of this range alone, to which nobody on the host has a reference.
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
            // SAFETY: inside, as was just found.
            Some(bytes) if inside => Ok((unsafe { self.start.byte_add(offset) }, bytes)),
            _ => Err(CUresult::CUDA_ERROR_INVALID_VALUE),
        }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: mapped in `reserve`, and nobody's from here on.
        let _ = unsafe { munmap(self.start, self.bytes) };
    }
}

/// Makes memory read as zeros by giving its pages back, as far as it is whole pages. Gives the range that it
/// did so for.
///
/// # Safety
/// The range is mapped, to be written to, and nobody on the host has a reference into it.
pub unsafe fn forget(range: Range<u64>, is_shared: bool) -> Range<u64> {
    let (start, end) = (range.start.next_multiple_of(PAGE), range.end / PAGE * PAGE);
    let nothing = range.start..range.start;
    let Some(at) = NonNull::new(start as *mut c_void).filter(|_| start < end) else {
        return nothing;
    };
    // Pages of a file are the file's, and it is there that they have to go.
    let advice = match is_shared {
        true => MmapAdvise::MADV_REMOVE,
        false => MmapAdvise::MADV_DONTNEED,
    };
    // SAFETY: pages inside the range, of which the caller says that nobody looks at them.
    match unsafe { madvise(at, (end - start) as usize, advice) } {
        Ok(()) => start..end,
        Err(_) => nothing,
    }
}
