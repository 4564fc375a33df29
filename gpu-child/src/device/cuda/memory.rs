//! All device memory, by purpose.
//!
//! Plain device memory only: no managed memory, which NVIDIA's driver could move to the host. A
//! [`DevicePtr`] is a typed number; the host cannot dereference it, only pass it to a kernel or a
//! copy, so host and device addresses are never mixed up.

use super::context::{Context, check};
pub use super::host_memory::Pinned;
use super::mapping::Mapping;
pub use super::purpose::{Ledger, Purpose};
use crate::device::common::placement;
use cudarc::driver::sys;
use std::ffi::c_void;
use std::marker::PhantomData;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};
use worker_orcd_ipc::Fault;

/// Address of some `T` on the device. Null means none.
#[derive(Debug)]
#[repr(transparent)]
pub struct DevicePtr<T>(u64, PhantomData<*const T>);

impl<T> Clone for DevicePtr<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for DevicePtr<T> {}
// SAFETY: a number; the host accesses nothing through it.
unsafe impl<T> Send for DevicePtr<T> {}

impl<T> DevicePtr<T> {
    pub const NULL: Self = Self(0, PhantomData);

    /// An address from NVIDIA's driver.
    #[must_use]
    pub fn at(address: u64) -> Self {
        Self(address, PhantomData)
    }

    #[must_use]
    pub fn address(self) -> u64 {
        self.0
    }

    /// The address `count` elements further on.
    #[must_use]
    pub fn add(self, count: usize) -> Self {
        Self(self.0 + (count * size_of::<T>()) as u64, PhantomData)
    }

    #[must_use]
    pub fn cast<U>(self) -> DevicePtr<U> {
        DevicePtr(self.0, PhantomData)
    }
}

/// Timeout for the release of a killed process's memory: equal to the supervisor's timeout for the end of
/// that process.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);
pub(super) const POLL: Duration = Duration::from_millis(1);

/// Time at which a child allocates its working memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    WhenLoaded,
    /// A standby's memory may belong to the other child until then.
    WhenPromoted,
}

/// An allocation of device memory.
#[derive(Debug)]
pub struct Arena {
    start: u64,
    bytes: u64,
    purpose: Purpose,
    ledger: Arc<Ledger>,
    /// Mapping of memory that may outlive the process.
    mapping: Option<Mapping>,
}

impl Arena {
    /// # Errors
    /// [`Fault::OutOfMemory`] with the purpose.
    pub fn new(context: &Context, purpose: Purpose, bytes: u64) -> Result<Self, Fault> {
        context.enter()?;
        let mut start = 0;
        let bytes = bytes.max(1);
        // SAFETY: a place for one address.
        let result = unsafe { sys::cuMemAlloc_v2(&raw mut start, bytes as usize) };
        check(result, &format!("{bytes} bytes for {purpose:?}"))?;
        Ok(Self::counted(context, purpose, start, bytes, None))
    }

    /// Allocates memory that may outlive the process.
    ///
    /// # Errors
    /// The errors of [`new`](Self::new).
    pub fn shareable(context: &Context, purpose: Purpose, bytes: u64) -> Result<Self, Fault> {
        let mapping = Mapping::new(context, bytes, &format!("{bytes} bytes for {purpose:?}"))?;
        let start = mapping.start();
        Ok(Self::counted(context, purpose, start, bytes, Some(mapping)))
    }

    /// Reserves addresses for memory that another process still has: [`take`](Self::take) allocates it.
    ///
    /// # Errors
    /// If NVIDIA's driver returns an error.
    pub fn promised(context: &Context, purpose: Purpose, bytes: u64) -> Result<Self, Fault> {
        let mapping = Mapping::reserve(context, bytes)?;
        Ok(Self {
            start: mapping.start(),
            bytes,
            purpose,
            ledger: Arc::clone(context.ledger()),
            mapping: Some(mapping),
        })
    }

    /// Allocates memory, or reserves addresses for it.
    ///
    /// # Errors
    /// The errors of [`new`](Self::new) and [`promised`](Self::promised).
    pub fn taken(
        context: &Context,
        purpose: Purpose,
        bytes: u64,
        when: Taken,
    ) -> Result<Self, Fault> {
        match when {
            Taken::WhenLoaded => Self::new(context, purpose, bytes),
            Taken::WhenPromoted => Self::promised(context, purpose, bytes),
        }
    }

    /// Allocates the promised memory. Waits for the dying process that still has it.
    ///
    /// # Errors
    /// [`Fault::OutOfMemory`] if it is not freed in time.
    pub fn take(&mut self, context: &Context) -> Result<(), Fault> {
        let doing = format!("{} bytes for {:?}", self.bytes, self.purpose);
        let began = Instant::now();
        let mapping = self.mapping.as_mut().expect("a promise");
        loop {
            match mapping.allocate(context, &doing) {
                Err(Fault::OutOfMemory { .. }) if began.elapsed() < PATIENCE => sleep(POLL),
                outcome => {
                    outcome?;
                    break;
                }
            }
        }
        self.ledger.add(self.purpose, self.bytes);
        Ok(())
    }

    #[must_use]
    pub fn has_memory(&self) -> bool {
        self.mapping.as_ref().is_none_or(Mapping::has_memory)
    }

    /// Maps memory that another process has [shared](Self::share), read-only.
    ///
    /// # Errors
    /// If it cannot be mapped.
    pub fn import(
        context: &Context,
        purpose: Purpose,
        bytes: u64,
        memory: &OwnedFd,
    ) -> Result<Self, Fault> {
        let mapping = Mapping::import(context, memory, bytes)?;
        let start = mapping.start();
        Ok(Self::counted(context, purpose, start, bytes, Some(mapping)))
    }

    fn counted(
        context: &Context,
        purpose: Purpose,
        start: u64,
        bytes: u64,
        mapping: Option<Mapping>,
    ) -> Self {
        let ledger = Arc::clone(context.ledger());
        ledger.add(purpose, bytes);
        Self {
            start,
            bytes,
            purpose,
            ledger,
            mapping,
        }
    }

    /// Unmaps memory, which is freed unless another process has it. No launch in flight reads it.
    ///
    /// # Errors
    /// If NVIDIA's driver returns an error.
    pub fn release(&mut self) -> Result<(), Fault> {
        let mapping = self.mapping.as_mut().expect("imported memory");
        self.ledger.subtract(self.purpose, self.bytes);
        mapping.release()
    }

    /// Frees mapped memory, which no drop frees. No launch in flight uses it.
    ///
    /// # Errors
    /// If NVIDIA's driver returns an error.
    pub fn free_mapped(&mut self) -> Result<(), Fault> {
        match self.mapping.as_ref().is_some_and(Mapping::has_memory) {
            true => self.release(),
            false => Ok(()),
        }
    }

    /// Makes shareable memory read-only for this process, after all launches.
    ///
    /// # Errors
    /// The error of any earlier launch.
    pub fn seal(&self, context: &Context) -> Result<(), Fault> {
        self.mapped().seal(context)
    }

    /// Returns a descriptor of shareable memory, for another process.
    ///
    /// # Errors
    /// If NVIDIA's driver returns an error.
    pub fn share(&self) -> Result<OwnedFd, Fault> {
        self.mapped().share()
    }

    fn mapped(&self) -> &Mapping {
        self.mapping.as_ref().expect("shareable memory")
    }

    /// Device address of the first byte, for NVIDIA's driver.
    #[must_use]
    pub fn start(&self) -> u64 {
        self.start
    }

    #[must_use]
    pub fn purpose(&self) -> Purpose {
        self.purpose
    }

    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Address of `count` elements at a byte offset.
    ///
    /// # Panics
    /// If they are out of bounds, or not aligned.
    #[must_use]
    pub fn at<T>(&self, offset: u64, count: usize) -> DevicePtr<T> {
        let end = offset + (count * size_of::<T>()) as u64;
        assert!(end <= self.bytes, "inside the arena");
        assert!(offset.is_multiple_of(align_of::<T>() as u64), "aligned");
        DevicePtr(self.start + offset, PhantomData)
    }

    /// Fills the memory with zeros, in stream order.
    ///
    /// # Errors
    /// If NVIDIA's driver returns an error.
    pub fn clear(&self, context: &Context) -> Result<(), Fault> {
        self.fill(context, 0)
    }

    /// Fills the memory with a byte, in stream order.
    ///
    /// # Errors
    /// If NVIDIA's driver returns an error.
    pub fn fill(&self, context: &Context, byte: u8) -> Result<(), Fault> {
        let (start, bytes) = (self.start, self.bytes as usize);
        // SAFETY: the whole of a live allocation.
        let result = unsafe { sys::cuMemsetD8Async(start, byte, bytes, context.stream()) };
        check(result, "filling memory")
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        if self.mapping.is_some() {
            return;
        }
        self.ledger.subtract(self.purpose, self.bytes);
        // SAFETY: allocated in `new`, freed once. After a sticky error this fails, and the
        // process is about to end.
        let _ = unsafe { sys::cuMemFree_v2(self.start) };
    }
}

/// Alignment of all parts of an arena: whole cache lines and any vector load.
pub const ALIGNMENT: u64 = 256;
pub type Layout = placement::Layout<ALIGNMENT>;

/// Types that are plain bytes on host and device.
///
/// # Safety
/// Any bit pattern is a value, and there is no padding.
pub unsafe trait Plain: Copy {}
// SAFETY: plain numbers.
unsafe impl Plain for u8 {}
// SAFETY: as above.
unsafe impl Plain for u16 {}
// SAFETY: as above.
unsafe impl Plain for i32 {}
// SAFETY: as above.
unsafe impl Plain for u32 {}
// SAFETY: as above.
unsafe impl Plain for u64 {}
// SAFETY: as above.
unsafe impl Plain for f32 {}
// SAFETY: as above.
unsafe impl Plain for [f32; 2] {}

/// Fills memory with zeros, in stream order.
///
/// # Errors
/// If NVIDIA's driver returns an error.
///
/// # Safety
/// The memory from `start` on has at least this number of bytes.
pub unsafe fn clear(context: &Context, start: DevicePtr<u8>, bytes: usize) -> Result<(), Fault> {
    // SAFETY: as promised by the caller.
    let result = unsafe { sys::cuMemsetD8Async(start.0, 0, bytes, context.stream()) };
    check(result, "clearing memory")
}

/// Copies to the device, in stream order.
///
/// # Errors
/// If NVIDIA's driver returns an error.
///
/// # Safety
/// `to` has room for `from`; and `from`, if it is pinned memory, is not changed before the
/// stream is synchronized.
pub unsafe fn upload<T: Plain>(
    context: &Context,
    to: DevicePtr<T>,
    from: &[T],
) -> Result<(), Fault> {
    // SAFETY: as promised by the caller.
    let result = unsafe {
        sys::cuMemcpyHtoDAsync_v2(
            to.0,
            from.as_ptr().cast::<c_void>(),
            size_of_val(from),
            context.stream(),
        )
    };
    check(result, "copying to the device")
}

/// Copies to the host, and waits for the copy and all work before it.
///
/// # Errors
/// If NVIDIA's driver returns an error, or an earlier launch has failed.
///
/// # Safety
/// `from` holds as many elements.
pub unsafe fn download<T: Plain>(
    context: &Context,
    to: &mut [T],
    from: DevicePtr<T>,
) -> Result<(), Fault> {
    // SAFETY: as promised by the caller; `to` is borrowed until the copy is done.
    unsafe { fetch(context, to, from) }?;
    context.synchronize("copying from the device")
}

/// Copies into a new vector, otherwise as [`download`].
///
/// # Errors
/// The errors of [`download`].
///
/// # Safety
/// The contract of [`download`].
pub unsafe fn read(context: &Context, from: DevicePtr<f32>, len: usize) -> Result<Vec<f32>, Fault> {
    let mut values = vec![0.0; len];
    // SAFETY: as promised by the caller.
    unsafe { download(context, &mut values, from) }?;
    Ok(values)
}

/// Copies to the host, in stream order, without waiting.
///
/// # Errors
/// If NVIDIA's driver returns an error.
///
/// # Safety
/// `from` holds as many elements; `to` is neither read, written nor freed before the stream has
/// passed the copy.
pub unsafe fn fetch<T: Plain>(
    context: &Context,
    to: &mut [T],
    from: DevicePtr<T>,
) -> Result<(), Fault> {
    // SAFETY: as promised by the caller.
    let result = unsafe {
        sys::cuMemcpyDtoHAsync_v2(
            to.as_mut_ptr().cast::<c_void>(),
            from.0,
            size_of_val(to),
            context.stream(),
        )
    };
    check(result, "copying from the device")
}
