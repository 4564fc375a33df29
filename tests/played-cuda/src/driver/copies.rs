//! Copies between host and device, and fills, in stream order.
//!
//! As with NVIDIA's driver, only copies of pinned memory are asynchronous. Other host memory is read before the call
//! returns, and is written when it returns.

use super::errors::{HEALTH, Outcome, answer};
use super::memory::{self, Access, MEMORY};
use super::streams::{Stream, Work};
use cudarc::driver::sys::{CUdeviceptr, CUresult, CUstream};
use std::ffi::{c_uchar, c_void};
use std::ops::Range;
use std::ptr;
use std::slice;
use std::sync::Arc;

/// Copies to the device.
///
/// # Safety
/// `bytes` bytes of the host's memory are readable; where it is pinned, or the stream is being recorded, until the copy
/// is done.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyHtoDAsync_v2(
    to: CUdeviceptr,
    from: *const c_void,
    bytes: usize,
    stream: CUstream,
) -> CUresult {
    answer(begin(to, bytes, stream).and_then(|copy| {
        let Some((range, stream)) = copy else {
            return Ok(());
        };
        MEMORY.reach(&range, Access::ReadWrite)?;
        let source = from as u64;
        if stream.is_recorded() || is_pinned(source) {
            return stream.add(copying(range.start, source, bytes, range));
        }
        // SAFETY: guaranteed by the caller.
        let staged = unsafe { slice::from_raw_parts(from.cast::<u8>(), bytes) }.to_vec();
        stream.add(Arc::new(move || {
            reach(&range, Access::ReadWrite)?;
            // SAFETY: memory of the device, which is mapped and writable.
            unsafe { ptr::copy_nonoverlapping(staged.as_ptr(), range.start as *mut u8, bytes) };
            Ok(())
        }))
    }))
}

/// Copies to the host.
///
/// # Safety
/// `bytes` bytes of the host's memory are writable, and are not read before the copy is done.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyDtoHAsync_v2(
    to: *mut c_void,
    from: CUdeviceptr,
    bytes: usize,
    stream: CUstream,
) -> CUresult {
    answer(begin(from, bytes, stream).and_then(|copy| {
        let Some((range, stream)) = copy else {
            return Ok(());
        };
        MEMORY.reach(&range, Access::Read)?;
        let target = to as u64;
        stream.add(copying(target, range.start, bytes, range))?;
        if stream.is_recorded() || is_pinned(target) {
            return Ok(());
        }
        stream.wait(stream.end()?)
    }))
}

/// Fills with one byte.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemsetD8Async(
    start: CUdeviceptr,
    byte: c_uchar,
    bytes: usize,
    stream: CUstream,
) -> CUresult {
    answer(begin(start, bytes, stream).and_then(|fill| {
        let Some((range, stream)) = fill else {
            return Ok(());
        };
        MEMORY.reach(&range, Access::ReadWrite)?;
        stream.add(Arc::new(move || {
            let found = reach(&range, Access::ReadWrite)?;
            // SAFETY: memory of the device, which is mapped and writable.
            unsafe { memory::fill(range.clone(), byte, found.is_shared) };
            Ok(())
        }))
    }))
}

/// Device range and stream; `None` for a copy of zero bytes.
fn begin(start: u64, bytes: usize, stream: CUstream) -> Outcome<Option<(Range<u64>, Arc<Stream>)>> {
    HEALTH.check()?;
    let stream = Stream::of(stream)?;
    let end = start.checked_add(bytes as u64);
    let end = end.ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
    Ok((bytes > 0).then_some((start..end, stream)))
}

fn is_pinned(address: u64) -> bool {
    MEMORY.find(address).is_some_and(|found| found.is_host)
}

/// Work item of a copy. It checks the device's side again when it runs.
fn copying(to: u64, from: u64, bytes: usize, device: Range<u64>) -> Work {
    let access = match device.start == to {
        true => Access::ReadWrite,
        false => Access::Read,
    };
    Arc::new(move || {
        reach(&device, access)?;
        // SAFETY: the device's side is mapped, and the caller guarantees the host's. Both may be one memory, where that
        // is pinned.
        unsafe { ptr::copy(from as *const u8, to as *mut u8, bytes) };
        Ok(())
    })
}

/// Area of a copy when it runs.
fn reach(range: &Range<u64>, access: Access) -> Outcome<memory::Found> {
    let found = MEMORY.reach(range, access);
    found.map_err(|_| CUresult::CUDA_ERROR_ILLEGAL_ADDRESS)
}

#[cfg(test)]
mod tests;
