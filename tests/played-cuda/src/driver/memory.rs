//! Memory of the devices, and of the host as far as they reach it.
//!
//! A launch may reach an allocation to its last byte, and no further: NVIDIA's devices let it reach the rest
//! of a page.

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

/// Bytes of a device's memory, and those that are taken.
#[derive(Debug)]
pub struct Budget {
    total: u64,
    taken: AtomicU64,
}

/// Bytes that are taken until this is dropped.
#[derive(Debug)]
pub struct Share {
    of: Arc<Budget>,
    bytes: u64,
}

impl Budget {
    /// All of it is free.
    pub fn new(total: u64) -> Self {
        Self {
            total,
            taken: AtomicU64::new(0),
        }
    }

    /// # Errors
    /// Less is free.
    pub fn take(self: &Arc<Self>, bytes: u64) -> Outcome<Share> {
        let more = |taken: u64| taken.checked_add(bytes).filter(|sum| *sum <= self.total);
        let relaxed = Ordering::Relaxed;
        let outcome = self.taken.fetch_update(relaxed, relaxed, more);
        outcome.map_err(|_| CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
        let of = Arc::clone(self);
        Ok(Share { of, bytes })
    }

    /// In bytes.
    pub fn free_and_total(&self) -> (u64, u64) {
        (self.total - self.taken.load(Ordering::Relaxed), self.total)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.of.taken.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// What a launch may do with memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Access {
    None,
    Read,
    ReadWrite,
}

/// What an area is made of.
#[derive(Debug)]
pub enum Matter {
    Device {
        _pages: Pages,
        _share: Share,
    },
    Host {
        _pages: Pages,
    },
    /// Lies in addresses that are reserved.
    Mapped {
        _physical: Arc<Physical>,
    },
}

/// Memory in one piece, as it was asked for.
#[derive(Debug)]
pub struct Area {
    /// As many as were asked for.
    pub bytes: u64,
    /// What launches and copies may do there.
    pub access: Access,
    /// What is given back with it.
    pub matter: Matter,
}

/// What is said about an address in an area.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// Of the whole area.
    pub range: Range<u64>,
    /// What launches and copies may do there.
    pub access: Access,
    /// Memory of the host, pinned.
    pub is_host: bool,
    /// With whoever has a descriptor of it.
    pub is_shared: bool,
}

/// The address space of the devices.
#[derive(Debug)]
pub struct Memory(Mutex<Addresses>);

/// What lies where, by first addresses.
#[derive(Debug)]
pub struct Addresses {
    /// Memory.
    pub areas: BTreeMap<u64, Area>,
    /// Places for areas that are mapped.
    pub reserved: BTreeMap<u64, Pages>,
}

/// That of this process.
pub static MEMORY: Memory = Memory::new();

impl Memory {
    /// Nothing is there.
    pub const fn new() -> Self {
        Self(Mutex::new(Addresses {
            areas: BTreeMap::new(),
            reserved: BTreeMap::new(),
        }))
    }

    /// For more than one look.
    pub fn addresses(&self) -> parking_lot::MutexGuard<'_, Addresses> {
        self.0.lock()
    }

    /// # Errors
    /// There is not that much.
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

    /// Host memory that devices reach.
    ///
    /// # Errors
    /// There is not that much.
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

    /// Gives an allocation back.
    ///
    /// # Errors
    /// It is none that was made by the matching call.
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

    /// The area around an address.
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

    /// The area that all of a range lies in, if that much is allowed there.
    ///
    /// # Errors
    /// There is none.
    pub fn reach(&self, range: &Range<u64>, access: Access) -> Outcome<Found> {
        self.find(range.start)
            .filter(|found| range.end <= found.range.end && found.access >= access)
            .ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)
    }

    /// All that a launch may reach now.
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

/// Memory of the current context's device.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemAlloc_v2(address: Place<'_, CUdeviceptr>, bytes: usize) -> CUresult {
    answer(Device::current().and_then(|device| {
        let start = MEMORY.allocate(bytes as u64, &device.memory)?;
        give(address, start)
    }))
}

/// Waits for what is under way, as NVIDIA's driver does.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemFree_v2(address: CUdeviceptr) -> CUresult {
    answer(free(address, false))
}

/// Host memory that devices reach by the same address.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemAllocHost_v2(place: Place<'_, *mut c_void>, bytes: usize) -> CUresult {
    answer(Device::current().and_then(|_| {
        let start = MEMORY.allocate_host(bytes as u64)?;
        give(place, start as *mut c_void)
    }))
}

/// Waits for what is under way, as NVIDIA's driver does.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemFreeHost(start: *mut c_void) -> CUresult {
    answer(free(start as u64, true))
}

fn free(start: u64, is_host: bool) -> Outcome {
    streams::wait_for_all();
    HEALTH.check()?;
    MEMORY.free(start, is_host)
}

/// The few that the child asks for.
///
/// # Safety
/// There are so many attributes, and as many places, each of the type that its attribute has.
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
    // SAFETY: the caller's promise.
    let (attributes, places) = unsafe {
        (
            slice::from_raw_parts(attributes, count),
            slice::from_raw_parts(places, count),
        )
    };
    answer(HEALTH.check().and_then(|()| {
        let found = MEMORY.find(address);
        let pairs = attributes.iter().zip(places);
        // SAFETY: the caller's promise.
        pairs.into_iter().try_for_each(|(attribute, place)| unsafe {
            describe(found.as_ref(), *attribute, *place)
        })
    }))
}

/// Zeros where nothing is known of an address.
///
/// # Safety
/// The place is of the attribute's type.
unsafe fn describe(found: Option<&Found>, attribute: Attribute, place: *mut c_void) -> Outcome {
    let kind = found.map_or(0, |found| match found.is_host {
        true => Kind::CU_MEMORYTYPE_HOST as u32,
        false => Kind::CU_MEMORYTYPE_DEVICE as u32,
    });
    let range = found.map_or(0..0, |found| found.range.clone());
    // SAFETY: the caller's promise.
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

/// Fills memory. Where that are zeros, whole pages are given back instead: a cache of gigabytes is cleared
/// before its first use, and much of it has none.
///
/// # Safety
/// The range may be written to, and nobody on the host has a reference into it.
pub unsafe fn fill(range: Range<u64>, byte: u8, is_shared: bool) {
    let done = match byte {
        // SAFETY: the caller's promise.
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
