//! Client of a connection, and progress of its present request.

use super::replay::Replay;
use crate::http::connection_slots::{self, Place};
use crate::http::handover::{Answer, ConnectionNote, Handover, Held, Left, Stage};
use crate::http::resume::HandedOver;
use axum::body::Bytes;
use axum::http::header::{CONNECTION, ORIGIN};
use axum::http::{Method, Request, Version};
use hyper::body::{Frame, Incoming};
use parking_lot::Mutex;
use std::io::{self, ErrorKind};
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::sleep;
use worker_orcd_requests::Position;

/// Pause between two checks of a client with unread bytes.
const LOOK_AGAIN: Duration = Duration::from_millis(25);

const INTERIM: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// Client of one connection, and progress of its present request.
pub(super) struct Client {
    pub(super) socket: TcpStream,
    pub(super) place: Place,
    /// The connection uses TLS.
    pub(super) is_secured: bool,
    pub(super) while_answered: connection_slots::Stage,
    pub(super) handover: Arc<Handover>,
    pub(super) turn: Mutex<Turn>,
    /// Bytes that precede those of the socket.
    pub(super) unread: Mutex<Vec<u8>>,
}

#[derive(Default)]
pub(super) struct Turn {
    /// TLS only: bytes are being read that may become a request.
    pub(super) reads: bool,
    /// Set while the connection cannot be handed over.
    pub(super) bound: Option<Held>,
    /// The request, until it is in the journal.
    pub(super) replay: Option<Replay>,
    /// Answer in progress, until it is complete.
    pub(super) asked: Option<Answer>,
    /// The journal has the request.
    pub(super) known: bool,
    /// Sent part of the answer.
    pub(super) position: Option<Position>,
    pub(super) whole: bool,
    /// The answer's head was passed to hyper.
    pub(super) begun: bool,
    /// The last byte of the answer's body was passed to hyper.
    pub(super) complete: bool,
    /// Bytes may be between hyper and the socket.
    pub(super) writing: bool,
    /// Liveness probe requested.
    pub(super) wanted: bool,
    /// Waker of the stream's reader.
    pub(super) waker: Option<Waker>,
    /// The socket belongs to another supervisor: further output goes to `unsent`.
    pub(super) is_handed_over: bool,
    pub(super) unsent: Vec<u8>,
    /// The connection is not reused.
    pub(super) closed: bool,
}

/// Connection of a request, for its entry into the journal.
#[derive(Clone)]
pub struct Attachment(pub(super) Arc<Client>);

impl Attachment {
    /// Waits until requests may enter the journal. The guard must be held until the request is
    /// [attached](Self::attach).
    pub async fn enter(&self) -> Held {
        self.0.handover.enter().await
    }

    /// Records that the journal has the request: another supervisor can now send its answer.
    pub fn attach(&self, job_id: &str, correlation_id: &str, position: Position) {
        // A TLS session cannot be handed over: a handover waits for the end of the answer.
        if self.0.is_secured {
            return;
        }
        let mut turn = self.0.turn.lock();
        if let Some(answer) = &mut turn.asked {
            job_id.clone_into(&mut answer.job_id);
            correlation_id.clone_into(&mut answer.correlation_id);
            turn.position = Some(position);
            self.0.is_known(&mut turn);
        }
    }
}

/// Path of a request for the rest of an answer, without its last step, the job's id in any encoding. A POST starts an
/// answer, and keeps its path even if it ends like an id.
fn without_job<'a>(method: &Method, path: &'a str) -> &'a str {
    let path = path.trim_end_matches('/');
    match path.rsplit_once('/') {
        Some((parent, _)) if method != Method::POST => parent.trim_end_matches('/'),
        _ => path,
    }
}

impl std::fmt::Debug for Attachment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Attachment")
    }
}

impl Client {
    pub(super) fn asked(&self, request: &Request<Arc<Mutex<Incoming>>>) {
        let text = |name| {
            let value = request.headers().get(name);
            value.and_then(|value| value.to_str().ok())
        };
        let closes = text(CONNECTION).is_some_and(|it| it.eq_ignore_ascii_case("close"));
        let old_http = request.version() == Version::HTTP_10;
        let keeps = text(CONNECTION).is_some_and(|it| it.eq_ignore_ascii_case("keep-alive"));
        let resumed = request.extensions().get::<HandedOver>();
        let begun = resumed.is_some_and(|resumed| resumed.sent.is_some());
        let answer = Answer {
            job_id: String::new(),
            correlation_id: String::new(),
            path: without_job(request.method(), request.uri().path()).to_owned(),
            origin: text(ORIGIN).map(str::to_owned),
            sent: None,
            old_http,
            closes: closes || (old_http && !keeps),
        };
        let mut turn = self.turn.lock();
        // A pipelining client has received the previous answer.
        self.is_known(&mut turn);
        let replay = (!self.is_secured && resumed.is_none()).then(|| Replay::of(request));
        let is_chunked = replay.as_ref().is_some_and(Replay::is_chunked);
        let bound = (self.is_secured || is_chunked).then(|| turn.bound.take());
        let bound = bound.map(|bound| bound.unwrap_or_else(|| self.handover.bind()));
        *turn = Turn {
            asked: Some(answer),
            bound,
            replay,
            begun,
            writing: turn.writing,
            is_handed_over: turn.is_handed_over,
            unsent: std::mem::take(&mut turn.unsent),
            ..Turn::default()
        };
        drop(turn);
        self.place.enter(connection_slots::Stage::Sending);
    }

    /// Waits until requests may begin. `is_let_in`: a probe or a resumed request, which does not wait.
    pub(super) async fn begins(&self, is_let_in: bool) {
        // A handover waits for all TLS connections, so requests on them must proceed.
        if !is_let_in && !self.is_secured {
            self.handover.begin().await;
        }
    }

    pub(super) fn heard(&self, frame: &Frame<Bytes>) {
        if let Some(replay) = &mut self.turn.lock().replay {
            replay.heard(frame);
        }
    }

    /// Whether the socket may be read. A TLS connection is bound before this decision, until the bytes read are an
    /// answered request, or no request yet. So if none is bound once all is quiet, none will be.
    pub(super) fn begins_to_read(&self) -> bool {
        if !self.is_secured {
            return self.handover.stage() != Stage::Leaving;
        }
        let mut turn = self.turn.lock();
        if turn.asked.is_none() && !std::mem::replace(&mut turn.reads, true) {
            turn.bound = Some(self.handover.bind());
        }
        let may_read = match self.handover.stage() {
            Stage::Serving => true,
            Stage::Quiet => turn.asked.is_some() && !turn.whole,
            Stage::Leaving => false,
        };
        if !may_read {
            self.has_read(&mut turn);
        }
        may_read
    }

    /// Records that the bytes read contain no request.
    pub(super) fn has_read(&self, turn: &mut Turn) {
        if std::mem::take(&mut turn.reads) {
            turn.bound = None;
        }
    }

    /// Records that the request cannot be lost any more.
    pub(super) fn is_known(&self, turn: &mut Turn) {
        turn.known = true;
        turn.replay = None;
        if turn.asked.is_some() {
            turn.bound = None;
        }
    }

    /// Whether the request is in the journal, answered, or repeatable.
    pub(super) fn is_settled(&self) -> bool {
        let turn = self.turn.lock();
        turn.asked.is_none() || turn.known || !turn.begun
    }

    /// State of the connection for the next supervisor. `None` while its request is unknown.
    pub(super) fn note(&self, mut unread: Vec<u8>) -> Option<ConnectionNote> {
        let mut turn = self.turn.lock();
        let mut answer = turn.asked.take();
        if answer.is_some() && !turn.known {
            answer = None;
            let replay = turn.replay.take().filter(|_| !turn.begun)?;
            unread = [replay.into_bytes()?, unread].concat();
        }
        let position = turn.position.take().filter(|_| turn.begun);
        let sent = position.map(|position| position.delivered());
        Some(ConnectionNote {
            unsent: std::mem::take(&mut turn.unsent),
            unread,
            answer: answer.map(|answer| Answer { sent, ..answer }),
            closes: turn.closed,
        })
    }

    pub(super) fn hand_over(
        &self,
        note: ConnectionNote,
        door: &mpsc::UnboundedSender<Left>,
    ) -> Result<(), hyper::Error> {
        match self.socket.as_fd().try_clone_to_owned() {
            Ok(socket) => drop(door.send(Left { note, socket })),
            Err(error) => tracing::warn!(%error, "connection_not_duplicated"),
        }
        Ok(())
    }

    pub(super) fn request_is_whole(&self) {
        let mut turn = self.turn.lock();
        turn.whole = true;
        if let Some(replay) = &mut turn.replay {
            replay.is_whole = true;
            turn.bound = None;
        }
        drop(turn);
        self.place.enter(self.while_answered);
    }

    /// Records that all bytes of hyper are in the socket.
    pub(super) fn flushed(&self) {
        let mut turn = self.turn.lock();
        turn.writing = false;
        if std::mem::take(&mut turn.complete) {
            turn.whole = false;
            self.is_known(&mut turn);
            (turn.asked, turn.position) = (None, None);
            drop(turn);
            self.place.enter(connection_slots::Stage::Waiting);
        }
    }

    /// Returns once the client can receive no more bytes.
    pub(super) async fn gone(&self) {
        loop {
            let either = Interest::READABLE | Interest::ERROR;
            match self.socket.ready(either).await {
                Err(_) => return,
                Ok(ready) if ready.is_error() => return,
                Ok(ready) if ready.is_read_closed() => break,
                Ok(_) => {}
            }
            match self.socket.try_io(Interest::READABLE, || self.peek()) {
                Ok(0) => break,
                // The bytes are for hyper to read.
                Ok(_) => sleep(LOOK_AGAIN).await,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) => return,
            }
        }
        // Without a complete request, hyper handles the end.
        while !self.turn.lock().whole {
            sleep(LOOK_AGAIN).await;
        }
        // With TLS, the end of the client's side means a disconnect ([`tls`](crate::http::tls)); a plain-text probe
        // would corrupt the session.
        if self.is_secured {
            return;
        }
        if self.request_output().is_ok() {
            // A socket error is also an end.
            let _ = self.socket.ready(Interest::ERROR).await;
        }
    }

    /// Number of readable bytes, at most one.
    fn peek(&self) -> io::Result<usize> {
        let mut byte = [0];
        let flags = rustix::net::RecvFlags::PEEK | rustix::net::RecvFlags::DONTWAIT;
        let (there, _) = rustix::net::recv(&self.socket, &mut byte, flags)?;
        Ok(there)
    }

    fn request_output(&self) -> io::Result<()> {
        let mut turn = self.turn.lock();
        turn.wanted = true;
        if let Some(waker) = turn.waker.take() {
            waker.wake();
        }
        let old_http = turn.asked.as_ref().is_some_and(|asked| asked.old_http);
        // HTTP/1.0 has no interim responses.
        if turn.begun || turn.writing || turn.is_handed_over || old_http {
            return Ok(());
        }
        match self.socket.try_write(INTERIM) {
            Ok(written) if written < INTERIM.len() => Err(ErrorKind::WriteZero.into()),
            Err(error) if error.kind() != ErrorKind::WouldBlock => Err(error),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::TcpListener;

    #[tokio::test]
    async fn what_is_being_read_over_tls_is_waited_for_and_nothing_is_read_behind_that()
    -> io::Result<()> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let handover = Arc::new(Handover::default());
        let client = Client {
            socket: TcpStream::connect(listener.local_addr()?).await?,
            place: connection_slots::ConnectionSlots::new(1)
                .take()
                .await
                .expect("one is free"),
            is_secured: true,
            while_answered: connection_slots::Stage::Answered,
            handover: Arc::clone(&handover),
            turn: Mutex::default(),
            unread: Mutex::default(),
        };
        let patience = Duration::from_millis(1);
        assert!(client.begins_to_read());
        assert!(
            !handover.quiesce(patience).await,
            "a request may come of it"
        );
        client.has_read(&mut client.turn.lock());
        assert!(handover.quiesce(patience).await);
        assert!(!client.begins_to_read());
        handover.release();
        assert!(client.begins_to_read());
        drop(client);
        assert!(handover.quiesce(patience).await, "it is gone");
        Ok(())
    }

    #[test]
    fn the_path_of_an_answer_is_told_without_its_job() {
        for (method, path, without) in [
            (Method::POST, "/execute", "/execute"),
            (Method::POST, "//v1/messages/", "//v1/messages"),
            (Method::GET, "/execute/execute", "/execute"),
            (Method::GET, "/execute/a%2Fb%20c", "/execute"),
            (Method::GET, "/v1//responses//resp_1/", "/v1//responses"),
        ] {
            assert_eq!(without_job(&method, path), without, "{method} {path}");
        }
    }
}
