//! The way up: events as whole frames, one at a time, from any thread; and the last of them.

use crate::exit::ExitHook;
use std::fmt;
use std::io::{self, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use worker_orcd_ipc::frame::write_frame;
use worker_orcd_ipc::{Envelope, Event, ExitCode, Fault, Generation, Preamble, encode};

/// Time that a panicking thread waits for another to finish its message.
const LAST_WORDS_PATIENCE: Duration = Duration::from_millis(200);

pub struct Link {
    generation: Generation,
    sink: Mutex<FrameSink>,
    exit: ExitHook,
}

struct FrameSink {
    writer: Box<dyn Write + Send>,
    /// The preamble goes out in front of the first frame.
    has_sent_preamble: bool,
    /// The last words are said.
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

    /// False when the conversation is over; then there is nothing more to do for the caller. A
    /// supervisor that does not listen any more is a supervisor that is gone.
    pub(super) fn send(&self, event: Event) -> bool {
        self.send_each(|| [event])
    }

    /// The same of several events, which are made when no other thread can send: they are never older than what was
    /// sent before them.
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

    /// Tells the supervisor why, then ends with the fault's exit code.
    pub fn last_words(&self, fault: Fault) {
        let code = fault.exit_code();
        self.finish(&mut self.lock(), Event::Fault(fault), code);
    }

    /// The answer to an order to go.
    pub(super) fn goodbye(&self) {
        self.finish(&mut self.lock(), Event::Goodbye, ExitCode::Clean);
    }

    /// The end when the supervisor is gone.
    pub(super) fn lost(&self) {
        (self.exit)(ExitCode::SupervisorLost);
        self.lock().is_closed = true;
    }

    /// Last words of a panic hook: never waits long, because the panicking thread may hold the
    /// lock.
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

    /// Ends while the lock is held, so that nothing is said after the last words.
    fn finish(&self, sink: &mut FrameSink, event: Event, code: ExitCode) {
        if std::mem::replace(&mut sink.is_closed, true) {
            return;
        }
        // Written to stderr only where it could not be sent: a cause that is told twice looks like two.
        let words = format!("{event:?}");
        if let Err(error) = sink.write_event(self.generation, event) {
            eprintln!("worker-orcd-gpu: the last words were not heard: {error}: {words}");
        }
        (self.exit)(code);
    }

    fn lock(&self) -> MutexGuard<'_, FrameSink> {
        // A panic ends the process, so a poisoned lock is only seen by tests.
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

    /// A report of a load that was made before the child was ready would come after its Ready.
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
