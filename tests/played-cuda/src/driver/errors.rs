//! Results of calls, their names, and the error that stays.

use cudarc::driver::sys::CUresult;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char};
use std::fmt::Display;
use std::io::Write;
use std::mem::MaybeUninit;
use std::sync::OnceLock;

/// What a call comes to.
pub type Outcome<T = ()> = Result<T, CUresult>;

/// A caller's place for an answer.
pub type Place<'a, T> = Option<&'a mut MaybeUninit<T>>;

/// The outcome as C has it.
pub fn answer(outcome: Outcome) -> CUresult {
    outcome.err().unwrap_or(CUresult::CUDA_SUCCESS)
}

/// Puts a value where the caller wants it.
///
/// # Errors
/// It is wanted nowhere.
pub fn give<T>(place: Place<'_, T>, value: T) -> Outcome {
    let place = place.ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
    place.write(value);
    Ok(())
}

/// Fails with that error unless something holds.
///
/// # Errors
/// The one given.
pub fn expect(holds: bool, error: CUresult) -> Outcome {
    holds.then_some(()).ok_or(error)
}

/// Tells whoever reads the process's errors why a call fails, where its code says too little.
pub fn tell(why: &dyn Display) {
    let _ = writeln!(std::io::stderr(), "played CUDA: {why}");
}

/// Whether work can still be done: the first failure of a launch is what every later call comes to.
#[derive(Debug, Default)]
pub struct Health(OnceLock<CUresult>);

/// That of this process.
pub static HEALTH: Health = Health::new();

impl Health {
    /// Nothing has failed.
    pub const fn new() -> Self {
        Self(OnceLock::new())
    }

    /// # Errors
    /// The one that stays.
    pub fn check(&self) -> Outcome {
        self.0.get().map_or(Ok(()), |error| Err(*error))
    }

    /// Everything fails from here on.
    pub fn fail(&self, error: CUresult) {
        // The first one stays.
        let _ = self.0.set(error);
    }
}

/// As `CUresult` has it in C.
#[unsafe(no_mangle)]
pub extern "C" fn cuGetErrorName(error: CUresult, text: Place<'_, *const c_char>) -> CUresult {
    answer(give(text, name(error).as_ptr()))
}

/// Callers keep names for as long as they like.
fn name(error: CUresult) -> &'static CStr {
    static NAMES: Mutex<BTreeMap<CUresult, &'static CStr>> = Mutex::new(BTreeMap::new());
    NAMES.lock().entry(error).or_insert_with(|| {
        let name = CString::new(format!("{error:?}")).unwrap_or_default();
        Box::leak(name.into_boxed_c_str())
    })
}

/// What a call puts into the place that it is given.
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
        // SAFETY: the call has succeeded, and gave a string that lives on.
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
