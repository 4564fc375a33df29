//! What callers know things by: numbers, in the shape of pointers to nothing.

use super::errors::Outcome;
use cudarc::driver::sys::CUresult;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ptr;
use std::sync::Arc;

/// The things of one kind that there are.
#[derive(Debug)]
pub struct Handles<T>(Mutex<Known<T>>);

#[derive(Debug)]
struct Known<T> {
    /// The handle given last. None is given twice.
    last: usize,
    things: BTreeMap<usize, Arc<T>>,
}

impl<T> Handles<T> {
    /// None yet.
    pub const fn new() -> Self {
        Self(Mutex::new(Known {
            last: 0,
            things: BTreeMap::new(),
        }))
    }

    /// Takes a thing in, and gives its handle, which is not zero.
    pub fn add(&self, thing: Arc<T>) -> usize {
        let mut known = self.0.lock();
        known.last += 1;
        let handle = known.last;
        known.things.insert(handle, thing);
        handle
    }

    /// # Errors
    /// It is no handle, or none any more.
    pub fn get(&self, handle: usize) -> Outcome<Arc<T>> {
        let known = self.0.lock();
        let thing = known.things.get(&handle).map(Arc::clone);
        thing.ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)
    }

    /// Lets go of a thing.
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    pub fn remove(&self, handle: usize) -> Outcome<Arc<T>> {
        let thing = self.0.lock().things.remove(&handle);
        thing.ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)
    }

    /// All that there are now.
    pub fn all(&self) -> Vec<Arc<T>> {
        self.0.lock().things.values().map(Arc::clone).collect()
    }
}

/// A handle as C has it.
pub fn pointer<P>(handle: usize) -> *mut P {
    ptr::without_provenance_mut(handle)
}
