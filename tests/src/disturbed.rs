//! Streams in the middle of which their worker loses its child, or is replaced by another supervisor.

use crate::process;
use crate::worker::Worker;
use nix::sys::signal::Signal;
use serde_json::Value;

/// What happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Disturbance {
    /// The child gets SIGKILL.
    Killed,
    /// Another supervisor takes over.
    Replaced,
}

impl Disturbance {
    pub const ALL: [Self; 2] = [Self::Killed, Self::Replaced];

    /// The data of each event of a stream, in which this happens behind the first `events`. `body` asks for a
    /// stream.
    ///
    /// # Panics
    /// When the stream is refused or breaks off.
    #[must_use]
    pub fn of_stream(
        self,
        worker: &Worker,
        path: &str,
        body: &Value,
        events: usize,
    ) -> Vec<String> {
        let mut stream = worker.client().stream(path, body).map(|it| it.data);
        let mut all: Vec<String> = stream.by_ref().take(events).collect();
        match self {
            Self::Killed => worker.kill_child(),
            Self::Replaced => process::signal(worker.pid(), Signal::SIGUSR2),
        }
        all.extend(stream);
        all
    }
}
