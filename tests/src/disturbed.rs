//! Streams that are disturbed in the middle by the death of the child or an upgrade of the supervisor.

use crate::process;
use crate::streamed_answer::Answer;
use crate::worker::Worker;
use nix::sys::signal::Signal;
use serde_json::Value;

/// Disturbance of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Disturbance {
    /// SIGKILL to the child.
    Killed,
    /// Upgrade of the supervisor.
    Replaced,
}

impl Disturbance {
    pub const ALL: [Self; 2] = [Self::Killed, Self::Replaced];

    /// Data of each event of a stream that is disturbed after the first `events`. `body` requests a stream.
    ///
    /// # Panics
    /// The stream is refused or breaks off.
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

/// Asserts that a streamed answer is unchanged when its child is killed after the first five events.
///
/// # Panics
/// It differs, or the child died too late.
pub fn goes_on_behind_a_death(name: &str, worker: &Worker, path: &'static str, body: &Value) {
    let client = worker.client();
    let calm = Answer::whole(&client, path, body);
    // One event may contain a few tokens.
    let least = body["max_tokens"].as_u64().expect("a limit") / 3;
    assert!(calm.len() as u64 > least.max(10), "{name}: {calm:?}");
    let (mut disturbed, rest) = Answer::begin(&client, path, body, 5);
    worker.kill_child();
    disturbed.extend(rest);
    assert_eq!(disturbed.normalized(), calm, "{name}");
    let reports = worker.crash_reports();
    assert_eq!(reports.len(), 1, "{name}");
    assert_eq!(reports[0]["requests"]["count"], 1, "{name}: in its middle");
}
