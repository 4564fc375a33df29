//! Context on one device: every driver call except memory and launches.
//!
//! Each result is checked, and an error becomes a [`Fault`] with the driver's own error name. A
//! sticky error (an illegal address, a trap) is returned by every later call, so the next call of
//! the engine ends the child.

use super::architectures::ComputeCapability;
use super::kernels;
use super::memory::{Ledger, PATIENCE, POLL};
use cudarc::driver::sys::{self, CUdevice_attribute as Attribute, CUresult};
use std::ffi::{CStr, c_char, c_int};
use std::sync::Arc;
use std::thread::sleep;
use std::time::Instant;
use worker_orcd_ipc::{DeviceError, DeviceFacts, Fault};

/// # Errors
/// [`Fault::OutOfMemory`] for the only error that is not fatal to the device, else [`Fault::Device`].
pub fn check(result: CUresult, doing: &str) -> Result<(), Fault> {
    match result {
        CUresult::CUDA_SUCCESS => Ok(()),
        CUresult::CUDA_ERROR_OUT_OF_MEMORY => Err(Fault::OutOfMemory {
            message: doing.to_owned(),
        }),
        error => Err(Fault::Device {
            error: DeviceError::Cuda(name_of(error)),
            message: doing.to_owned(),
        }),
    }
}

fn name_of(error: CUresult) -> String {
    let mut text: *const c_char = std::ptr::null();
    // SAFETY: `text` is a place for one pointer, which is to a static string or stays null.
    unsafe {
        let _ = sys::cuGetErrorName(error, &raw mut text);
        if text.is_null() {
            return format!("CUDA_ERROR_{}", error as u32);
        }
        CStr::from_ptr(text).to_string_lossy().into_owned()
    }
}

/// The retained primary context of the device, and one stream in it. It is never released: it ends with the
/// process, and after a sticky error there is nothing to release.
#[derive(Debug)]
pub struct Context {
    ordinal: u32,
    device: sys::CUdevice,
    handle: sys::CUcontext,
    stream: sys::CUstream,
    multiprocessors: u32,
    shared_bytes: u32,
    capability: ComputeCapability,
    ledger: Arc<Ledger>,
}

// SAFETY: contexts and streams belong to no thread; a thread makes the context current first
// (`enter`), and NVIDIA's driver locks what it shares.
unsafe impl Send for Context {}

/// Retains the device's primary context. In exclusive mode (`nvidia-smi --compute-mode
/// EXCLUSIVE_PROCESS`) the previous, dying child may still hold the device: retries until it is free.
fn retain(device: sys::CUdevice) -> Result<sys::CUcontext, Fault> {
    let mut handle = std::ptr::null_mut();
    let began = Instant::now();
    loop {
        // SAFETY: the output is a place for one value, and the device exists.
        let result = unsafe { sys::cuDevicePrimaryCtxRetain(&raw mut handle, device) };
        match result {
            CUresult::CUDA_ERROR_DEVICE_UNAVAILABLE if began.elapsed() < PATIENCE => sleep(POLL),
            result => return check(result, "creating a context").map(|()| handle),
        }
    }
}

impl Context {
    /// # Errors
    /// [`Fault::DeviceUnavailable`] if there is no NVIDIA driver, no such device, or no compiled kernel
    /// for it.
    pub fn open(ordinal: u32) -> Result<Self, Fault> {
        let device = find(ordinal)?;
        let handle = retain(device)?;
        let mut stream = std::ptr::null_mut();
        // SAFETY: the output is a place for one value; the stream is made in the context that was just made
        // current.
        unsafe {
            check(sys::cuCtxSetCurrent(handle), "cuCtxSetCurrent")?;
            // 1 is `CU_STREAM_NON_BLOCKING`: no synchronization with the legacy stream, which is unused.
            check(sys::cuStreamCreate(&raw mut stream, 1), "cuStreamCreate")?;
        }
        let mut context = Self {
            ordinal,
            device,
            handle,
            stream,
            multiprocessors: 0,
            shared_bytes: 0,
            capability: compute_capability(device)?,
            ledger: Arc::default(),
        };
        context.multiprocessors =
            attribute(device, Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
        context.shared_bytes = attribute(
            device,
            Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
        )?;
        Ok(context)
    }

    /// The same device and context with a separate stream, for another thread.
    ///
    /// # Errors
    /// If NVIDIA's driver returns an error.
    pub fn with_a_stream_of_its_own(&self) -> Result<Self, Fault> {
        self.enter()?;
        let mut stream = std::ptr::null_mut();
        // SAFETY: a place for one stream, in the context that was just made current.
        let result = unsafe { sys::cuStreamCreate(&raw mut stream, 1) };
        check(result, "cuStreamCreate")?;
        Ok(Self {
            stream,
            ledger: Arc::clone(&self.ledger),
            ..*self
        })
    }

    /// Makes the context current in the calling thread.
    ///
    /// # Errors
    /// If NVIDIA's driver returns an error.
    pub fn enter(&self) -> Result<(), Fault> {
        // SAFETY: the context was retained in `open` and is never released.
        check(
            unsafe { sys::cuCtxSetCurrent(self.handle) },
            "cuCtxSetCurrent",
        )
    }

    /// Waits for all launches.
    ///
    /// # Errors
    /// The error of any earlier launch.
    pub fn synchronize(&self, doing: &str) -> Result<(), Fault> {
        // SAFETY: the stream lives as long as the process.
        check(unsafe { sys::cuStreamSynchronize(self.stream) }, doing)
    }

    #[must_use]
    pub fn stream(&self) -> sys::CUstream {
        self.stream
    }

    /// The device as a location of memory.
    #[must_use]
    pub fn location(&self) -> sys::CUmemLocation {
        sys::CUmemLocation {
            type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
            id: self.device,
        }
    }

    /// The allocated device memory.
    #[must_use]
    pub fn ledger(&self) -> &Arc<Ledger> {
        &self.ledger
    }

    #[must_use]
    pub fn multiprocessors(&self) -> u32 {
        self.multiprocessors
    }

    /// Maximum shared memory per block, with opt-in.
    #[must_use]
    pub fn shared_bytes(&self) -> u32 {
        self.shared_bytes
    }

    /// Compute capability 9 and up: asynchronous bulk copies to shared memory.
    #[must_use]
    pub fn has_bulk_copies(&self) -> bool {
        self.capability.major >= 9
    }

    /// The kernels here can begin before the end of the preceding launch: they
    /// were compiled for this exact architecture (`cargo xtask kernels`), not from PTX of an older one.
    #[must_use]
    pub fn overlaps_launches(&self) -> bool {
        matches!(self.capability.major, 9 | 10) && self.capability.minor == 0
    }

    /// Hopper's warpgroup products, which no other architecture has.
    #[must_use]
    pub fn has_wgmma(&self) -> bool {
        self.capability.major == 9 && self.capability.minor == 0
    }

    #[must_use]
    pub fn id(&self) -> String {
        format!("cuda:{}", self.ordinal)
    }

    /// Free and total bytes of the device.
    ///
    /// # Errors
    /// If the context is lost.
    pub fn memory(&self) -> Result<(u64, u64), Fault> {
        let (mut free, mut total) = (0, 0);
        self.enter()?;
        // SAFETY: places for one value each.
        let result = unsafe { sys::cuMemGetInfo_v2(&raw mut free, &raw mut total) };
        check(result, "cuMemGetInfo")?;
        Ok((free as u64, total as u64))
    }

    #[must_use]
    pub fn facts(&self) -> DeviceFacts {
        DeviceFacts {
            id: self.id(),
            name: name_of_device(self.device),
            uuid: self.uuid(),
            driver: cuda_version(),
            compute_capability: Some((self.capability.major, self.capability.minor)),
            features: Vec::new(),
            threads: None,
        }
    }

    /// The UUID in the format of `nvidia-smi`.
    fn uuid(&self) -> Option<String> {
        let mut uuid = sys::CUuuid { bytes: [0; 16] };
        // SAFETY: a place for one UUID, and a device that exists.
        let result = unsafe { sys::cuDeviceGetUuid_v2(&raw mut uuid, self.device) };
        check(result, "cuDeviceGetUuid").ok()?;
        let hex: String = uuid
            .bytes
            .iter()
            .map(|byte| format!("{:02x}", *byte as u8))
            .collect();
        let parts = [
            &hex[..8],
            &hex[8..12],
            &hex[12..16],
            &hex[16..20],
            &hex[20..],
        ];
        Some(format!("GPU-{}", parts.join("-")))
    }
}

/// Description of the worker's device. Creates no context.
///
/// # Errors
/// [`Fault::DeviceUnavailable`] in the cases of [`Context::open`].
pub fn outlook(ordinal: u32) -> Result<String, Fault> {
    let device = find(ordinal)?;
    let capability = compute_capability(device)?;
    Ok(format!(
        "{} (compute capability {capability}, {})",
        name_of_device(device),
        cuda_version().unwrap_or_else(|| "CUDA of an unknown version".to_owned()),
    ))
}

/// Number of devices of NVIDIA's driver.
///
/// # Errors
/// [`Fault::DeviceUnavailable`] if there is no driver, or the query fails.
pub fn count_devices() -> Result<u32, Fault> {
    count().map_err(|why| Fault::DeviceUnavailable {
        message: format!("CUDA devices cannot be counted: {why}"),
    })
}

fn count() -> Result<u32, String> {
    // SAFETY: looks for a shared library; nothing is assumed about the answer.
    if !unsafe { sys::is_culib_present() } {
        return Err("there is no CUDA driver here (libcuda.so.1)".to_owned());
    }
    let mut count = 0;
    // SAFETY: the output is a place for one value; cuInit comes first.
    unsafe {
        check(sys::cuInit(0), "cuInit")
            .and_then(|()| check(sys::cuDeviceGetCount(&raw mut count), "counting devices"))
            .map_err(|fault| format!("the driver says {fault}"))?;
    }
    Ok(u32::try_from(count).unwrap_or(0))
}

/// The device, if all requirements of a context are met.
fn find(ordinal: u32) -> Result<sys::CUdevice, Fault> {
    let unavailable = |why: &str| Fault::DeviceUnavailable {
        message: format!("cuda:{ordinal} cannot be used: {why}"),
    };
    let count = count().map_err(|why| unavailable(&why))?;
    kernels::are_at_hand().map_err(unavailable)?;
    if ordinal >= count {
        return Err(unavailable(&format!("there are {count} devices")));
    }
    let mut device = 0;
    // SAFETY: a place for one value; the ordinal is below the count.
    let result = unsafe { sys::cuDeviceGet(&raw mut device, ordinal as c_int) };
    check(result, "cuDeviceGet")?;
    kernels::are_made_for(compute_capability(device)?).map_err(|why| unavailable(&why))?;
    Ok(device)
}

fn attribute(device: sys::CUdevice, attribute: Attribute) -> Result<u32, Fault> {
    let mut value = 0;
    // SAFETY: a place for one value, and a device that exists.
    let result = unsafe { sys::cuDeviceGetAttribute(&raw mut value, attribute, device) };
    check(result, "cuDeviceGetAttribute")?;
    Ok(value.unsigned_abs())
}

fn compute_capability(device: sys::CUdevice) -> Result<ComputeCapability, Fault> {
    Ok(ComputeCapability {
        major: attribute(
            device,
            Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
        )?,
        minor: attribute(
            device,
            Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
        )?,
    })
}

fn name_of_device(device: sys::CUdevice) -> String {
    let mut text = [0; 256];
    // SAFETY: NVIDIA's driver writes at most the given number of bytes, with a zero at the end.
    let name = unsafe {
        let result = sys::cuDeviceGetName(text.as_mut_ptr(), 255, device);
        check(result, "cuDeviceGetName").map(|()| CStr::from_ptr(text.as_ptr()).to_string_lossy())
    };
    name.map_or_else(|_| "unknown CUDA device".to_owned(), Into::into)
}

/// CUDA version that NVIDIA's driver supports, such as `CUDA 13.0`.
fn cuda_version() -> Option<String> {
    let mut version = 0;
    // SAFETY: a place for one value.
    let result = unsafe { sys::cuDriverGetVersion(&raw mut version) };
    check(result, "cuDriverGetVersion").ok()?;
    Some(format!("CUDA {}.{}", version / 1000, version % 1000 / 10))
}

/// A point in the stream that the host can wait for. Never destroyed, so a copy is the same event.
#[derive(Debug, Clone, Copy)]
pub struct StreamEvent(sys::CUevent);

// SAFETY: events belong to a context, not to a thread.
unsafe impl Send for StreamEvent {}

impl StreamEvent {
    /// # Errors
    /// If NVIDIA's driver returns an error.
    pub fn new() -> Result<Self, Fault> {
        let mut event = std::ptr::null_mut();
        let flags = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32;
        // SAFETY: a place for one event.
        let result = unsafe { sys::cuEventCreate(&raw mut event, flags) };
        check(result, "cuEventCreate")?;
        Ok(Self(event))
    }

    /// Records the event after all launches.
    ///
    /// # Errors
    /// If NVIDIA's driver returns an error.
    pub fn record(&self, context: &Context) -> Result<(), Fault> {
        // SAFETY: event and stream live as long as the process.
        let result = unsafe { sys::cuEventRecord(self.0, context.stream) };
        check(result, "cuEventRecord")
    }

    /// The stream has passed the event. Does not wait.
    ///
    /// # Errors
    /// The error of any earlier launch.
    pub fn is_reached(&self) -> Result<bool, Fault> {
        // SAFETY: the event lives as long as the process.
        match unsafe { sys::cuEventQuery(self.0) } {
            sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            other => check(other, "looking for the end of a launch").map(|()| true),
        }
    }

    /// Waits until the stream has passed the event.
    ///
    /// # Errors
    /// The error of any earlier launch.
    pub fn wait(&self, doing: &str) -> Result<(), Fault> {
        // SAFETY: the event lives as long as the process.
        check(unsafe { sys::cuEventSynchronize(self.0) }, doing)
    }
}
