//! Launches of kernels.

use super::devices::{Device, max_shared_bytes};
use super::errors::{HEALTH, Outcome, answer, expect, print};
use super::memory::MEMORY;
use super::modules::Function;
use super::streams::{Stream, Work};
use crate::machine::{self, Launch, Trouble};
use cudarc::driver::sys::{
    CUfunction, CUlaunchAttributeID as AttributeId, CUlaunchConfig, CUresult, CUstream,
    CUtensorMap, CUtensorMapDataType, CUtensorMapFloatOOBfill, CUtensorMapInterleave,
    CUtensorMapL2promotion, CUtensorMapSwizzle,
};
use std::ffi::{c_uint, c_void};
use std::slice;
use std::sync::Arc;

const MAX_GRID: [u32; 3] = [i32::MAX as u32, 65_535, 65_535];
const MAX_BLOCK: [u32; 3] = [1024, 1024, 64];
const MAX_THREADS: u32 = 1024;
/// Limit for all resident blocks of a multiprocessor.
const THREADS_OF_MULTIPROCESSOR: u32 = 2048;
/// Shared memory that each block reserves.
const RESERVED_SHARED_BYTES: u32 = 1 << 10;

fn shared_bytes_of_multiprocessor() -> u32 {
    max_shared_bytes() + RESERVED_SHARED_BYTES
}

const OVERLAP: AttributeId = AttributeId::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;

const INVALID: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;

/// Blocks, threads of a block, and bytes of dynamic shared memory.
#[derive(Debug, Clone, Copy)]
struct Geometry {
    grid: [u32; 3],
    block: [u32; 3],
    shared_bytes: u32,
}

impl Geometry {
    /// # Errors
    /// A device would refuse it.
    fn check(&self, function: &Function) -> Outcome {
        let fits = |size: [u32; 3], most: [u32; 3]| {
            let mut pairs = size.into_iter().zip(most);
            pairs.all(|(size, most)| (1..=most).contains(&size))
        };
        expect(
            fits(self.grid, MAX_GRID) && fits(self.block, MAX_BLOCK),
            INVALID,
        )?;
        expect(self.threads() <= MAX_THREADS, INVALID)?;
        expect(self.shared_bytes <= function.shared_bytes(), INVALID)
    }

    fn threads(&self) -> u32 {
        self.block.iter().product()
    }

    /// Whether all blocks are resident at the same time.
    fn fits_at_once(&self, device: &Device) -> bool {
        let by_threads = THREADS_OF_MULTIPROCESSOR / self.threads();
        let by_shared =
            shared_bytes_of_multiprocessor() / (self.shared_bytes + RESERVED_SHARED_BYTES);
        let blocks: u64 = self.grid.iter().map(|size| u64::from(*size)).product();
        blocks <= u64::from(device.multiprocessors * by_threads.min(by_shared))
    }
}

/// Launches a kernel. Programmatic stream serialization is accepted and has no effect, because launches never overlap;
/// other attributes are refused.
///
/// # Safety
/// The configuration has as many attributes as it declares, and each parameter has the kernel's size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuLaunchKernelEx(
    config: Option<&CUlaunchConfig>,
    function: CUfunction,
    parameters: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> CUresult {
    let Some(config) = config else {
        return INVALID;
    };
    let geometry = Geometry {
        grid: [config.gridDimX, config.gridDimY, config.gridDimZ],
        block: [config.blockDimX, config.blockDimY, config.blockDimZ],
        shared_bytes: config.sharedMemBytes,
    };
    let attributes = match config.attrs.is_null() {
        true => &[],
        // SAFETY: guaranteed by the caller.
        false => unsafe { slice::from_raw_parts(config.attrs, config.numAttrs as usize) },
    };
    answer(HEALTH.check().and_then(|()| {
        let are_known = attributes.iter().all(|it| it.id == OVERLAP);
        expect(
            are_known && extra.is_null(),
            CUresult::CUDA_ERROR_NOT_SUPPORTED,
        )?;
        let function = Function::of(function)?;
        geometry.check(&function)?;
        // SAFETY: guaranteed by the caller.
        unsafe { launch(function, geometry, parameters, config.hStream, false) }
    }))
}

/// Launches a cooperative kernel, which needs all blocks resident at once, because they may wait for each other.
///
/// # Safety
/// Each parameter has the kernel's size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuLaunchCooperativeKernel(
    function: CUfunction,
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    shared_bytes: c_uint,
    stream: CUstream,
    parameters: *mut *mut c_void,
) -> CUresult {
    let geometry = Geometry {
        grid: [grid_x, grid_y, grid_z],
        block: [block_x, block_y, block_z],
        shared_bytes,
    };
    answer(Device::current().and_then(|device| {
        let function = Function::of(function)?;
        geometry.check(&function)?;
        let too_large = CUresult::CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
        expect(geometry.fits_at_once(device), too_large)?;
        // SAFETY: guaranteed by the caller.
        unsafe { launch(function, geometry, parameters, stream, true) }
    }))
}

/// Copies the parameters, and puts the launch into the stream.
///
/// # Safety
/// Each parameter has the kernel's size.
unsafe fn launch(
    function: Arc<Function>,
    geometry: Geometry,
    parameters: *mut *mut c_void,
    stream: CUstream,
    together: bool,
) -> Outcome {
    let stream = Stream::of(stream)?;
    let bytes = function.kernel.parameter_bytes;
    let parameters = match bytes {
        0 => Vec::new(),
        // A kernel here has one parameter, which holds all arguments.
        // SAFETY: guaranteed by the caller.
        _ if !parameters.is_null() => unsafe {
            slice::from_raw_parts((*parameters).cast::<u8>(), bytes).to_vec()
        },
        _ => return Err(INVALID),
    };
    let launch = Launch {
        grid: geometry.grid,
        block: geometry.block,
        shared_bytes: geometry.shared_bytes,
        parameters,
        together,
    };
    stream.add(running(function, launch))
}

/// Work item of a launch. It takes the address space when it runs.
fn running(function: Arc<Function>, launch: Launch) -> Work {
    Arc::new(move || {
        let goes_on = || HEALTH.check().is_ok();
        let outcome = machine::run(&function.kernel, &launch, &MEMORY.space(), &goes_on);
        outcome.map_err(|trouble| code(&function.name, &trouble))
    })
}

/// Result code of NVIDIA's driver; details go to stderr.
fn code(kernel: &str, trouble: &Trouble) -> CUresult {
    match trouble {
        Trouble::IllegalAddress(why) => {
            print(&format_args!("{kernel} reached beyond its memory: {why}"));
            CUresult::CUDA_ERROR_ILLEGAL_ADDRESS
        }
        Trouble::Misaligned(why) => {
            print(&format_args!("{kernel} reached what is not aligned: {why}"));
            CUresult::CUDA_ERROR_MISALIGNED_ADDRESS
        }
        Trouble::Trap => CUresult::CUDA_ERROR_LAUNCH_FAILED,
        Trouble::Stuck(why) => {
            print(&format_args!("{kernel} cannot go on: {why}"));
            CUresult::CUDA_ERROR_ILLEGAL_INSTRUCTION
        }
    }
}

/// Refused: tensor maps need the copy engine of later devices.
#[unsafe(no_mangle)]
pub extern "C" fn cuTensorMapEncodeTiled(
    _map: *mut CUtensorMap,
    _type: CUtensorMapDataType,
    _rank: u32,
    _address: *mut c_void,
    _sizes: *const u64,
    _strides: *const u64,
    _box_sizes: *const u32,
    _element_strides: *const u32,
    _interleave: CUtensorMapInterleave,
    _swizzle: CUtensorMapSwizzle,
    _promotion: CUtensorMapL2promotion,
    _fill: CUtensorMapFloatOOBfill,
) -> CUresult {
    CUresult::CUDA_ERROR_NOT_SUPPORTED
}
