//! Device memory that may outlive its process: allocated with a handle that a descriptor can stand for,
//! and mapped at an address of this process.
//!
//! Whoever holds such a descriptor keeps the memory allocated, with a context or without. Access is a
//! part of the mapping and not of the memory: once a mapping is read-only, a write through it is an
//! illegal address, in whatever kernel.
//!
//! Source: CUDA driver API, "Virtual Memory Management".

use super::context::{Context, check};
use cudarc::driver::sys::{self, CUmemAccess_flags_enum as Access};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use worker_orcd_ipc::Fault;

const DESCRIPTOR: sys::CUmemAllocationHandleType =
    sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

/// One allocation, and where this process sees it; or only the place, as long as the memory is somebody
/// else's. It is never unmapped: kernels on their way may still
/// read it, and unmapping waits for none of them. The end of the process takes it back.
#[derive(Debug)]
pub struct Mapping {
    start: u64,
    /// Whole granules of the device.
    size: usize,
    handle: Option<sys::CUmemGenericAllocationHandle>,
    location: sys::CUmemLocation,
}

impl Mapping {
    /// New memory, to be read and written. Not cleared.
    ///
    /// # Errors
    /// [`Fault::OutOfMemory`] when there is not that much.
    pub fn new(context: &Context, bytes: u64, doing: &str) -> Result<Self, Fault> {
        let mut mapping = Self::reserve(context, bytes)?;
        mapping.allocate(context, doing)?;
        Ok(mapping)
    }

    /// A place for memory.
    ///
    /// # Errors
    /// When NVIDIA's driver refuses.
    pub fn reserve(context: &Context, bytes: u64) -> Result<Self, Fault> {
        context.enter()?;
        let properties = properties(context);
        let size = size_of_granules(&properties, bytes)?;
        let mut start = 0;
        // SAFETY: a place for one address.
        let result = unsafe { sys::cuMemAddressReserve(&raw mut start, size, 0, 0, 0) };
        check(result, "reserving addresses")?;
        Ok(Self {
            start,
            size,
            handle: None,
            location: properties.location,
        })
    }

    /// Puts new memory there, to be read and written. Not cleared.
    ///
    /// # Errors
    /// [`Fault::OutOfMemory`] when there is not that much; it may be tried again.
    pub fn allocate(&mut self, context: &Context, doing: &str) -> Result<(), Fault> {
        let properties = properties(context);
        let mut handle = 0;
        // SAFETY: a place for one handle, and properties that are filled in.
        let result =
            unsafe { sys::cuMemCreate(&raw mut handle, self.size, &raw const properties, 0) };
        check(result, doing)?;
        self.map(handle, Access::CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
    }

    #[must_use]
    pub fn has_memory(&self) -> bool {
        self.handle.is_some()
    }

    /// Memory of another process, to be read.
    ///
    /// # Errors
    /// When it is none of this device, or is smaller.
    pub fn import(context: &Context, memory: &OwnedFd, bytes: u64) -> Result<Self, Fault> {
        let mut mapping = Self::reserve(context, bytes)?;
        let mut handle = 0;
        let descriptor = memory.as_raw_fd() as usize as *mut std::ffi::c_void;
        // SAFETY: a place for one handle; the descriptor travels as a pointer's value, and stays open.
        let result =
            unsafe { sys::cuMemImportFromShareableHandle(&raw mut handle, descriptor, DESCRIPTOR) };
        check(result, "taking over memory")?;
        mapping.map(handle, Access::CU_MEM_ACCESS_FLAGS_PROT_READ)?;
        Ok(mapping)
    }

    /// Gives the memory back, and the place.
    ///
    /// # Errors
    /// When NVIDIA's driver refuses.
    pub fn release(&mut self) -> Result<(), Fault> {
        let Some(handle) = self.handle.take() else {
            return Ok(());
        };
        // SAFETY: a live mapping as a whole, the handle that it was made of, and addresses that were reserved;
        // each is given back once, since the handle has been taken.
        unsafe {
            check(sys::cuMemUnmap(self.start, self.size), "unmapping memory")?;
            check(sys::cuMemRelease(handle), "giving memory back")?;
            check(
                sys::cuMemAddressFree(self.start, self.size),
                "giving addresses back",
            )
        }
    }

    /// The handle is owned from here on.
    fn map(
        &mut self,
        handle: sys::CUmemGenericAllocationHandle,
        access: Access,
    ) -> Result<(), Fault> {
        self.handle = Some(handle);
        // SAFETY: addresses that were reserved and hold nothing, and a live allocation of that size.
        let result = unsafe { sys::cuMemMap(self.start, self.size, 0, handle, 0) };
        check(result, "mapping memory")?;
        self.allow(access)
    }

    #[must_use]
    pub fn start(&self) -> u64 {
        self.start
    }

    /// Lets this process read, and no more. What was launched before is waited for.
    ///
    /// # Errors
    /// When it has failed, or NVIDIA's driver refuses.
    pub fn seal(&self, context: &Context) -> Result<(), Fault> {
        context.synchronize("writing what will be sealed")?;
        self.allow(Access::CU_MEM_ACCESS_FLAGS_PROT_READ)
    }

    fn allow(&self, flags: Access) -> Result<(), Fault> {
        let access = sys::CUmemAccessDesc {
            location: self.location,
            flags,
        };
        // SAFETY: the whole of a live mapping, and one description.
        let result = unsafe { sys::cuMemSetAccess(self.start, self.size, &raw const access, 1) };
        check(result, "allowing access to memory")
    }

    /// A descriptor of the memory, for another process.
    ///
    /// # Errors
    /// When NVIDIA's driver refuses.
    pub fn share(&self) -> Result<OwnedFd, Fault> {
        let handle = self.handle.expect("memory to share");
        let mut descriptor = -1_i32;
        // SAFETY: for this kind of handle a place for one descriptor.
        let result = unsafe {
            let place = (&raw mut descriptor).cast();
            sys::cuMemExportToShareableHandle(place, handle, DESCRIPTOR, 0)
        };
        check(result, "sharing memory")?;
        // SAFETY: just made, and nobody else's.
        Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
    }
}

fn properties(context: &Context) -> sys::CUmemAllocationProp {
    // SAFETY: plain numbers and pointers, for which all zeros is "none".
    let mut properties: sys::CUmemAllocationProp = unsafe { std::mem::zeroed() };
    properties.type_ = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.requestedHandleTypes = DESCRIPTOR;
    properties.location = context.location();
    properties
}

fn size_of_granules(properties: &sys::CUmemAllocationProp, bytes: u64) -> Result<usize, Fault> {
    let smallest = sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
    let mut granule = 0;
    // SAFETY: a place for one size, and properties that are filled in.
    let result =
        unsafe { sys::cuMemGetAllocationGranularity(&raw mut granule, properties, smallest) };
    check(result, "asking for the granularity of memory")?;
    Ok((bytes.max(1) as usize).next_multiple_of(granule.max(1)))
}

#[cfg(test)]
mod tests {
    use super::super::checksum::Checksum;
    use super::super::kernels::Module;
    use super::super::memory::{Arena, Purpose, download, upload};
    use super::*;
    use std::io::Write as _;
    use std::process::{Command, Stdio};

    const BYTES: u64 = (3 << 20) + 256;

    fn written() -> (Context, Arena) {
        let context = Context::open(0).expect("a device");
        let arena = Arena::shareable(&context, Purpose::Weights, BYTES).expect("memory");
        arena.clear(&context).expect("cleared");
        // SAFETY: inside the arena.
        unsafe { upload(&context, arena.at(BYTES - 4, 1), &[7_u32]) }.expect("a copy");
        arena.seal(&context).expect("sealed");
        (context, arena)
    }

    fn last_word(context: &Context, arena: &Arena) -> u32 {
        let mut word = [0_u32];
        // SAFETY: inside the arena.
        unsafe { download(context, &mut word, arena.at(BYTES - 4, 1)) }.expect("a copy");
        word[0]
    }

    #[test]
    #[ignore = "needs an NVIDIA GPU"]
    fn what_was_written_is_read_by_who_takes_over() {
        let (context, arena) = written();
        let memory = arena.share().expect("a descriptor");
        let taken = Arena::import(&context, Purpose::Weights, BYTES, &memory).expect("taken over");
        assert_eq!(last_word(&context, &taken), 7);
    }

    /// In a process of its own, which the write ends.
    #[test]
    #[ignore = "needs an NVIDIA GPU"]
    fn a_write_to_what_is_sealed_is_an_illegal_address() {
        const WRITES: &str = "WORKER_ORCD_TEST_WRITES";
        if std::env::var_os(WRITES).is_some() {
            let (context, arena) = written();
            let checksum = Checksum::load(&Module::load(&context).expect("kernels"));
            // The kernel adds to the word that it is given.
            let outcome = checksum
                .expect("a kernel")
                .add(&context, &arena, 0..256, &arena, 8)
                .and_then(|()| context.synchronize("a test"));
            writeln!(std::io::stderr(), "{outcome:?}").expect("written");
            let illegal = outcome.is_err_and(|fault| fault.to_string().contains("ILLEGAL_ADDRESS"));
            std::process::exit(i32::from(!illegal));
        }
        let name = "device::cuda::mapping::tests::a_write_to_what_is_sealed_is_an_illegal_address";
        let writer = Command::new(std::env::current_exe().expect("a path"))
            .args([name, "--exact", "--ignored", "--nocapture"])
            .env(WRITES, "1")
            .stdout(Stdio::null())
            .status();
        assert!(
            writer.expect("a process").success(),
            "the write was let through"
        );
    }

    #[test]
    #[ignore = "needs an NVIDIA GPU"]
    fn what_is_not_the_device_s_is_not_taken_over() {
        let context = Context::open(0).expect("a device");
        let file = OwnedFd::from(tempfile::tempfile().expect("a file"));
        assert!(Arena::import(&context, Purpose::Weights, BYTES, &file).is_err());
    }
}
