//! Events: positions in a stream that callers query and wait for.

use super::devices::Device;
use super::errors::{HEALTH, Outcome, Place, answer, expect, give};
use super::handles::{Handles, pointer};
use super::streams::Stream;
use cudarc::driver::sys::{CUevent, CUresult, CUstream};
use parking_lot::Mutex;
use std::ffi::c_uint;
use std::sync::Arc;

static EVENTS: Handles<Event> = Handles::new();

/// Last recorded position. An event without one counts as reached.
#[derive(Debug, Default)]
pub struct Event(Mutex<Option<(Arc<Stream>, u64)>>);

impl Event {
    /// Records the event behind all work of a stream.
    ///
    /// # Errors
    /// The stream is being recorded.
    pub fn record(&self, stream: Arc<Stream>) -> Outcome {
        let end = stream.end()?;
        *self.0.lock() = Some((stream, end));
        Ok(())
    }

    /// Whether the stream has reached it.
    pub fn is_reached(&self) -> bool {
        let place = self.0.lock();
        place
            .as_ref()
            .is_none_or(|(stream, at)| stream.is_past(*at))
    }

    /// Waits until the stream reaches it.
    ///
    /// # Errors
    /// The sticky error.
    pub fn wait(&self) -> Outcome {
        let place = self.0.lock().clone();
        place.map_or(Ok(()), |(stream, at)| stream.wait(at))
    }
}

/// Creates an event. None of them measures time.
#[unsafe(no_mangle)]
pub extern "C" fn cuEventCreate(event: Place<'_, CUevent>, _flags: c_uint) -> CUresult {
    answer(Device::current().and_then(|_| give(event, pointer(EVENTS.add(Arc::default())))))
}

/// Records the event behind all work of the stream.
#[unsafe(no_mangle)]
pub extern "C" fn cuEventRecord(event: CUevent, stream: CUstream) -> CUresult {
    answer(HEALTH.check().and_then(|()| {
        let event = EVENTS.get(event.addr())?;
        event.record(Stream::of(stream)?)
    }))
}

/// Whether the stream has reached the event.
#[unsafe(no_mangle)]
pub extern "C" fn cuEventQuery(event: CUevent) -> CUresult {
    answer(EVENTS.get(event.addr()).and_then(|event| {
        let is_reached = event.is_reached();
        // Checked after the event: work before it has failed by then, if it fails.
        HEALTH.check()?;
        expect(is_reached, CUresult::CUDA_ERROR_NOT_READY)
    }))
}

/// Waits until the stream reaches the event.
#[unsafe(no_mangle)]
pub extern "C" fn cuEventSynchronize(event: CUevent) -> CUresult {
    let event = EVENTS.get(event.addr());
    answer(
        event
            .and_then(|event| event.wait())
            .and_then(|()| HEALTH.check()),
    )
}
