//! Handles of callers: numbers, as pointers that are never dereferenced.

use super::errors::Outcome;
use cudarc::driver::sys::CUresult;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ptr;
use std::sync::Arc;

/// Live objects of one kind.
#[derive(Debug)]
pub struct Handles<T>(Mutex<Known<T>>);

#[derive(Debug)]
struct Known<T> {
    /// Last handle. No handle is reused.
    last: usize,
    things: BTreeMap<usize, Arc<T>>,
}

impl<T> Handles<T> {
    /// Empty table.
    pub const fn new() -> Self {
        Self(Mutex::new(Known {
            last: 0,
            things: BTreeMap::new(),
        }))
    }

    /// Adds an object and returns its handle, which is not zero.
    pub fn add(&self, thing: Arc<T>) -> usize {
        let mut known = self.0.lock();
        known.last += 1;
        let handle = known.last;
        known.things.insert(handle, thing);
        handle
    }

    /// # Errors
    /// The handle is invalid or was removed.
    pub fn get(&self, handle: usize) -> Outcome<Arc<T>> {
        let known = self.0.lock();
        let thing = known.things.get(&handle).map(Arc::clone);
        thing.ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)
    }

    /// Removes an object.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn remove(&self, handle: usize) -> Outcome<Arc<T>> {
        let thing = self.0.lock().things.remove(&handle);
        thing.ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)
    }

    /// All live objects.
    pub fn all(&self) -> Vec<Arc<T>> {
        self.0.lock().things.values().map(Arc::clone).collect()
    }
}

/// Handle as a C pointer.
pub fn pointer<P>(handle: usize) -> *mut P {
    ptr::without_provenance_mut(handle)
}
