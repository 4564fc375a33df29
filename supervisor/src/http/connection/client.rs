//! The client of a connection, and how far its present request is.

use super::replay::Replay;
use crate::engine::Position;
use crate::http::handover::{Answer, ConnectionNote, Handover, Held, Left, Stage};
use crate::http::places::{self, Place};
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

/// Pause between two looks at a client that has sent more than was read yet.
const LOOK_AGAIN: Duration = Duration::from_millis(25);

const INTERIM: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// The client of one connection, and how far its present request is.
pub(super) struct Client {
    pub(super) socket: TcpStream,
    pub(super) place: Place,
    /// It speaks TLS.
    pub(super) is_secured: bool,
    pub(super) while_answered: places::Stage,
    pub(super) handover: Arc<Handover>,
    pub(super) turn: Mutex<Turn>,
    /// Bytes that are read before those of the socket.
    pub(super) unread: Mutex<Vec<u8>>,
}

#[derive(Default)]
pub(super) struct Turn {
    /// Something is being read of which a request may come, over TLS.
    pub(super) reads: bool,
    /// While the connection cannot be handed over.
    pub(super) bound: Option<Held>,
    /// What was asked, until the journal has it.
    pub(super) replay: Option<Replay>,
    /// What was asked, as long as its answer is not complete.
    pub(super) asked: Option<Answer>,
    /// The journal has it.
    pub(super) known: bool,
    /// How much of the answer was told.
    pub(super) position: Option<Position>,
    pub(super) whole: bool,
    /// The answer's head was handed over.
    pub(super) begun: bool,
    /// The answer's body was, to its last byte.
    pub(super) complete: bool,
    /// Bytes may be on their way between hyper and the socket.
    pub(super) writing: bool,
    /// A word is wanted in the stream.
    pub(super) wanted: bool,
    /// Waker of whoever polls the stream.
    pub(super) waker: Option<Waker>,
    /// The socket is another supervisor's from here on: what is written is kept in `unsent`.
    pub(super) leaves: bool,
    pub(super) unsent: Vec<u8>,
    /// The connection is not used again.
    pub(super) closed: bool,
}

/// The connection of a request, for whoever gives it to the journal.
#[derive(Clone)]
pub struct Attachment(pub(super) Arc<Client>);

impl Attachment {
    /// Waits until requests may enter the journal. To be held until the request is [attached](Self::attach).
    pub async fn enter(&self) -> Held {
        self.0.handover.enter().await
    }

    /// The journal has the request: from now on its answer can be told by another supervisor.
    pub fn attach(&self, job_id: &str, correlation_id: &str, position: Position) {
        // Behind TLS nobody else can tell the answer: who wants to go on elsewhere waits for its end.
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

/// Where the rest of an answer is asked for, its job is the last step of the path, in whatever way the client encoded it.
/// Who begins an answer posts, to a path that may end like the job's name.
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
        let begun = resumed.is_some_and(|resumed| resumed.told.is_some());
        let answer = Answer {
            job_id: String::new(),
            correlation_id: String::new(),
            path: without_job(request.method(), request.uri().path()).to_owned(),
            origin: text(ORIGIN).map(str::to_owned),
            told: None,
            old_http,
            closes: closes || (old_http && !keeps),
        };
        let mut turn = self.turn.lock();
        // Whoever asks again has the answer before, flushed or not.
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
            leaves: turn.leaves,
            unsent: std::mem::take(&mut turn.unsent),
            ..Turn::default()
        };
        drop(turn);
        self.place.enter(places::Stage::Sending);
    }

    /// Waits until the request may begin, unless it is answered in any case.
    pub(super) async fn begins(&self, is_let_in: bool) {
        // Whoever waits for everything over TLS to end waits for this one.
        if !is_let_in && !self.is_secured {
            self.handover.begin().await;
        }
    }

    pub(super) fn heard(&self, frame: &Frame<Bytes>) {
        if let Some(replay) = &mut self.turn.lock().replay {
            replay.heard(frame);
        }
    }

    /// Whether the socket may be read. Over TLS, the connection is bound from before that is decided until what was read
    /// is a request that is answered, or is none yet: if none is bound once everything is quiet, none becomes so.
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

    /// No request has come of what was read.
    pub(super) fn has_read(&self, turn: &mut Turn) {
        if std::mem::take(&mut turn.reads) {
            turn.bound = None;
        }
    }

    /// Nothing is lost of what was asked, whoever answers.
    pub(super) fn is_known(&self, turn: &mut Turn) {
        turn.known = true;
        turn.replay = None;
        if turn.asked.is_some() {
            turn.bound = None;
        }
    }

    /// What was asked is with the journal, answered, or can be asked again.
    pub(super) fn is_settled(&self) -> bool {
        let turn = self.turn.lock();
        turn.asked.is_none() || turn.known || !turn.begun
    }

    /// What is left of the connection. `None` while nobody knows what was asked.
    pub(super) fn note(&self, mut unread: Vec<u8>) -> Option<ConnectionNote> {
        let mut turn = self.turn.lock();
        let mut answer = turn.asked.take();
        if answer.is_some() && !turn.known {
            answer = None;
            let replay = turn.replay.take().filter(|_| !turn.begun)?;
            unread = [replay.into_bytes()?, unread].concat();
        }
        let position = turn.position.take().filter(|_| turn.begun);
        let told = position.map(|position| position.told());
        Some(ConnectionNote {
            unsent: std::mem::take(&mut turn.unsent),
            unread,
            answer: answer.map(|answer| Answer { told, ..answer }),
            closes: turn.closed,
        })
    }

    pub(super) fn leave(
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

    /// Everything that hyper had is in the socket.
    pub(super) fn flushed(&self) {
        let mut turn = self.turn.lock();
        turn.writing = false;
        if std::mem::take(&mut turn.complete) {
            turn.whole = false;
            self.is_known(&mut turn);
            (turn.asked, turn.position) = (None, None);
            drop(turn);
            self.place.enter(places::Stage::Waiting);
        }
    }

    /// Returns once the client can be sent nothing any more.
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
                // What it sent is hyper's to read.
                Ok(_) => sleep(LOOK_AGAIN).await,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) => return,
            }
        }
        // Without a whole request, hyper knows what to do.
        while !self.turn.lock().whole {
            sleep(LOOK_AGAIN).await;
        }
        // It is gone ([`tls`](crate::http::tls)), and a word in plain text would be none.
        if self.is_secured {
            return;
        }
        if self.say_something().is_ok() {
            // An error of the socket itself is an end, too.
            let _ = self.socket.ready(Interest::ERROR).await;
        }
    }

    /// Bytes that are there to be read, one at most.
    fn peek(&self) -> io::Result<usize> {
        let mut byte = [0];
        let flags = rustix::net::RecvFlags::PEEK | rustix::net::RecvFlags::DONTWAIT;
        let (there, _) = rustix::net::recv(&self.socket, &mut byte, flags)?;
        Ok(there)
    }

    fn say_something(&self) -> io::Result<()> {
        let mut turn = self.turn.lock();
        turn.wanted = true;
        if let Some(waker) = turn.waker.take() {
            waker.wake();
        }
        let old_http = turn.asked.as_ref().is_some_and(|asked| asked.old_http);
        // HTTP/1.0 knows no interim answers.
        if turn.begun || turn.writing || turn.leaves || old_http {
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
            place: places::Places::new(1).take().await.expect("one is free"),
            is_secured: true,
            while_answered: places::Stage::Answered,
            handover: Arc::clone(&handover),
            turn: Mutex::default(),
            unread: Mutex::default(),
        };
        let patience = Duration::from_millis(1);
        assert!(client.begins_to_read());
        assert!(!handover.hush(patience).await, "a request may come of it");
        client.has_read(&mut client.turn.lock());
        assert!(handover.hush(patience).await);
        assert!(!client.begins_to_read());
        handover.release();
        assert!(client.begins_to_read());
        drop(client);
        assert!(handover.hush(patience).await, "it is gone");
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
