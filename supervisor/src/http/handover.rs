//! Open connections on their way to the next supervisor.
//!
//! ```text
//! serving ──→ quiet ──────────────────→ leaving
//!             no new request is read,   each connection stops where it is and says what is left of it:
//!             those that are being      the socket, bytes on either side, and the job whose answer it
//!             read come in              was told
//! ```
//!
//! Answers that run go on through `quiet`. In `leaving` nothing more is taken from the journal, however much of an
//! answer lies there unread, so what goes along is what hyper had taken, and the pieces that are in it are counted:
//! no client is told a byte twice or not at all.

use crate::engine::Skip;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::timeout;

/// Time for a moment in which nobody is sending a request. Then new ones wait.
const UNHURRIED: Duration = Duration::from_secs(1);

/// Time for connections to stop. They need a turn of their task.
const LEAVE: Duration = Duration::from_secs(2);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    Serving,
    Quiet,
    Leaving,
}

/// What is left of a connection, beside its socket.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnectionNote {
    /// Bytes for the client that the socket had no room for.
    #[serde(with = "as_base64")]
    pub unsent: Vec<u8>,
    /// Bytes of the client that no request has been made of.
    #[serde(with = "as_base64")]
    pub unread: Vec<u8>,
    pub answer: Option<Answer>,
    /// Nothing follows what is unsent.
    pub closes: bool,
}

/// An answer that a connection waits for, or is in the middle of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    pub job_id: String,
    pub correlation_id: String,
    /// The path that was asked, without the job.
    pub path: String,
    /// The client's, for the headers of an answer that has not begun.
    pub origin: Option<String>,
    /// What the client has of each part of the text; `None` where it has no head either.
    pub told: Option<Vec<Skip>>,
    pub old_http: bool,
    /// The client wants the connection closed behind the answer.
    pub closes: bool,
}

#[derive(Debug)]
pub struct Left {
    pub note: ConnectionNote,
    pub socket: OwnedFd,
}

/// Shared by all connections and listeners of a server.
#[derive(Debug)]
pub struct Handover {
    stage: watch::Sender<Stage>,
    /// Requests that are neither answered nor known to the journal.
    open: AtomicUsize,
    /// Those among them whose connection cannot be handed over: they are open until they are answered.
    bound: AtomicUsize,
    none_open: Notify,
    /// Whoever holds one may still leave something.
    leave: Mutex<Option<mpsc::UnboundedSender<Left>>>,
    left: Mutex<Option<mpsc::UnboundedReceiver<Left>>>,
}

impl Default for Handover {
    fn default() -> Self {
        let (leave, left) = mpsc::unbounded_channel();
        Self {
            stage: watch::Sender::new(Stage::Serving),
            open: AtomicUsize::new(0),
            bound: AtomicUsize::new(0),
            none_open: Notify::new(),
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

    /// For a connection or a listener that may have something to leave. `None`: it came too late.
    #[must_use]
    pub fn door(&self) -> Option<mpsc::UnboundedSender<Left>> {
        self.leave.lock().clone()
    }

    pub fn request_opens(&self, is_bound: bool) {
        self.bound
            .fetch_add(usize::from(is_bound), Ordering::AcqRel);
        self.open.fetch_add(1, Ordering::AcqRel);
    }

    pub fn request_is_known(&self, is_bound: bool) {
        self.bound
            .fetch_sub(usize::from(is_bound), Ordering::AcqRel);
        if self.open.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.none_open.notify_waiters();
        }
    }

    /// Lets no new request begin: nobody could answer it yet.
    pub fn hold(&self) {
        self.stage.send_replace(Stage::Quiet);
    }

    /// Ends [`hold`](Self::hold).
    pub fn release(&self) {
        self.stage.send_replace(Stage::Serving);
    }

    /// Waits until every request that is being sent has come in, and lets no new one begin. False when that
    /// takes longer than `patience`; then everything is as before. Nobody waits for answers whose connection
    /// cannot be handed over: while there are any, new requests begin.
    pub async fn hush(&self, patience: Duration) -> bool {
        // Under load too there are such moments, and then nobody waits.
        let _ = timeout(UNHURRIED, self.nothing_open()).await;
        if self.bound.load(Ordering::Acquire) > 0 {
            let _ = timeout(patience, self.nothing_open()).await;
            if self.bound.load(Ordering::Acquire) > 0 {
                return false;
            }
        }
        self.stage.send_replace(Stage::Quiet);
        let patience = match self.bound.load(Ordering::Acquire) {
            0 => patience,
            // One that has begun a moment ago.
            _ => UNHURRIED,
        };
        let is_quiet = timeout(patience, self.nothing_open()).await.is_ok();
        if !is_quiet {
            self.stage.send_replace(Stage::Serving);
        }
        is_quiet
    }

    /// Stops all connections and collects what is left of them. It is called once.
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

    async fn nothing_open(&self) {
        loop {
            let notified = self.none_open.notified();
            if self.open.load(Ordering::Acquire) == 0 {
                return;
            }
            notified.await;
        }
    }
}

impl Answer {
    /// The request by which the next supervisor goes on with it.
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

/// Bytes in a document of text, at a third more than their number.
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

/// As one step of a path (RFC 3986, section 2.3).
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
            told: Some(vec![Skip::Pieces(3)]),
            old_http: false,
            closes: true,
        };
        let request = String::from_utf8(answer.request()).unwrap();
        let expected = "GET /execute/a%2Fb%20%C3%BC%3F HTTP/1.1\r\nhost: localhost\r\n\
                        x-correlation-id: c\r\nconnection: close\r\n\r\n";
        assert_eq!(request, expected);
    }

    #[tokio::test]
    async fn a_request_on_its_way_is_waited_for_and_a_new_one_is_not_let_in() {
        let handover = Handover::default();
        handover.request_opens(false);
        assert!(!handover.hush(Duration::from_millis(1)).await);
        assert_eq!(handover.stage(), Stage::Serving, "nothing happened");
        handover.request_is_known(false);
        assert!(handover.hush(Duration::from_millis(1)).await);
        assert_eq!(handover.stage(), Stage::Quiet);
        assert!(handover.collect().await.is_empty());
        assert!(handover.door().is_none());
    }

    #[tokio::test]
    async fn an_answer_that_cannot_be_handed_over_delays_nobody_else() {
        let handover = std::sync::Arc::new(Handover::default());
        handover.request_opens(true);
        let hushing = tokio::spawn({
            let handover = std::sync::Arc::clone(&handover);
            async move { handover.hush(Duration::from_millis(300)).await }
        });
        while !hushing.is_finished() {
            assert_eq!(handover.stage(), Stage::Serving);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert!(!hushing.await.expect("it ends"));
        handover.request_is_known(true);
        assert!(handover.hush(Duration::from_millis(1)).await);
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
