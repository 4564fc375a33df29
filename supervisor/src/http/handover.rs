//! Handover of open connections to the next supervisor.
//!
//! ```text
//! serving ──→ quiet ──────────────────→ leaving
//!             a moment: no request      each connection stops at its present byte. Left of it: its socket, bytes in
//!             enters the journal,       either direction, and its answer's job. A request that is not in the journal
//!             probes are answered       is left as its bytes
//! ```
//!
//! A slow client delays nothing: the received part of a request is handed over and read again, and an answer from
//! outside the journal (embeddings, tokens) is computed again. Two kinds of request cannot be handed over and delay the
//! handover while other requests proceed: one over TLS, and one with a chunked body until it is complete.
//!
//! Running answers continue in `quiet`. In `leaving` no more text is taken from the journal, even if more is ready. The
//! handover includes the bytes that hyper has taken and the number of pieces in them: each client receives each byte
//! exactly once.

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, timeout, timeout_at};
use worker_orcd_requests::Skip;

/// Time for requests to finish their entry into the journal, which takes one turn of their task.
const SHORT: Duration = Duration::from_millis(20);

/// Pause between two attempts to quiesce.
const PAUSE: Duration = Duration::from_millis(50);

/// Time for connections to stop, which takes one turn of their task.
const LEAVE: Duration = Duration::from_secs(2);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    Serving,
    Quiet,
    Leaving,
}

/// State of a connection, except its socket.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnectionNote {
    /// Bytes for the client that did not fit into the socket.
    #[serde(with = "as_base64")]
    pub unsent: Vec<u8>,
    /// Bytes from the client that belong to no request yet.
    #[serde(with = "as_base64")]
    pub unread: Vec<u8>,
    pub answer: Option<Answer>,
    /// The connection closes after the unsent bytes.
    pub closes: bool,
}

/// Answer in progress on a connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    pub job_id: String,
    pub correlation_id: String,
    /// Requested path, without the job id.
    pub path: String,
    /// The client's `Origin`, for the headers of an answer that has not begun.
    pub origin: Option<String>,
    /// Received position in each part of the text. `None`: the client does not have the head yet.
    pub sent: Option<Vec<Skip>>,
    pub old_http: bool,
    /// The connection closes after the answer.
    pub closes: bool,
}

#[derive(Debug)]
pub struct Left {
    pub note: ConnectionNote,
    pub socket: OwnedFd,
}

/// State shared by all connections and listeners of a server.
#[derive(Debug)]
pub struct Handover {
    stage: watch::Sender<Stage>,
    /// Requests that are entering the journal.
    entering: watch::Sender<usize>,
    /// Requests on connections that cannot be handed over at present.
    bound: watch::Sender<usize>,
    /// Sender cloned by each connection and listener.
    leave: Mutex<Option<mpsc::UnboundedSender<Left>>>,
    left: Mutex<Option<mpsc::UnboundedReceiver<Left>>>,
}

impl Default for Handover {
    fn default() -> Self {
        let (leave, left) = mpsc::unbounded_channel();
        Self {
            stage: watch::Sender::new(Stage::Serving),
            entering: watch::Sender::new(0),
            bound: watch::Sender::new(0),
            leave: Mutex::new(Some(leave)),
            left: Mutex::new(Some(left)),
        }
    }
}

impl Handover {
    #[must_use]
    pub fn stage(&self) -> Stage {
        *self.stage.borrow()
    }

    #[must_use]
    pub fn stages(&self) -> watch::Receiver<Stage> {
        self.stage.subscribe()
    }

    /// Sender for a connection or a listener. `None`: the handover is over.
    #[must_use]
    pub fn door(&self) -> Option<mpsc::UnboundedSender<Left>> {
        self.leave.lock().clone()
    }

    /// Prevents a handover until the guard is dropped.
    #[must_use]
    pub fn bind(self: &Arc<Self>) -> Held {
        Held::new(self, |handover| &handover.bound)
    }

    /// Waits until requests may begin.
    pub async fn begin(&self) {
        serving(&mut self.stages()).await;
    }

    /// Waits until requests may enter the journal. The request counts as entering until the guard is dropped.
    pub async fn enter(self: &Arc<Self>) -> Held {
        let mut stages = self.stages();
        loop {
            let held = Held::new(self, |handover| &handover.entering);
            if *stages.borrow_and_update() == Stage::Serving {
                return held;
            }
            drop(held);
            serving(&mut stages).await;
        }
    }

    /// Waits until an answer from outside the journal may be sent. Never returns during a handover: the next supervisor
    /// answers.
    pub async fn may_answer(&self) {
        serving(&mut self.stages()).await;
    }

    /// Holds new requests until [`release`](Self::release).
    pub fn hold(&self) {
        self.stage.send_replace(Stage::Quiet);
    }

    /// Ends [`hold`](Self::hold).
    pub fn release(&self) {
        self.stage.send_replace(Stage::Serving);
    }

    /// Quiesces: waits until no request is bound to this supervisor, and lets none begin after that. Returns false
    /// after `patience`, with the previous stage restored. A cancelled call does not restore it.
    pub async fn quiesce(&self, patience: Duration) -> bool {
        let until = Instant::now() + patience;
        loop {
            if timeout_at(until, none(&self.bound)).await.is_err() {
                return false;
            }
            self.stage.send_replace(Stage::Quiet);
            let none_is_left = async {
                none(&self.entering).await;
                none(&self.bound).await;
            };
            if timeout(SHORT, none_is_left).await.is_ok() {
                return true;
            }
            self.release();
            if Instant::now() >= until {
                return false;
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Stops all connections and collects their state. Must be called once.
    pub async fn collect(&self) -> Vec<Left> {
        self.stage.send_replace(Stage::Leaving);
        drop(self.leave.lock().take());
        let Some(mut left) = self.left.lock().take() else {
            return Vec::new();
        };
        let mut all = Vec::new();
        let each = async {
            while let Some(one) = left.recv().await {
                all.push(one);
            }
        };
        if timeout(LEAVE, each).await.is_err() {
            tracing::warn!("connections_left_behind");
        }
        all
    }
}

/// Guard that counts while it lives.
#[derive(Debug)]
pub struct Held {
    handover: Arc<Handover>,
    count: fn(&Handover) -> &watch::Sender<usize>,
}

impl Held {
    fn new(handover: &Arc<Handover>, count: fn(&Handover) -> &watch::Sender<usize>) -> Self {
        count(handover).send_modify(|count| *count += 1);
        Self {
            handover: Arc::clone(handover),
            count,
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        (self.count)(&self.handover).send_modify(|count| *count -= 1);
    }
}

async fn none(count: &watch::Sender<usize>) {
    drop(count.subscribe().wait_for(|count| *count == 0).await);
}

/// Waits for the serving stage. Never returns during a handover.
async fn serving(stages: &mut watch::Receiver<Stage>) {
    if stages
        .wait_for(|stage| *stage == Stage::Serving)
        .await
        .is_err()
    {
        std::future::pending::<()>().await;
    }
}

impl Answer {
    /// Request with which the next supervisor resumes the answer.
    #[must_use]
    pub fn request(&self) -> Vec<u8> {
        let version = if self.old_http { "1.0" } else { "1.1" };
        let connection = match (self.old_http, self.closes) {
            (_, true) => "connection: close\r\n",
            (true, false) => "connection: keep-alive\r\n",
            (false, false) => "",
        };
        let origin = self.origin.as_ref();
        let origin = origin.map_or_else(String::new, |origin| format!("origin: {origin}\r\n"));
        format!(
            "GET {}/{} HTTP/{version}\r\nhost: localhost\r\nx-correlation-id: {}\r\n{origin}{connection}\r\n",
            self.path,
            percent_encoded(&self.job_id),
            self.correlation_id,
        )
        .into_bytes()
    }
}

/// Bytes as base64 in a text document: a third longer.
mod as_base64 {
    use base64::Engine as _;
    use base64::prelude::BASE64_STANDARD;
    use serde::de::Error as _;
    use serde::{Deserialize as _, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(bytes: &[u8], to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&BASE64_STANDARD.encode(bytes))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
        let text = String::deserialize(from)?;
        BASE64_STANDARD.decode(text).map_err(D::Error::custom)
    }
}

/// Percent-encodes a path segment (RFC 3986, section 2.3).
fn percent_encoded(step: &str) -> String {
    let mut encoded = String::with_capacity(step.len());
    for byte in step.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                encoded.push(char::from(byte));
            }
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_job_id_is_one_step_of_a_path() {
        let answer = Answer {
            job_id: "a/b ü?".to_owned(),
            correlation_id: "c".to_owned(),
            path: "/execute".to_owned(),
            origin: None,
            sent: Some(vec![Skip::Pieces(3)]),
            old_http: false,
            closes: true,
        };
        let request = String::from_utf8(answer.request()).unwrap();
        let expected = "GET /execute/a%2Fb%20%C3%BC%3F HTTP/1.1\r\nhost: localhost\r\n\
                        x-correlation-id: c\r\nconnection: close\r\n\r\n";
        assert_eq!(request, expected);
    }

    const SOON: Duration = Duration::from_millis(1);

    #[tokio::test]
    async fn a_request_that_enters_the_journal_is_waited_for_and_a_new_one_is_not_let_in() {
        let handover = Arc::new(Handover::default());
        let entering = handover.enter().await;
        assert!(!handover.quiesce(SOON).await);
        assert_eq!(handover.stage(), Stage::Serving, "nothing happened");
        drop(entering);
        assert!(handover.quiesce(SOON).await);
        assert_eq!(handover.stage(), Stage::Quiet);
        assert!(timeout(SOON, handover.enter()).await.is_err());
        assert!(timeout(SOON, handover.begin()).await.is_err());
        assert!(timeout(SOON, handover.may_answer()).await.is_err());
        assert!(handover.collect().await.is_empty());
        assert!(handover.door().is_none());
    }

    #[tokio::test]
    async fn a_request_that_cannot_be_handed_over_delays_no_other() {
        let handover = Arc::new(Handover::default());
        let bound = handover.bind();
        let quiescing = tokio::spawn({
            let handover = Arc::clone(&handover);
            async move { handover.quiesce(Duration::from_millis(300)).await }
        });
        while !quiescing.is_finished() {
            assert_eq!(handover.stage(), Stage::Serving);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert!(!quiescing.await.expect("it ends"));
        drop(bound);
        assert!(handover.quiesce(SOON).await);
    }

    #[test]
    fn a_note_is_read_as_it_was_written_and_hardly_longer_than_its_bytes() {
        let note = ConnectionNote {
            unsent: (0..=255).cycle().take(30_000).collect(),
            unread: b"GET /".to_vec(),
            ..ConnectionNote::default()
        };
        let written = serde_json::to_string(&note).unwrap();
        assert!(
            written.len() < note.unsent.len() * 3 / 2,
            "{}",
            written.len()
        );
        assert_eq!(
            serde_json::from_str::<ConnectionNote>(&written).unwrap(),
            note
        );
    }
}
