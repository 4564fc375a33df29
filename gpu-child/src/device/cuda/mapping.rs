//! Device memory that may outlive its process: allocated with an exportable handle,
//! and mapped at an address of this process.
//!
//! Each holder of a descriptor keeps the memory allocated, with or without a context. Access rights belong to
//! the mapping, not to the memory: a write through a read-only mapping is an
//! illegal address, in any kernel.
//!
//! Source: CUDA driver API, "Virtual Memory Management".

use super::context::{Context, check};
use cudarc::driver::sys::{self, CUmemAccess_flags_enum as Access};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use worker_orcd_ipc::Fault;

const DESCRIPTOR: sys::CUmemAllocationHandleType =
    sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

/// One allocation, and its address in this process; or only the reserved address, while another process has
/// the memory. It is never unmapped: kernels in flight may still
/// read it, and unmapping does not wait for them. The end of the process releases it.
#[derive(Debug)]
pub struct Mapping {
    start: u64,
    /// Whole granules of the device.
    size: usize,
    handle: Option<sys::CUmemGenericAllocationHandle>,
    location: sys::CUmemLocation,
}

impl Mapping {
    /// Allocates new memory, read-write. Not cleared.
    ///
    /// # Errors
    /// [`Fault::OutOfMemory`] if the device has less free memory.
    pub fn new(context: &Context, bytes: u64, doing: &str) -> Result<Self, Fault> {
        let mut mapping = Self::reserve(context, bytes)?;
        mapping.allocate(context, doing)?;
        Ok(mapping)
    }

    /// Reserves addresses for memory.
    ///
    /// # Errors
    /// If NVIDIA's driver returns an error.
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

    /// Maps new memory at the reserved addresses, read-write. Not cleared.
    ///
    /// # Errors
    /// [`Fault::OutOfMemory`] if the device has less free memory; the call may be repeated.
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

    /// Maps memory of another process, read-only.
    ///
    /// # Errors
    /// If it belongs to another device, or is smaller.
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

    /// Unmaps the memory, and releases the addresses.
    ///
    /// # Errors
    /// If NVIDIA's driver returns an error.
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

    /// Takes ownership of the handle.
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

    /// Makes the mapping read-only. Waits for earlier launches.
    ///
    /// # Errors
    /// If a launch has failed, or NVIDIA's driver returns an error.
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

    /// Exports a descriptor of the memory, for another process.
    ///
    /// # Errors
    /// If NVIDIA's driver returns an error.
    pub fn share(&self) -> Result<OwnedFd, Fault> {
        let handle = self.handle.expect("memory to share");
        let mut descriptor = -1_i32;
        // SAFETY: for this kind of handle a place for one descriptor.
        let result = unsafe {
            let place = (&raw mut descriptor).cast();
            sys::cuMemExportToShareableHandle(place, handle, DESCRIPTOR, 0)
        };
        check(result, "sharing memory")?;
        // SAFETY: a new descriptor without another owner.
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

    /// Runs in a separate process, which the write ends.
    #[test]
    #[ignore = "needs an NVIDIA GPU"]
    fn a_write_to_what_is_sealed_is_an_illegal_address() {
        const WRITES: &str = "WORKER_ORCD_TEST_WRITES";
        if std::env::var_os(WRITES).is_some() {
            let (context, arena) = written();
            let checksum = Checksum::load(&Module::load(&context).expect("kernels"));
            // The kernel adds to its argument's word.
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
