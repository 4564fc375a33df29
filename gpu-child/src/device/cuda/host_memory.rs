//! Host memory that the device reads by itself.

use super::context::check;
use super::memory::DevicePtr;
use cudarc::driver::sys;
use std::ffi::c_void;
use worker_orcd_ipc::Fault;

/// Host memory that the device can read while the host goes on: for small inputs of a step.
#[derive(Debug)]
pub struct Pinned {
    start: *mut u8,
    bytes: usize,
}

// SAFETY: plain memory, owned.
unsafe impl Send for Pinned {}

impl Pinned {
    /// # Errors
    /// When NVIDIA's driver refuses.
    pub fn new(bytes: usize) -> Result<Self, Fault> {
        let mut start = std::ptr::null_mut();
        let bytes = bytes.max(1);
        // SAFETY: a place for one address.
        let result = unsafe { sys::cuMemAllocHost_v2(&raw mut start, bytes) };
        check(result, &format!("{bytes} bytes of pinned memory"))?;
        let start = start.cast::<u8>();
        // SAFETY: just allocated, that large.
        unsafe { start.write_bytes(0, bytes) };
        Ok(Self { start, bytes })
    }

    /// The device's address of it: under unified addressing, the same.
    #[must_use]
    pub fn on_device(&self) -> DevicePtr<u8> {
        DevicePtr::at(self.start as u64)
    }

    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: owned, initialised in `new`, that large.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.bytes) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // SAFETY: allocated in `new`, freed once.
        let _ = unsafe { sys::cuMemFreeHost(self.start.cast()) };
    }
}

/// A mapped file that the device may read at full speed for as long as this lives.
#[derive(Debug)]
pub struct Registered {
    start: *mut c_void,
}

impl Registered {
    /// `None` when NVIDIA's driver refuses; copies then go through its own buffers, five times slower.
    #[must_use]
    pub fn new(file: &[u8]) -> Option<Self> {
        const READ_ONLY: u32 = sys::CU_MEMHOSTREGISTER_READ_ONLY;
        let start = file.as_ptr().cast_mut().cast::<c_void>();
        // SAFETY: the pages stay mapped while `file` is borrowed, which outlives the load; the
        // device only reads them.
        let result = unsafe { sys::cuMemHostRegister_v2(start, file.len(), READ_ONLY) };
        check(result, "registering the file").ok()?;
        Some(Self { start })
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        // SAFETY: registered in `new`.
        let _ = unsafe { sys::cuMemHostUnregister(self.start) };
    }
}
