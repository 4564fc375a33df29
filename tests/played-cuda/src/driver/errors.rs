//! Results of calls, their names, and the sticky error.

use cudarc::driver::sys::CUresult;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char};
use std::fmt::Display;
use std::io::Write;
use std::mem::MaybeUninit;
use std::sync::OnceLock;

/// Result of a call.
pub type Outcome<T = ()> = Result<T, CUresult>;

/// Output parameter of a call.
pub type Place<'a, T> = Option<&'a mut MaybeUninit<T>>;

/// Outcome as a C result.
pub fn answer(outcome: Outcome) -> CUresult {
    outcome.err().unwrap_or(CUresult::CUDA_SUCCESS)
}

/// Stores a value in an output parameter.
///
/// # Errors
/// The parameter is null.
pub fn give<T>(place: Place<'_, T>, value: T) -> Outcome {
    let place = place.ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
    place.write(value);
    Ok(())
}

/// Fails with `error` unless `holds`.
///
/// # Errors
/// `error`.
pub fn expect(holds: bool, error: CUresult) -> Outcome {
    holds.then_some(()).ok_or(error)
}

/// Prints the cause of a failure to stderr, where its code is ambiguous.
pub fn print(why: &dyn Display) {
    let _ = writeln!(std::io::stderr(), "played CUDA: {why}");
}

/// Sticky error: after the first failure of a launch every call returns it.
#[derive(Debug, Default)]
pub struct Health(OnceLock<CUresult>);

/// Health of this process.
pub static HEALTH: Health = Health::new();

impl Health {
    /// Health without an error.
    pub const fn new() -> Self {
        Self(OnceLock::new())
    }

    /// # Errors
    /// The sticky error.
    pub fn check(&self) -> Outcome {
        self.0.get().map_or(Ok(()), |error| Err(*error))
    }

    /// Makes an error sticky.
    pub fn fail(&self, error: CUresult) {
        // The first error stays.
        let _ = self.0.set(error);
    }
}

/// Name of a `CUresult`.
#[unsafe(no_mangle)]
pub extern "C" fn cuGetErrorName(error: CUresult, text: Place<'_, *const c_char>) -> CUresult {
    answer(give(text, name(error).as_ptr()))
}

/// Name of an error, with static lifetime because callers keep it.
fn name(error: CUresult) -> &'static CStr {
    static NAMES: Mutex<BTreeMap<CUresult, &'static CStr>> = Mutex::new(BTreeMap::new());
    NAMES.lock().entry(error).or_insert_with(|| {
        let name = CString::new(format!("{error:?}")).unwrap_or_default();
        Box::leak(name.into_boxed_c_str())
    })
}

/// Value that a call stores in its output parameter.
#[cfg(test)]
pub fn given<T: Default>(call: impl FnOnce(Place<'_, T>) -> CUresult) -> Outcome<T> {
    let mut place = MaybeUninit::new(T::default());
    match call(Some(&mut place)) {
        // SAFETY: a value from the beginning.
        CUresult::CUDA_SUCCESS => Ok(unsafe { place.assume_init() }),
        error => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_have_their_names() {
        let mut text = MaybeUninit::uninit();
        let error = CUresult::CUDA_ERROR_ILLEGAL_ADDRESS;
        assert_eq!(
            cuGetErrorName(error, Some(&mut text)),
            CUresult::CUDA_SUCCESS
        );
        // SAFETY: the call has succeeded, and its string is static.
        let text = unsafe { CStr::from_ptr(text.assume_init()) };
        assert_eq!(text, c"CUDA_ERROR_ILLEGAL_ADDRESS");
        let nowhere = cuGetErrorName(error, None);
        assert_eq!(nowhere, CUresult::CUDA_ERROR_INVALID_VALUE);
    }

    #[test]
    fn the_first_error_stays() {
        let health = Health::new();
        assert_eq!(health.check(), Ok(()));
        health.fail(CUresult::CUDA_ERROR_LAUNCH_FAILED);
        health.fail(CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
        assert_eq!(health.check(), Err(CUresult::CUDA_ERROR_LAUNCH_FAILED));
    }
}
