//! Streams in the middle of which their worker loses its child, or is replaced by another supervisor.

use crate::process;
use crate::told::Answer;
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

/// A streamed answer whose child is killed behind its first five events is the one that nothing happened to.
///
/// # Panics
/// When it is another one, or the child died beside it.
pub fn goes_on_behind_a_death(name: &str, worker: &Worker, path: &'static str, body: &Value) {
    let client = worker.client();
    let calm = Answer::whole(&client, path, body);
    // A few tokens may be told in one event.
    let least = body["max_tokens"].as_u64().expect("a limit") / 3;
    assert!(calm.len() as u64 > least.max(10), "{name}: {calm:?}");
    let (mut disturbed, rest) = Answer::begin(&client, path, body, 5);
    worker.kill_child();
    disturbed.extend(rest);
    assert_eq!(disturbed.told(), calm, "{name}");
    let reports = worker.crash_reports();
    assert_eq!(reports.len(), 1, "{name}");
    assert_eq!(reports[0]["requests"]["count"], 1, "{name}: in its middle");
}
