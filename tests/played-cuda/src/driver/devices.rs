//! Devices, their attributes, and the context of a thread.
//!
//! Each is an A100 with few multiprocessors and little memory, or a later device without instructions of its own.
//! Environment variables set which one, their number and size.

use super::errors::{HEALTH, Outcome, Place, answer, expect, give};
use super::handles::pointer;
use super::memory::Budget;
use cudarc::driver::sys::{CUcontext, CUdevice, CUdevice_attribute as Attribute, CUresult, CUuuid};
use std::cell::Cell;
use std::env;
use std::ffi::{c_char, c_int, c_uint};
use std::slice;
use std::sync::{Arc, LazyLock};

/// CUDA 13.0.
const DRIVER_VERSION: c_int = 13_000;
const NAME: &[u8] = b"Played GPU";
/// UUID; its last byte is the device's number.
const UUID: [u8; 16] = *b"played-cuda-gpu\0";

/// Variable with ten times the compute capability: 80, or one from 90 on.
const ARCHITECTURE_VARIABLE: &str = "PLAYED_CUDA_ARCHITECTURE";

/// Ten times the compute capability.
pub fn architecture() -> u32 {
    static ARCHITECTURE: LazyLock<u32> =
        LazyLock::new(|| setting(ARCHITECTURE_VARIABLE, 80) as u32);
    *ARCHITECTURE
}

/// Limit of a block's shared memory.
pub fn max_shared_bytes() -> u32 {
    match architecture() {
        90.. => 227 << 10,
        _ => 163 << 10,
    }
}

/// Variable with the number of devices.
const DEVICES_VARIABLE: &str = "PLAYED_CUDA_DEVICES";
/// Variable with the number of multiprocessors of each device.
const MULTIPROCESSORS_VARIABLE: &str = "PLAYED_CUDA_MULTIPROCESSORS";
/// Variable with the memory of each device, in bytes.
const MEMORY_VARIABLE: &str = "PLAYED_CUDA_MEMORY";

static DEVICES: LazyLock<Vec<Device>> = LazyLock::new(|| {
    let device = |ordinal| Device {
        ordinal: ordinal as u8,
        multiprocessors: setting(MULTIPROCESSORS_VARIABLE, 4) as u32,
        memory: Arc::new(Budget::new(setting(MEMORY_VARIABLE, 4 << 30))),
    };
    (0..setting(DEVICES_VARIABLE, 1)).map(device).collect()
});

fn setting(variable: &str, default: u64) -> u64 {
    env::var(variable).map_or(default, |text| {
        let value = text.parse();
        value.unwrap_or_else(|_| panic!("{variable}={text} is no number"))
    })
}

/// Interpreted device.
#[derive(Debug)]
pub struct Device {
    ordinal: u8,
    /// Multiprocessors; at least as many blocks run at a time.
    pub multiprocessors: u32,
    /// Memory that this process has allocated on it.
    pub memory: Arc<Budget>,
}

impl Device {
    /// # Errors
    /// There is no device of that number.
    pub fn of(ordinal: CUdevice) -> Outcome<&'static Self> {
        let device = usize::try_from(ordinal).ok().and_then(|at| DEVICES.get(at));
        device.ok_or(CUresult::CUDA_ERROR_INVALID_DEVICE)
    }

    /// Device of the calling thread's context, if no error is sticky.
    ///
    /// # Errors
    /// There is no context, or an error is sticky.
    pub fn current() -> Outcome<&'static Self> {
        HEALTH.check()?;
        let device = CURRENT.get();
        device.ok_or(CUresult::CUDA_ERROR_INVALID_CONTEXT)
    }
}

thread_local! {
    static CURRENT: Cell<Option<&'static Device>> = const { Cell::new(None) };
}

/// Initializes nothing; there are no flags.
#[unsafe(no_mangle)]
pub extern "C" fn cuInit(flags: c_uint) -> CUresult {
    answer(expect(flags == 0, CUresult::CUDA_ERROR_INVALID_VALUE))
}

/// Version of CUDA that is emulated.
#[unsafe(no_mangle)]
pub extern "C" fn cuDriverGetVersion(version: Place<'_, c_int>) -> CUresult {
    answer(give(version, DRIVER_VERSION))
}

/// Number of devices.
#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceGetCount(count: Place<'_, c_int>) -> CUresult {
    answer(give(count, DEVICES.len() as c_int))
}

/// Handle of a device, which is its number.
#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceGet(device: Place<'_, CUdevice>, ordinal: c_int) -> CUresult {
    answer(Device::of(ordinal).and_then(|_| give(device, ordinal)))
}

/// Name of a device, truncated to `len`.
///
/// # Safety
/// `name` has room for `len` characters.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetName(
    name: *mut c_char,
    len: c_int,
    device: CUdevice,
) -> CUresult {
    let len = usize::try_from(len).unwrap_or(0);
    if name.is_null() || len == 0 {
        return CUresult::CUDA_ERROR_INVALID_VALUE;
    }
    // SAFETY: guaranteed by the caller.
    let place = unsafe { slice::from_raw_parts_mut(name.cast::<u8>(), len) };
    place.fill(0);
    let bytes = NAME.len().min(len - 1);
    place[..bytes].copy_from_slice(&NAME[..bytes]);
    answer(Device::of(device).map(drop))
}

/// UUID of a device.
#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceGetUuid_v2(uuid: Place<'_, CUuuid>, device: CUdevice) -> CUresult {
    answer(Device::of(device).and_then(|device| {
        let mut bytes = UUID;
        bytes[15] = device.ordinal;
        let bytes = bytes.map(|byte| byte as c_char);
        give(uuid, CUuuid { bytes })
    }))
}

/// Attributes that the child reads.
#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceGetAttribute(
    value: Place<'_, c_int>,
    attribute: Attribute,
    device: CUdevice,
) -> CUresult {
    answer(Device::of(device).and_then(|device| {
        let found = match attribute {
            Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT => device.multiprocessors,
            Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN => max_shared_bytes(),
            Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR => architecture() / 10,
            Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR => architecture() % 10,
            _ => return Err(CUresult::CUDA_ERROR_INVALID_VALUE),
        };
        give(value, found as c_int)
    }))
}

/// Context of a device: its number plus one.
#[unsafe(no_mangle)]
pub extern "C" fn cuDevicePrimaryCtxRetain(
    context: Place<'_, CUcontext>,
    device: CUdevice,
) -> CUresult {
    answer(HEALTH.check().and_then(|()| {
        let device = Device::of(device)?;
        give(context, pointer(usize::from(device.ordinal) + 1))
    }))
}

/// Makes a device's context, or none, the calling thread's.
#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSetCurrent(context: CUcontext) -> CUresult {
    let device = match context.addr() {
        0 => Ok(None),
        handle => DEVICES
            .get(handle - 1)
            .map(Some)
            .ok_or(CUresult::CUDA_ERROR_INVALID_CONTEXT),
    };
    answer(device.map(|device| CURRENT.set(device)))
}

/// Free and total bytes of the current context's device.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemGetInfo_v2(free: Place<'_, usize>, total: Place<'_, usize>) -> CUresult {
    answer(Device::current().and_then(|device| {
        let (left, all) = device.memory.free_and_total();
        give(free, left as usize)?;
        give(total, all as usize)
    }))
}

/// Makes the first device's context the calling thread's.
#[cfg(test)]
pub fn enter() {
    assert_eq!(cuCtxSetCurrent(pointer(1)), CUresult::CUDA_SUCCESS);
}

#[cfg(test)]
mod tests {
    use super::super::errors::given;
    use super::*;
    use std::ffi::CStr;
    use std::thread;

    #[test]
    fn a_device_says_what_it_is() {
        let mut name = [1; 8];
        // SAFETY: as many characters.
        let result = unsafe { cuDeviceGetName(name.as_mut_ptr(), 8, 0) };
        assert_eq!(result, CUresult::CUDA_SUCCESS);
        // SAFETY: the call has terminated the string.
        assert_eq!(unsafe { CStr::from_ptr(name.as_ptr()) }, c"Played ");
        let ask = |attribute| given(|place| cuDeviceGetAttribute(place, attribute, 0));
        let major = Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR;
        assert_eq!(ask(major), Ok(8));
        let unknown = Attribute::CU_DEVICE_ATTRIBUTE_MAX_PITCH;
        assert_eq!(ask(unknown), Err(CUresult::CUDA_ERROR_INVALID_VALUE));
        let absent = given(|place| cuDeviceGet(place, -1));
        assert_eq!(absent, Err(CUresult::CUDA_ERROR_INVALID_DEVICE));
    }

    #[test]
    fn a_context_is_a_thread_s() {
        enter();
        assert!(Device::current().is_ok());
        let other = thread::spawn(|| Device::current().map(drop));
        let without = Err(CUresult::CUDA_ERROR_INVALID_CONTEXT);
        assert_eq!(other.join().unwrap(), without);
    }
}
