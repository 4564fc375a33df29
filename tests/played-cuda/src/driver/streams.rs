//! Streams: queues of work, each with a thread that does it in order.
//!
//! After a sticky error the rest of each queue is skipped, so that waits end.

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

/// Unit of work. Graphs repeat it. Its error is sticky.
pub type Work = Arc<dyn Fn() -> Outcome + Send + Sync>;

static STREAMS: Handles<Stream> = Handles::new();

/// Queue of work, with its thread. Both live as long as the process.
#[derive(Debug)]
pub struct Stream {
    state: Mutex<State>,
    changed: Condvar,
    health: &'static Health,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Work>,
    /// Work ever added, and work that is over.
    accepted: u64,
    over: u64,
    /// Work added since recording began.
    recorded: Option<Vec<Work>>,
}

impl std::fmt::Debug for State {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(to, "{} of {} over", self.over, self.accepted)
    }
}

impl Stream {
    /// # Errors
    /// No thread can be started.
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
    /// The handle is not a stream.
    pub fn of(handle: CUstream) -> Outcome<Arc<Self>> {
        STREAMS.get(handle.addr())
    }

    /// Loop of the thread.
    fn work(&self) {
        let mut state = self.state.lock();
        loop {
            let Some(work) = state.waiting.pop_front() else {
                self.changed.wait(&mut state);
                continue;
            };
            drop(state);
            if self.health.check().is_ok() {
                // Waits must end after a panic. Its message is printed already.
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

    /// Adds work to the queue, or to the recording.
    ///
    /// # Errors
    /// The sticky error.
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

    /// Begins a recording: work is recorded and not done.
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

    /// Ends the recording and returns its work.
    ///
    /// # Errors
    /// Nothing is being recorded, or the sticky error.
    pub fn end_recording(&self) -> Outcome<Vec<Work>> {
        let recorded = self.state.lock().recorded.take();
        self.health.check()?;
        recorded.ok_or(CUresult::CUDA_ERROR_ILLEGAL_STATE)
    }

    /// Whether work is recorded instead of done.
    pub fn is_recorded(&self) -> bool {
        self.state.lock().recorded.is_some()
    }

    /// Position behind all work of the queue: the number of units ever added.
    ///
    /// # Errors
    /// The stream is being recorded: its work has no position yet.
    pub fn end(&self) -> Outcome<u64> {
        let state = self.state.lock();
        match state.recorded {
            Some(_) => Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED),
            None => Ok(state.accepted),
        }
    }

    /// Whether all work before a position is over.
    pub fn is_past(&self, place: u64) -> bool {
        self.state.lock().over >= place
    }

    /// Waits until all work before a position is over.
    ///
    /// # Errors
    /// The sticky error.
    pub fn wait(&self, place: u64) -> Outcome {
        let mut state = self.state.lock();
        self.changed
            .wait_while(&mut state, |state| state.over < place);
        drop(state);
        self.health.check()
    }
}

/// Waits for all work of all streams.
pub fn wait_for_all() {
    for stream in STREAMS.all() {
        let end = stream.state.lock().accepted;
        // The result is left to other callers.
        let _ = stream.wait(end);
    }
}

/// Creates a stream. There is no legacy stream, so flags have no effect.
#[unsafe(no_mangle)]
pub extern "C" fn cuStreamCreate(stream: Place<'_, CUstream>, _flags: c_uint) -> CUresult {
    answer(Device::current().and_then(|_| {
        let handle = STREAMS.add(Stream::start(&HEALTH)?);
        give(stream, pointer(handle))
    }))
}

/// Waits for all work of the stream.
#[unsafe(no_mangle)]
pub extern "C" fn cuStreamSynchronize(stream: CUstream) -> CUresult {
    answer(HEALTH.check().and_then(|()| {
        let stream = Stream::of(stream)?;
        stream.wait(stream.end()?)
    }))
}

/// Stream for a test, in the first device's context, which becomes the thread's.
#[cfg(test)]
pub fn stream() -> CUstream {
    super::devices::enter();
    pointer(STREAMS.add(Stream::start(&HEALTH).expect("a thread")))
}

#[cfg(test)]
mod tests;
