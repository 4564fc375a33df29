//! Upstream half of the connection: sends events as whole frames, one at a time, from any thread, and the final event.

use crate::exit::ExitHook;
use std::fmt;
use std::io::{self, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use worker_orcd_ipc::frame::write_frame;
use worker_orcd_ipc::{Envelope, Event, ExitCode, Fault, Generation, Preamble, encode};

/// Time for which a panicking thread waits for another to finish its message.
const LAST_WORDS_PATIENCE: Duration = Duration::from_millis(200);

pub struct Link {
    generation: Generation,
    sink: Mutex<FrameSink>,
    exit: ExitHook,
}

struct FrameSink {
    writer: Box<dyn Write + Send>,
    /// The preamble precedes the first frame.
    has_sent_preamble: bool,
    /// The final event is sent.
    is_closed: bool,
}

impl Link {
    #[must_use]
    pub fn new(
        writer: impl Write + Send + 'static,
        generation: Generation,
        exit: ExitHook,
    ) -> Self {
        let writer = Box::new(writer);
        let sink = FrameSink {
            writer,
            has_sent_preamble: false,
            is_closed: false,
        };
        Self {
            generation,
            sink: Mutex::new(sink),
            exit,
        }
    }

    /// Sends an event. False if the connection has ended; the caller then stops. A supervisor that does not read any
    /// more counts as gone.
    pub(super) fn send(&self, event: Event) -> bool {
        self.send_each(|| [event])
    }

    /// Sends several events, created while no other thread can send: they are never older than earlier events.
    pub(super) fn send_each<I: IntoIterator<Item = Event>>(
        &self,
        events: impl FnOnce() -> I,
    ) -> bool {
        let mut sink = self.lock();
        if sink.is_closed {
            return false;
        }
        for event in events() {
            if let Err(error) = sink.write_event(self.generation, event) {
                eprintln!("worker-orcd-gpu: the supervisor cannot be reached: {error}");
                sink.is_closed = true;
                (self.exit)(ExitCode::SupervisorLost);
                return false;
            }
        }
        true
    }

    /// Reports the fault, then exits with its exit code.
    pub fn last_words(&self, fault: Fault) {
        let code = fault.exit_code();
        self.finish(&mut self.lock(), Event::Fault(fault), code);
    }

    /// Acknowledges a shutdown and exits.
    pub(super) fn goodbye(&self) {
        self.finish(&mut self.lock(), Event::Goodbye, ExitCode::Clean);
    }

    /// Exits because the supervisor is gone.
    pub(super) fn lost(&self) {
        (self.exit)(ExitCode::SupervisorLost);
        self.lock().is_closed = true;
    }

    /// Final event of a panic hook. The wait is bounded, because the panicking thread may hold the lock.
    pub fn try_last_words(&self, fault: Fault) {
        const STEP: Duration = Duration::from_millis(5);
        let code = fault.exit_code();
        let mut waited = Duration::ZERO;
        while waited < LAST_WORDS_PATIENCE {
            if let Ok(mut sink) = self.sink.try_lock() {
                return self.finish(&mut sink, Event::Fault(fault), code);
            }
            std::thread::sleep(STEP);
            waited += STEP;
        }
    }

    /// Exits while the lock is held, so that no event follows the final one.
    fn finish(&self, sink: &mut FrameSink, event: Event, code: ExitCode) {
        if std::mem::replace(&mut sink.is_closed, true) {
            return;
        }
        // Written to stderr only if it could not be sent: a cause reported twice looks like two.
        let words = format!("{event:?}");
        if let Err(error) = sink.write_event(self.generation, event) {
            eprintln!("worker-orcd-gpu: the last words were not heard: {error}: {words}");
        }
        (self.exit)(code);
    }

    fn lock(&self) -> MutexGuard<'_, FrameSink> {
        // A panic ends the process, so only tests see a poisoned lock.
        self.sink.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FrameSink {
    fn write_event(&mut self, generation: Generation, event: Event) -> io::Result<()> {
        let mut bytes = Vec::new();
        if !std::mem::replace(&mut self.has_sent_preamble, true) {
            bytes.extend_from_slice(&Preamble::OURS.to_bytes());
        }
        let payload = encode(&Envelope { generation, event }).map_err(io::Error::other)?;
        write_frame(&mut bytes, &payload).map_err(io::Error::other)?;
        self.writer.write_all(&bytes)?;
        self.writer.flush()
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link")
            .field("generation", &self.generation)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read as _, pipe};
    use std::sync::Arc;
    use std::thread;
    use worker_orcd_ipc::{FrameReader, decode};

    /// Otherwise a progress report created before the child was ready could follow its Ready.
    #[test]
    fn events_are_made_when_no_other_thread_can_send() {
        let (mut reader, writer) = pipe().expect("a pipe");
        let link = Arc::new(Link::new(writer, Generation(3), Arc::new(|_| {})));
        let other = Arc::clone(&link);
        let mut sending = None;
        let is_sent = link.send_each(|| {
            sending = Some(thread::spawn(move || other.send(Event::Goodbye)));
            thread::sleep(Duration::from_millis(50));
            [Event::LoadProgress {
                bytes_done: 1,
                bytes_total: 2,
            }]
        });
        assert!(is_sent);
        assert!(sending.expect("a thread").join().expect("it ends"));
        drop(link);
        let mut bytes = Vec::new();
        reader.read_to_end(&mut bytes).expect("frames");
        let mut frames = FrameReader::new();
        frames.push(&bytes);
        let mut next = || {
            let payload = frames.next_frame().expect("frames").expect("a frame");
            decode::<Envelope>(payload).expect("an event").event
        };
        assert!(matches!(next(), Event::LoadProgress { .. }));
        assert_eq!(next(), Event::Goodbye);
    }
}
