//! Streams: what is put into one is done in order, by a thread of its own.
//!
//! Once an error stays, whatever is still in a queue is passed over, so that nobody waits for it.

use super::devices::Device;
use super::errors::{HEALTH, Health, Outcome, Place, answer, give};
use super::handles::{Handles, pointer};
use cudarc::driver::sys::{CUresult, CUstream};
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::ffi::c_uint;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;

/// One thing to do: by a stream's thread, and by graphs more than once. Its error stays.
pub type Work = Arc<dyn Fn() -> Outcome + Send + Sync>;

static STREAMS: Handles<Stream> = Handles::new();

/// A queue of work. It is there as long as the process, as is its thread.
#[derive(Debug)]
pub struct Stream {
    state: Mutex<State>,
    changed: Condvar,
    health: &'static Health,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Work>,
    /// Pieces of work that were ever put in, and those that are over.
    accepted: u64,
    over: u64,
    /// What was put in since recording began.
    recorded: Option<Vec<Work>>,
}

impl std::fmt::Debug for State {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(to, "{} of {} over", self.over, self.accepted)
    }
}

impl Stream {
    /// # Errors
    /// There is no thread to be had.
    pub fn start(health: &'static Health) -> Outcome<Arc<Self>> {
        let stream = Arc::new(Self {
            state: Mutex::default(),
            changed: Condvar::new(),
            health,
        });
        let own = Arc::clone(&stream);
        let thread = thread::Builder::new().name("played-stream".to_owned());
        let started = thread.spawn(move || own.work());
        started.map_err(|_| CUresult::CUDA_ERROR_OPERATING_SYSTEM)?;
        Ok(stream)
    }

    /// # Errors
    /// It is no stream.
    pub fn of(handle: CUstream) -> Outcome<Arc<Self>> {
        STREAMS.get(handle.addr())
    }

    /// The thread's life.
    fn work(&self) {
        let mut state = self.state.lock();
        loop {
            let Some(work) = state.waiting.pop_front() else {
                self.changed.wait(&mut state);
                continue;
            };
            drop(state);
            if self.health.check().is_ok() {
                // Whoever waits must learn that nothing comes any more; the panic has told why.
                let outcome = catch_unwind(AssertUnwindSafe(|| work()));
                if let Err(error) = outcome.unwrap_or(Err(CUresult::CUDA_ERROR_UNKNOWN)) {
                    self.health.fail(error);
                }
            }
            drop(work);
            state = self.state.lock();
            state.over += 1;
            self.changed.notify_all();
        }
    }

    /// Puts work behind all that is there, or into the recording.
    ///
    /// # Errors
    /// The error that stays.
    pub fn add(&self, work: Work) -> Outcome {
        self.health.check()?;
        let mut state = self.state.lock();
        if let Some(recorded) = &mut state.recorded {
            recorded.push(work);
            return Ok(());
        }
        state.accepted += 1;
        state.waiting.push_back(work);
        self.changed.notify_all();
        Ok(())
    }

    /// From here on, work is recorded and not done.
    ///
    /// # Errors
    /// It is being recorded already.
    pub fn begin_recording(&self) -> Outcome {
        self.health.check()?;
        let mut state = self.state.lock();
        if state.recorded.is_some() {
            return Err(CUresult::CUDA_ERROR_ILLEGAL_STATE);
        }
        state.recorded = Some(Vec::new());
        Ok(())
    }

    /// What was recorded.
    ///
    /// # Errors
    /// Nothing is being recorded, or the error that stays.
    pub fn end_recording(&self) -> Outcome<Vec<Work>> {
        let recorded = self.state.lock().recorded.take();
        self.health.check()?;
        recorded.ok_or(CUresult::CUDA_ERROR_ILLEGAL_STATE)
    }

    /// Whether work is recorded and not done.
    pub fn is_recorded(&self) -> bool {
        self.state.lock().recorded.is_some()
    }

    /// The place behind all work that is there: as many pieces as were ever put in.
    ///
    /// # Errors
    /// It is being recorded: what is put in now has no place yet.
    pub fn end(&self) -> Outcome<u64> {
        let state = self.state.lock();
        match state.recorded {
            Some(_) => Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED),
            None => Ok(state.accepted),
        }
    }

    /// Whether all work in front of a place is over.
    pub fn is_past(&self, place: u64) -> bool {
        self.state.lock().over >= place
    }

    /// Waits until all work in front of a place is over.
    ///
    /// # Errors
    /// The error that stays.
    pub fn wait(&self, place: u64) -> Outcome {
        let mut state = self.state.lock();
        self.changed
            .wait_while(&mut state, |state| state.over < place);
        drop(state);
        self.health.check()
    }
}

/// Waits for all work that is in any stream.
pub fn wait_for_all() {
    for stream in STREAMS.all() {
        let end = stream.state.lock().accepted;
        // What it ended with is for others to look at.
        let _ = stream.wait(end);
    }
}

/// No stream here waits for a legacy one, so all flags are one.
#[unsafe(no_mangle)]
pub extern "C" fn cuStreamCreate(stream: Place<'_, CUstream>, _flags: c_uint) -> CUresult {
    answer(Device::current().and_then(|_| {
        let handle = STREAMS.add(Stream::start(&HEALTH)?);
        give(stream, pointer(handle))
    }))
}

/// Waits for all that is in the stream.
#[unsafe(no_mangle)]
pub extern "C" fn cuStreamSynchronize(stream: CUstream) -> CUresult {
    answer(HEALTH.check().and_then(|()| {
        let stream = Stream::of(stream)?;
        stream.wait(stream.end()?)
    }))
}

/// A stream of a test, in the first device's context, which becomes the thread's.
#[cfg(test)]
pub fn stream() -> CUstream {
    super::devices::enter();
    pointer(STREAMS.add(Stream::start(&HEALTH).expect("a thread")))
}

#[cfg(test)]
mod tests;
