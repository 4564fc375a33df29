//! Host memory that the device accesses directly.

use super::context::check;
use super::memory::DevicePtr;
use cudarc::driver::sys;
use worker_orcd_ipc::Fault;

/// Pinned host memory that the device reads and writes while the host continues: small inputs of a step, and rows for
/// its tap.
#[derive(Debug)]
pub struct Pinned {
    start: *mut u8,
    bytes: usize,
}

// SAFETY: plain memory, owned.
unsafe impl Send for Pinned {}

impl Pinned {
    /// # Errors
    /// If NVIDIA's driver returns an error.
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

    /// Device address of the memory: the same, under unified addressing.
    #[must_use]
    pub fn on_device(&self) -> DevicePtr<u8> {
        DevicePtr::at(self.start as u64)
    }

    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: owned, initialised in `new`, that large.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.bytes) }
    }

    /// The whole floats of the memory.
    pub fn floats_mut(&mut self) -> &mut [f32] {
        // SAFETY: as `bytes_mut`; such memory begins at a page, and every bit pattern is a float.
        unsafe { std::slice::from_raw_parts_mut(self.start.cast(), self.bytes / 4) }
    }
}

impl AsMut<[u8]> for Pinned {
    fn as_mut(&mut self) -> &mut [u8] {
        self.bytes_mut()
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // SAFETY: allocated in `new`, freed once.
        let _ = unsafe { sys::cuMemFreeHost(self.start.cast()) };
    }
}
