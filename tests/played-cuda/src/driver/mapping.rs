//! Shareable memory: an anonymous file (memfd), mapped at reserved addresses. It lives as long as a descriptor or
//! mapping of it.
//!
//! Imported memory counts for the process that created it.

use super::devices::Device;
use super::errors::{HEALTH, Outcome, Place, answer, expect, give};
use super::handles::Handles;
use super::memory::{Access, Area, MEMORY, Matter, Memory, Share};
use super::pages::Pages;
use super::streams;
use cudarc::driver::sys::{
    CUdeviceptr, CUmemAccess_flags as Flags, CUmemAccessDesc, CUmemAllocationGranularity_flags,
    CUmemAllocationHandleType as HandleType, CUmemAllocationProp, CUmemGenericAllocationHandle,
    CUmemLocationType, CUresult,
};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::ProtFlags;
use std::ffi::{c_int, c_ulonglong, c_void};
use std::fs::File;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::sync::Arc;

/// Granularity of mapped memory, in bytes.
const GRANULE: u64 = 2 << 20;

/// Name of the memfd, which identifies such a descriptor.
const NAME: &str = "played-cuda-memory";

const INVALID: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;

static ALLOCATIONS: Handles<Physical> = Handles::new();

/// Physical memory without an address.
#[derive(Debug)]
pub struct Physical {
    file: OwnedFd,
    bytes: u64,
    /// `None` for another process's memory.
    _share: Option<Share>,
}

impl Physical {
    /// # Errors
    /// There is not enough memory.
    pub fn new(bytes: u64, share: Share) -> Outcome<Self> {
        let make = || {
            let file = File::from(memfd_create(NAME, MFdFlags::MFD_CLOEXEC)?);
            file.set_len(bytes)?;
            Ok(OwnedFd::from(file))
        };
        let file = make().map_err(|_: std::io::Error| CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
        Ok(Self {
            file,
            bytes,
            _share: Some(share),
        })
    }

    /// Memory that this or another process has exported. The caller keeps the descriptor.
    ///
    /// # Errors
    /// The descriptor is of something else.
    pub fn import(descriptor: RawFd) -> Outcome<Self> {
        let link = std::fs::read_link(format!("/proc/self/fd/{descriptor}"));
        let target = format!("/memfd:{NAME} (deleted)");
        let is_ours = link.is_ok_and(|link| link == Path::new(&target));
        expect(is_ours, INVALID)?;
        // SAFETY: open, as just checked; the caller keeps it open until the call returns.
        let descriptor = unsafe { BorrowedFd::borrow_raw(descriptor) };
        let copy = descriptor.try_clone_to_owned().map(File::from);
        let length = |file: File| Ok((file.metadata()?.len(), file));
        let (bytes, file) = copy
            .and_then(length)
            .map_err(|_| CUresult::CUDA_ERROR_OPERATING_SYSTEM)?;
        Ok(Self {
            file: file.into(),
            bytes,
            _share: None,
        })
    }

    /// Descriptor of the memory.
    ///
    /// # Errors
    /// The process is at its limit of descriptors.
    pub fn export(&self) -> Outcome<OwnedFd> {
        let copy = self.file.try_clone();
        copy.map_err(|_| CUresult::CUDA_ERROR_OPERATING_SYSTEM)
    }
}

impl Memory {
    /// Reserves addresses.
    ///
    /// # Errors
    /// There are none.
    pub fn reserve(&self, bytes: u64) -> Outcome<u64> {
        expect(is_whole(bytes), INVALID)?;
        let pages = Pages::reserve(bytes)?;
        let start = pages.start();
        self.addresses().reserved.insert(start, pages);
        Ok(start)
    }

    /// Releases reserved addresses.
    ///
    /// # Errors
    /// They were not reserved in one piece, or memory is still mapped there.
    pub fn unreserve(&self, range: &Range<u64>) -> Outcome {
        let mut addresses = self.addresses();
        let own = addresses.reserved.get(&range.start).map(Pages::range);
        expect(own.as_ref() == Some(range), INVALID)?;
        let is_empty = addresses.areas.range(range.clone()).next().is_none();
        expect(is_empty, INVALID)?;
        addresses.reserved.remove(&range.start);
        Ok(())
    }

    /// Maps memory at reserved addresses, without access.
    ///
    /// # Errors
    /// The addresses are not reserved or are in use, or the memory is smaller.
    pub fn map(&self, range: Range<u64>, physical: Arc<Physical>, offset: u64) -> Outcome {
        let bytes = range.end - range.start;
        expect(is_whole(bytes) && offset.is_multiple_of(GRANULE), INVALID)?;
        let end = offset.checked_add(bytes).ok_or(INVALID)?;
        expect(end <= physical.bytes, INVALID)?;
        let mut guard = self.addresses();
        let addresses = &mut *guard;
        let before = addresses.areas.range(..range.end).next_back();
        let is_free = before.is_none_or(|(start, area)| start + area.bytes <= range.start);
        expect(is_free, INVALID)?;
        let place = addresses.reserved.range(..=range.start).next_back();
        let (_, pages) = place.ok_or(INVALID)?;
        pages.put(range.clone(), Some((physical.file.as_fd(), offset)))?;
        let area = Area {
            bytes,
            access: Access::None,
            matter: Matter::Mapped {
                _physical: physical,
            },
        };
        addresses.areas.insert(range.start, area);
        Ok(())
    }

    /// Unmaps memory.
    ///
    /// # Errors
    /// It was not mapped there in one piece.
    pub fn unmap(&self, range: &Range<u64>) -> Outcome {
        self.on_mapped(range, |pages, _| pages.put(range.clone(), None))?;
        self.addresses().areas.remove(&range.start);
        Ok(())
    }

    /// Sets access to mapped memory.
    ///
    /// # Errors
    /// As [`unmap`](Self::unmap).
    pub fn allow(&self, range: &Range<u64>, access: Access) -> Outcome {
        let protection = match access {
            Access::None => ProtFlags::PROT_NONE,
            Access::Read => ProtFlags::PROT_READ,
            Access::ReadWrite => ProtFlags::PROT_READ | ProtFlags::PROT_WRITE,
        };
        self.on_mapped(range, |pages, area| {
            pages.allow(range.clone(), protection)?;
            area.access = access;
            Ok(())
        })
    }

    fn on_mapped(
        &self,
        range: &Range<u64>,
        deed: impl FnOnce(&Pages, &mut Area) -> Outcome,
    ) -> Outcome {
        let mut guard = self.addresses();
        let addresses = &mut *guard;
        let area = addresses.areas.get_mut(&range.start).ok_or(INVALID)?;
        let is_mapped = matches!(area.matter, Matter::Mapped { .. });
        let is_whole = range.start + area.bytes == range.end;
        expect(is_mapped && is_whole, INVALID)?;
        let place = addresses.reserved.range(..=range.start).next_back();
        let (_, pages) = place.ok_or(INVALID)?;
        deed(pages, area)
    }
}

fn is_whole(bytes: u64) -> bool {
    bytes > 0 && bytes.is_multiple_of(GRANULE)
}

fn range(start: u64, bytes: usize) -> Outcome<Range<u64>> {
    let end = start.checked_add(bytes as u64).ok_or(INVALID)?;
    Ok(start..end)
}

fn is_posix(kind: HandleType) -> Outcome {
    let posix = HandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    expect(kind == posix, CUresult::CUDA_ERROR_NOT_SUPPORTED)
}

/// Device of an allocation.
fn device_of(properties: Option<&CUmemAllocationProp>) -> Outcome<&'static Device> {
    let location = properties.ok_or(INVALID)?.location;
    let on_device = CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
    expect(location.type_ == on_device, INVALID)?;
    Device::of(location.id)
}

/// Granularity, the same for all devices and properties.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemGetAllocationGranularity(
    granularity: Place<'_, usize>,
    properties: Option<&CUmemAllocationProp>,
    _option: CUmemAllocationGranularity_flags,
) -> CUresult {
    answer(device_of(properties).and_then(|_| give(granularity, GRANULE as usize)))
}

/// Allocates memory without an address.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemCreate(
    handle: Place<'_, CUmemGenericAllocationHandle>,
    size: usize,
    properties: Option<&CUmemAllocationProp>,
    _flags: c_ulonglong,
) -> CUresult {
    answer(HEALTH.check().and_then(|()| {
        let device = device_of(properties)?;
        let bytes = size as u64;
        expect(is_whole(bytes), INVALID)?;
        let physical = Physical::new(bytes, device.memory.take(bytes)?)?;
        give(handle, ALLOCATIONS.add(Arc::new(physical)) as u64)
    }))
}

/// Releases a handle. Mappings of the memory stay.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemRelease(handle: CUmemGenericAllocationHandle) -> CUresult {
    answer(ALLOCATIONS.remove(handle as usize).map(drop))
}

/// Exports a descriptor, which the caller closes.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemExportToShareableHandle(
    descriptor: Place<'_, c_int>,
    handle: CUmemGenericAllocationHandle,
    kind: HandleType,
    _flags: c_ulonglong,
) -> CUresult {
    answer(is_posix(kind).and_then(|()| {
        let copy = ALLOCATIONS.get(handle as usize)?.export()?;
        give(descriptor, copy.as_raw_fd())?;
        // The caller owns it now.
        let _ = copy.into_raw_fd();
        Ok(())
    }))
}

/// Imports a descriptor, which is passed as a pointer's value.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemImportFromShareableHandle(
    handle: Place<'_, CUmemGenericAllocationHandle>,
    descriptor: *mut c_void,
    kind: HandleType,
) -> CUresult {
    answer(HEALTH.check().and_then(|()| {
        is_posix(kind)?;
        let physical = Physical::import(descriptor.addr() as RawFd)?;
        give(handle, ALLOCATIONS.add(Arc::new(physical)) as u64)
    }))
}

/// Reserves addresses. Hints are ignored.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemAddressReserve(
    address: Place<'_, CUdeviceptr>,
    size: usize,
    _alignment: usize,
    _wish: CUdeviceptr,
    _flags: c_ulonglong,
) -> CUresult {
    answer(HEALTH.check().and_then(|()| {
        let start = MEMORY.reserve(size as u64)?;
        give(address, start)
    }))
}

/// Releases reserved addresses.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemAddressFree(address: CUdeviceptr, size: usize) -> CUresult {
    answer(range(address, size).and_then(|range| MEMORY.unreserve(&range)))
}

/// Maps memory at reserved addresses, without access.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemMap(
    address: CUdeviceptr,
    size: usize,
    offset: usize,
    handle: CUmemGenericAllocationHandle,
    _flags: c_ulonglong,
) -> CUresult {
    answer(HEALTH.check().and_then(|()| {
        let physical = ALLOCATIONS.get(handle as usize)?;
        MEMORY.map(range(address, size)?, physical, offset as u64)
    }))
}

/// Unmaps memory. Waits for all streams, unlike NVIDIA's driver: here a running launch would end the process.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemUnmap(address: CUdeviceptr, size: usize) -> CUresult {
    streams::wait_for_all();
    answer(
        HEALTH
            .check()
            .and_then(|()| MEMORY.unmap(&range(address, size)?)),
    )
}

/// Sets access. One descriptor suffices: all devices have one address space here.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemSetAccess(
    address: CUdeviceptr,
    size: usize,
    access: Option<&CUmemAccessDesc>,
    count: usize,
) -> CUresult {
    answer(HEALTH.check().and_then(|()| {
        let access = access.filter(|_| count == 1).ok_or(INVALID)?;
        let access = match access.flags {
            Flags::CU_MEM_ACCESS_FLAGS_PROT_NONE => Access::None,
            Flags::CU_MEM_ACCESS_FLAGS_PROT_READ => Access::Read,
            Flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE => Access::ReadWrite,
            Flags::CU_MEM_ACCESS_FLAGS_PROT_MAX => return Err(INVALID),
        };
        MEMORY.allow(&range(address, size)?, access)
    }))
}

#[cfg(test)]
mod tests;
