//! Memory of the devices, and host memory that they can reach.
//!
//! A launch can reach an allocation to its last byte and no further; NVIDIA's devices permit the rest of the page.

use super::devices::Device;
use super::errors::{HEALTH, Outcome, Place, answer, expect, give};
use super::mapping::Physical;
use super::pages::{self, Pages};
use super::streams;
use crate::machine::{AddressSpace, Range as Reachable};
use cudarc::driver::sys::{
    CUdeviceptr, CUmemorytype as Kind, CUpointer_attribute as Attribute, CUresult,
};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ffi::{c_uint, c_void};
use std::ops::Range;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Total and allocated bytes of a device's memory.
#[derive(Debug)]
pub struct Budget {
    total: u64,
    taken: AtomicU64,
}

/// Allocated bytes, released on drop.
#[derive(Debug)]
pub struct Share {
    of: Arc<Budget>,
    bytes: u64,
}

impl Budget {
    /// Budget with all bytes free.
    pub fn new(total: u64) -> Self {
        Self {
            total,
            taken: AtomicU64::new(0),
        }
    }

    /// # Errors
    /// Fewer bytes are free.
    pub fn take(self: &Arc<Self>, bytes: u64) -> Outcome<Share> {
        let more = |taken: u64| taken.checked_add(bytes).filter(|sum| *sum <= self.total);
        let relaxed = Ordering::Relaxed;
        let outcome = self.taken.fetch_update(relaxed, relaxed, more);
        outcome.map_err(|_| CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
        let of = Arc::clone(self);
        Ok(Share { of, bytes })
    }

    /// Free and total bytes.
    pub fn free_and_total(&self) -> (u64, u64) {
        (self.total - self.taken.load(Ordering::Relaxed), self.total)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.of.taken.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Access of a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Access {
    None,
    Read,
    ReadWrite,
}

/// Backing of an area.
#[derive(Debug)]
pub enum Matter {
    Device {
        _pages: Pages,
        _share: Share,
    },
    Host {
        _pages: Pages,
    },
    /// Mapped at reserved addresses.
    Mapped {
        _physical: Arc<Physical>,
    },
}

/// Contiguous memory of one allocation.
#[derive(Debug)]
pub struct Area {
    /// Size as requested.
    pub bytes: u64,
    /// Access of launches and copies.
    pub access: Access,
    /// Backing, released with the area.
    pub matter: Matter,
}

/// Area of an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// Range of the whole area.
    pub range: Range<u64>,
    /// Access of launches and copies.
    pub access: Access,
    /// Pinned host memory.
    pub is_host: bool,
    /// Shared by its descriptors.
    pub is_shared: bool,
}

/// Address space of the devices.
#[derive(Debug)]
pub struct Memory(Mutex<Addresses>);

/// Areas and reservations, by first address.
#[derive(Debug)]
pub struct Addresses {
    /// Areas with memory.
    pub areas: BTreeMap<u64, Area>,
    /// Reserved addresses for mappings.
    pub reserved: BTreeMap<u64, Pages>,
}

/// Address space of this process.
pub static MEMORY: Memory = Memory::new();

impl Memory {
    /// Empty address space.
    pub const fn new() -> Self {
        Self(Mutex::new(Addresses {
            areas: BTreeMap::new(),
            reserved: BTreeMap::new(),
        }))
    }

    /// Lock for several lookups.
    pub fn addresses(&self) -> parking_lot::MutexGuard<'_, Addresses> {
        self.0.lock()
    }

    /// # Errors
    /// There is not enough memory.
    pub fn allocate(&self, bytes: u64, budget: &Arc<Budget>) -> Outcome<u64> {
        expect(bytes > 0, CUresult::CUDA_ERROR_INVALID_VALUE)?;
        let share = budget.take(bytes)?;
        let pages = Pages::allocate(bytes)?;
        let start = pages.start();
        let matter = Matter::Device {
            _pages: pages,
            _share: share,
        };
        self.add(start, bytes, matter);
        Ok(start)
    }

    /// Allocates host memory that devices can reach.
    ///
    /// # Errors
    /// There is not enough memory.
    pub fn allocate_host(&self, bytes: u64) -> Outcome<u64> {
        expect(bytes > 0, CUresult::CUDA_ERROR_INVALID_VALUE)?;
        let pages = Pages::allocate(bytes)?;
        let start = pages.start();
        self.add(start, bytes, Matter::Host { _pages: pages });
        Ok(start)
    }

    fn add(&self, start: u64, bytes: u64, matter: Matter) {
        let access = Access::ReadWrite;
        let area = Area {
            bytes,
            access,
            matter,
        };
        self.0.lock().areas.insert(start, area);
    }

    /// Frees an allocation.
    ///
    /// # Errors
    /// It was not made by the matching call.
    pub fn free(&self, start: u64, is_host: bool) -> Outcome {
        let mut addresses = self.0.lock();
        let matches = addresses.areas.get(&start).is_some_and(|area| {
            matches!(
                (&area.matter, is_host),
                (Matter::Device { .. }, false) | (Matter::Host { .. }, true)
            )
        });
        expect(matches, CUresult::CUDA_ERROR_INVALID_VALUE)?;
        addresses.areas.remove(&start);
        Ok(())
    }

    /// Area that contains an address.
    pub fn find(&self, address: u64) -> Option<Found> {
        let addresses = self.0.lock();
        let (start, area) = addresses.areas.range(..=address).next_back()?;
        let range = *start..start + area.bytes;
        range.contains(&address).then_some(Found {
            range,
            access: area.access,
            is_host: matches!(area.matter, Matter::Host { .. }),
            is_shared: matches!(area.matter, Matter::Mapped { .. }),
        })
    }

    /// Area that contains the whole range, if it permits `access`.
    ///
    /// # Errors
    /// There is none.
    pub fn reach(&self, range: &Range<u64>, access: Access) -> Outcome<Found> {
        self.find(range.start)
            .filter(|found| range.end <= found.range.end && found.access >= access)
            .ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)
    }

    /// Address space of a launch, as of now.
    pub fn space(&self) -> AddressSpace {
        let addresses = self.0.lock();
        let areas = addresses.areas.iter();
        let ranges = areas
            .filter(|(_, area)| area.access != Access::None)
            .map(|(start, area)| Reachable {
                start: *start,
                end: start + area.bytes,
                writable: area.access == Access::ReadWrite,
            });
        AddressSpace {
            ranges: ranges.collect(),
        }
    }
}

/// Allocates memory of the current context's device.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemAlloc_v2(address: Place<'_, CUdeviceptr>, bytes: usize) -> CUresult {
    answer(Device::current().and_then(|device| {
        let start = MEMORY.allocate(bytes as u64, &device.memory)?;
        give(address, start)
    }))
}

/// Frees memory. Waits for all streams, as NVIDIA's driver does.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemFree_v2(address: CUdeviceptr) -> CUresult {
    answer(free(address, false))
}

/// Allocates host memory that devices reach by the same address.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemAllocHost_v2(place: Place<'_, *mut c_void>, bytes: usize) -> CUresult {
    answer(Device::current().and_then(|_| {
        let start = MEMORY.allocate_host(bytes as u64)?;
        give(place, start as *mut c_void)
    }))
}

/// Frees host memory. Waits for all streams, as NVIDIA's driver does.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemFreeHost(start: *mut c_void) -> CUresult {
    answer(free(start as u64, true))
}

fn free(start: u64, is_host: bool) -> Outcome {
    streams::wait_for_all();
    HEALTH.check()?;
    MEMORY.free(start, is_host)
}

/// Attributes of a pointer that the child reads.
///
/// # Safety
/// There are `count` attributes and as many output parameters, each of its attribute's type.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuPointerGetAttributes(
    count: c_uint,
    attributes: *mut Attribute,
    places: *mut *mut c_void,
    address: CUdeviceptr,
) -> CUresult {
    if attributes.is_null() || places.is_null() || count == 0 {
        return CUresult::CUDA_ERROR_INVALID_VALUE;
    }
    let count = count as usize;
    // SAFETY: guaranteed by the caller.
    let (attributes, places) = unsafe {
        (
            slice::from_raw_parts(attributes, count),
            slice::from_raw_parts(places, count),
        )
    };
    answer(HEALTH.check().and_then(|()| {
        let found = MEMORY.find(address);
        let pairs = attributes.iter().zip(places);
        // SAFETY: guaranteed by the caller.
        pairs.into_iter().try_for_each(|(attribute, place)| unsafe {
            describe(found.as_ref(), *attribute, *place)
        })
    }))
}

/// Writes an attribute; zeros for an unknown address.
///
/// # Safety
/// The output parameter is of the attribute's type.
unsafe fn describe(found: Option<&Found>, attribute: Attribute, place: *mut c_void) -> Outcome {
    let kind = found.map_or(0, |found| match found.is_host {
        true => Kind::CU_MEMORYTYPE_HOST as u32,
        false => Kind::CU_MEMORYTYPE_DEVICE as u32,
    });
    let range = found.map_or(0..0, |found| found.range.clone());
    // SAFETY: guaranteed by the caller.
    unsafe {
        match attribute {
            Attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE => place.cast::<u32>().write(kind),
            Attribute::CU_POINTER_ATTRIBUTE_IS_MANAGED => place.cast::<u32>().write(0),
            Attribute::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR => {
                place.cast::<u64>().write(range.start);
            }
            Attribute::CU_POINTER_ATTRIBUTE_RANGE_SIZE => {
                place
                    .cast::<usize>()
                    .write((range.end - range.start) as usize);
            }
            _ => return Err(CUresult::CUDA_ERROR_INVALID_VALUE),
        }
    }
    Ok(())
}

/// Fills memory. Zeros release whole pages instead: a cache of gigabytes is cleared before its first use, and most of
/// it is untouched.
///
/// # Safety
/// The range is writable, and the host has no reference into it.
pub unsafe fn fill(range: Range<u64>, byte: u8, is_shared: bool) {
    let done = match byte {
        // SAFETY: guaranteed by the caller.
        0 => unsafe { pages::forget(range.clone(), is_shared) },
        _ => range.start..range.start,
    };
    for rest in [range.start..done.start, done.end..range.end] {
        let bytes = (rest.end - rest.start) as usize;
        // SAFETY: parts of the range.
        unsafe { (rest.start as *mut u8).write_bytes(byte, bytes) };
    }
}

#[cfg(test)]
mod tests;
