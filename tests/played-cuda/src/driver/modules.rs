//! Loaded fatbins and their kernels.

use super::devices::{Device, architecture, max_shared_bytes};
use super::errors::{Outcome, Place, answer, expect, give, print};
use super::handles::{Handles, pointer};
use crate::fatbin;
use crate::ptx::{Kernel, Module};
use cudarc::driver::sys::{CUfunction, CUfunction_attribute as Attribute, CUmodule, CUresult};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::fmt::Display;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Dynamic shared memory of a launch without opt-in, in bytes.
const SHARED_BYTES: u32 = 48 << 10;

static MODULES: Handles<Module> = Handles::new();
static FUNCTIONS: Handles<Function> = Handles::new();

/// Kernel with the state of its launches.
#[derive(Debug)]
pub struct Function {
    /// Name in the module.
    pub name: String,
    /// Code for the interpreter.
    pub kernel: Arc<Kernel>,
    /// Limit of a launch's dynamic shared memory.
    shared_bytes: AtomicU32,
}

impl Function {
    /// # Errors
    /// The handle is not a function.
    pub fn of(handle: CUfunction) -> Outcome<Arc<Self>> {
        FUNCTIONS.get(handle.addr())
    }

    /// Dynamic shared memory of one block, in bytes.
    pub fn shared_bytes(&self) -> u32 {
        self.shared_bytes.load(Ordering::Relaxed)
    }
}

/// Loads a fatbin.
///
/// # Safety
/// The image is a fatbin of the length in its header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleLoadData(
    module: Place<'_, CUmodule>,
    image: *const c_void,
) -> CUresult {
    if image.is_null() {
        return CUresult::CUDA_ERROR_INVALID_VALUE;
    }
    // SAFETY: guaranteed by the caller.
    let image = unsafe { whole(image.cast()) };
    answer(Device::current().and_then(|_| {
        let invalid = or(CUresult::CUDA_ERROR_INVALID_IMAGE, "an image");
        let image = image.map_err(invalid)?;
        let absent = or(CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU, "an image");
        let text = fatbin::ptx(image, architecture()).map_err(absent)?;
        let invalid = or(CUresult::CUDA_ERROR_INVALID_PTX, "PTX");
        let loaded = Module::new(text).map_err(invalid)?;
        give(module, pointer(MODULES.add(Arc::new(loaded))))
    }))
}

/// All bytes of an image.
///
/// # Safety
/// The image has as many bytes as its header declares.
unsafe fn whole<'a>(image: *const u8) -> Result<&'a [u8], String> {
    // SAFETY: guaranteed by the caller; the image is at least a header.
    let header = unsafe { &*image.cast::<[u8; fatbin::HEADER_BYTES]>() };
    let bytes = fatbin::bytes(header)?;
    // SAFETY: guaranteed by the caller.
    Ok(unsafe { slice::from_raw_parts(image, bytes) })
}

/// Prints the cause of a refusal, and maps it to a code.
fn or<E: Display>(error: CUresult, what: &str) -> impl FnOnce(E) -> CUresult {
    move |why| {
        print(&format_args!("{what} is refused: {why}"));
        error
    }
}

/// Finds a kernel by its name.
///
/// # Safety
/// The name is terminated by a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleGetFunction(
    function: Place<'_, CUfunction>,
    module: CUmodule,
    name: *const c_char,
) -> CUresult {
    if name.is_null() {
        return CUresult::CUDA_ERROR_INVALID_VALUE;
    }
    // SAFETY: guaranteed by the caller.
    let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
    answer(MODULES.get(module.addr()).and_then(|module| {
        let kernel = module.kernel(&name);
        let kernel = kernel.map_err(or(CUresult::CUDA_ERROR_INVALID_PTX, &name))?;
        let found = Function {
            name: name.to_string(),
            kernel: kernel.ok_or(CUresult::CUDA_ERROR_NOT_FOUND)?,
            shared_bytes: AtomicU32::new(SHARED_BYTES),
        };
        give(function, pointer(FUNCTIONS.add(Arc::new(found))))
    }))
}

/// Raises the limit of dynamic shared memory; no other attribute can be set.
#[unsafe(no_mangle)]
pub extern "C" fn cuFuncSetAttribute(
    function: CUfunction,
    attribute: Attribute,
    value: c_int,
) -> CUresult {
    answer(Function::of(function).and_then(|function| {
        let invalid = CUresult::CUDA_ERROR_INVALID_VALUE;
        let known = Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        expect(attribute == known, invalid)?;
        let bytes = u32::try_from(value).map_err(|_| invalid)?;
        expect(bytes <= max_shared_bytes(), invalid)?;
        function.shared_bytes.store(bytes, Ordering::Relaxed);
        Ok(())
    }))
}
