//! Every byte of device memory, and what it is for.
//!
//! Plain device memory only: nothing managed, nothing that NVIDIA's driver could move to the host. A
//! [`DevicePtr`] is a number with a type; it cannot be read here, only handed to a kernel or to a
//! copy, so that host and device addresses are never mixed up.

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

/// The address of some `T` on the device. Null means none.
#[derive(Debug)]
#[repr(transparent)]
pub struct DevicePtr<T>(u64, PhantomData<*const T>);

impl<T> Clone for DevicePtr<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for DevicePtr<T> {}
// SAFETY: a number; nothing is reached through it on the host.
unsafe impl<T> Send for DevicePtr<T> {}

impl<T> DevicePtr<T> {
    pub const NULL: Self = Self(0, PhantomData);

    /// An address that NVIDIA's driver gave.
    #[must_use]
    pub fn at(address: u64) -> Self {
        Self(address, PhantomData)
    }

    #[must_use]
    pub fn address(self) -> u64 {
        self.0
    }

    /// `count` elements further on.
    #[must_use]
    pub fn add(self, count: usize) -> Self {
        Self(self.0 + (count * size_of::<T>()) as u64, PhantomData)
    }

    #[must_use]
    pub fn cast<U>(self) -> DevicePtr<U> {
        DevicePtr(self.0, PhantomData)
    }
}

/// Time for what a process had that was killed to come free: as long as the supervisor waits for it to
/// end.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);
pub(super) const POLL: Duration = Duration::from_millis(1);

/// The time at which a child takes memory that it works in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    WhenLoaded,
    /// A standby's may be the other child's until then.
    WhenPromoted,
}

/// An allocation of device memory.
#[derive(Debug)]
pub struct Arena {
    start: u64,
    bytes: u64,
    purpose: Purpose,
    ledger: Arc<Ledger>,
    /// For memory that may outlive the process.
    mapping: Option<Mapping>,
}

impl Arena {
    /// # Errors
    /// [`Fault::OutOfMemory`] naming what it was for.
    pub fn new(context: &Context, purpose: Purpose, bytes: u64) -> Result<Self, Fault> {
        context.enter()?;
        let mut start = 0;
        let bytes = bytes.max(1);
        // SAFETY: a place for one address.
        let result = unsafe { sys::cuMemAlloc_v2(&raw mut start, bytes as usize) };
        check(result, &format!("{bytes} bytes for {purpose:?}"))?;
        Ok(Self::counted(context, purpose, start, bytes, None))
    }

    /// Memory that may outlive the process.
    ///
    /// # Errors
    /// As for [`new`](Self::new).
    pub fn shareable(context: &Context, purpose: Purpose, bytes: u64) -> Result<Self, Fault> {
        let mapping = Mapping::new(context, bytes, &format!("{bytes} bytes for {purpose:?}"))?;
        let start = mapping.start();
        Ok(Self::counted(context, purpose, start, bytes, Some(mapping)))
    }

    /// A place for memory that somebody else still has: [`take`](Self::take) gets it.
    ///
    /// # Errors
    /// When NVIDIA's driver refuses.
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

    /// Memory, or the promise of it.
    ///
    /// # Errors
    /// As for [`new`](Self::new) and [`promised`](Self::promised).
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

    /// Gets the memory that was promised. The process that has it is dying: it is waited for.
    ///
    /// # Errors
    /// [`Fault::OutOfMemory`] when it does not come free.
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

    /// Memory that another process has [shared](Self::share), to be read.
    ///
    /// # Errors
    /// When it cannot be taken over.
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

    /// Lets go of memory that was taken over. Nothing that was launched reads it any more.
    ///
    /// # Errors
    /// When NVIDIA's driver refuses.
    pub fn release(&mut self) -> Result<(), Fault> {
        let mapping = self.mapping.as_mut().expect("imported memory");
        self.ledger.subtract(self.purpose, self.bytes);
        mapping.release()
    }

    /// Makes shareable memory read-only for this process, once everything launched is done.
    ///
    /// # Errors
    /// What any of it ended with.
    pub fn seal(&self, context: &Context) -> Result<(), Fault> {
        self.mapped().seal(context)
    }

    /// A descriptor of shareable memory, for another process.
    ///
    /// # Errors
    /// When NVIDIA's driver refuses.
    pub fn share(&self) -> Result<OwnedFd, Fault> {
        self.mapped().share()
    }

    fn mapped(&self) -> &Mapping {
        self.mapping.as_ref().expect("shareable memory")
    }

    /// The device's address of the first byte, for NVIDIA's driver.
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

    /// `count` elements at a byte offset.
    ///
    /// # Panics
    /// When they are not inside, or not aligned.
    #[must_use]
    pub fn at<T>(&self, offset: u64, count: usize) -> DevicePtr<T> {
        let end = offset + (count * size_of::<T>()) as u64;
        assert!(end <= self.bytes, "inside the arena");
        assert!(offset.is_multiple_of(align_of::<T>() as u64), "aligned");
        DevicePtr(self.start + offset, PhantomData)
    }

    /// Fills all of it with zeros, in stream order.
    ///
    /// # Errors
    /// When NVIDIA's driver refuses.
    pub fn clear(&self, context: &Context) -> Result<(), Fault> {
        self.fill(context, 0)
    }

    /// Fills all of it with a byte, in stream order.
    ///
    /// # Errors
    /// When NVIDIA's driver refuses.
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

/// Everything starts at a multiple of this: whole cache lines and any vector load.
pub const ALIGNMENT: u64 = 256;
pub type Layout = placement::Layout<ALIGNMENT>;

/// Types that are plain bytes on both sides.
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
/// When NVIDIA's driver refuses.
///
/// # Safety
/// There are as many bytes from `start` on.
pub unsafe fn clear(context: &Context, start: DevicePtr<u8>, bytes: usize) -> Result<(), Fault> {
    // SAFETY: as promised by the caller.
    let result = unsafe { sys::cuMemsetD8Async(start.0, 0, bytes, context.stream()) };
    check(result, "clearing memory")
}

/// Copies to the device, in stream order.
///
/// # Errors
/// When NVIDIA's driver refuses.
///
/// # Safety
/// `to` has room for `from`; and `from`, where it is pinned memory, is not changed before the
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

/// Copies to the host, and waits for it and everything before it.
///
/// # Errors
/// When NVIDIA's driver refuses, or what was launched before has failed.
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

/// Copies as [`download`] does, into memory of its own.
///
/// # Errors
/// As [`download`].
///
/// # Safety
/// As [`download`].
pub unsafe fn read(context: &Context, from: DevicePtr<f32>, len: usize) -> Result<Vec<f32>, Fault> {
    let mut values = vec![0.0; len];
    // SAFETY: as promised by the caller.
    unsafe { download(context, &mut values, from) }?;
    Ok(values)
}

/// Copies to the host, in stream order, and does not wait.
///
/// # Errors
/// When NVIDIA's driver refuses.
///
/// # Safety
/// `from` holds as many elements; `to` is neither read, written nor freed before the stream got
/// past this.
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
