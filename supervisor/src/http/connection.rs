//! One connection: requests one after the other, and how it ends.
//!
//! * A head that does not arrive in time ends it (hyper's timer); a body has its own timer in
//!   [`super::body`].
//! * A client that stops reading fills its socket; when nothing could be written for the write
//!   timeout, the connection is dropped, and with it the stream and its work.
//! * A client that ends its side may be gone, or wait for the answer to the last thing it said.
//!   The kernel does not tell which, but it refuses bytes for whoever is gone. So something is
//!   sent that every client skips: `100 Continue` before an answer, a comment in a stream.
//! * Whoever is not being answered may be told to leave ([`super::places`]).

use super::client::Address;
use super::guarded::Guarded;
use super::places::{Place, Stage};
use super::routes;
use axum::body::{Body, Bytes, HttpBody};
use axum::http::header::CONTENT_TYPE;
use axum::http::{Request, Response, Version};
use axum::{Extension, Router};
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use parking_lot::Mutex;
use std::io::{self, ErrorKind, IoSlice};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::sleep;

/// Pause between two looks at a client that has sent more than was read yet.
const LOOK_AGAIN: Duration = Duration::from_millis(25);

/// Buffer of each connection, and the longest head: what has come of a body beyond it is not read
/// until there is room for it ([`super::body`]).
const BUFFER_BYTES: usize = 64 << 10;

const INTERIM: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";
const COMMENT: &[u8] = b":\n\n";

/// Terms on which connections of one kind are served: routes and times.
#[derive(Debug, Clone)]
pub struct Terms {
    pub router: Router,
    pub keep_alive: bool,
    pub read_timeout: Duration,
    pub write_timeout: Duration,
    /// Stage of a connection while it is answered.
    pub while_answered: Stage,
}

/// Serves until the client goes, is told to leave, or `closing` and everything was answered.
pub async fn serve(
    stream: TcpStream,
    place: Place,
    terms: Terms,
    closing: watch::Receiver<bool>,
) -> Result<(), hyper::Error> {
    // Tokens are small and must not wait for each other.
    if stream.set_nodelay(true).is_err() {
        return Ok(());
    }
    let client = Arc::new(Client {
        socket: stream,
        place,
        while_answered: terms.while_answered,
        turn: Mutex::default(),
    });
    let Ok(peer) = client.socket.peer_addr() else {
        return Ok(());
    };
    let io = Guarded::new(Wire(Arc::clone(&client)), terms.write_timeout);
    let router = terms.router.layer(Extension(Address(peer.ip())));
    let router = TowerToHyperService::new(router);
    let service = service_fn(|request| answer(Arc::clone(&client), router.clone(), request));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(terms.read_timeout)
        .keep_alive(terms.keep_alive)
        .half_close(true)
        .max_buf_size(BUFFER_BYTES)
        .serve_connection(TokioIo::new(io), service);
    let mut connection = pin!(connection);
    let mut leaves = pin!(async {
        tokio::select! {
            () = client.place.told_to_leave() => {}
            () = client.gone() => {}
        }
    });
    tokio::select! {
        result = connection.as_mut() => return result,
        () = leaves.as_mut() => return Ok(()),
        () = told_to_close(closing) => connection.as_mut().graceful_shutdown(),
    }
    tokio::select! {
        result = connection => result,
        () = leaves => Ok(()),
    }
}

/// Returns when `closing` is told, and when nobody is left who could tell.
pub async fn told_to_close(mut closing: watch::Receiver<bool>) {
    drop(closing.wait_for(|closing| *closing).await);
}

async fn answer(
    client: Arc<Client>,
    router: TowerToHyperService<Router>,
    request: Request<Incoming>,
) -> Result<Response<Body>, std::convert::Infallible> {
    client.asked(request.version());
    let mut request = request.map(|body| {
        let body = Sent::new(body, Arc::clone(&client));
        Body::new(body)
    });
    if let Some(plain) = routes::plain(request.uri()) {
        *request.uri_mut() = plain;
    }
    let response = router.call(request).await?;
    client.turn.lock().begun = true;
    let is_stream = response
        .headers()
        .get(CONTENT_TYPE)
        .is_some_and(|kind| kind == "text/event-stream");
    Ok(response.map(|body| {
        Body::new(Told {
            body,
            client,
            is_stream,
        })
    }))
}

/// The client of one connection, and how far its present request is.
struct Client {
    socket: TcpStream,
    place: Place,
    while_answered: Stage,
    turn: Mutex<Turn>,
}

#[derive(Default)]
struct Turn {
    /// HTTP/1.0 knows no interim answers.
    old_http: bool,
    whole: bool,
    /// The answer's head was handed over.
    begun: bool,
    /// The answer's body was, to its last byte.
    complete: bool,
    /// Bytes may be on their way between hyper and the socket.
    writing: bool,
    /// A word is wanted in the stream.
    wanted: bool,
    /// Waker of whoever polls the stream.
    waker: Option<Waker>,
}

impl Client {
    fn asked(&self, version: Version) {
        let mut turn = self.turn.lock();
        *turn = Turn {
            old_http: version == Version::HTTP_10,
            writing: turn.writing,
            ..Turn::default()
        };
        drop(turn);
        self.place.enter(Stage::Sending);
    }

    fn request_is_whole(&self) {
        self.turn.lock().whole = true;
        self.place.enter(self.while_answered);
    }

    /// Everything that hyper had is in the socket.
    fn flushed(&self) {
        let mut turn = self.turn.lock();
        turn.writing = false;
        if std::mem::take(&mut turn.complete) {
            turn.whole = false;
            drop(turn);
            self.place.enter(Stage::Waiting);
        }
    }

    /// Returns once the client can be sent nothing any more.
    async fn gone(&self) {
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
        if turn.begun || turn.writing || turn.old_http {
            return Ok(());
        }
        match self.socket.try_write(INTERIM) {
            Ok(written) if written < INTERIM.len() => Err(ErrorKind::WriteZero.into()),
            Err(error) if error.kind() != ErrorKind::WouldBlock => Err(error),
            _ => Ok(()),
        }
    }
}

/// A request's body, which says when it is whole.
struct Sent {
    body: Incoming,
    client: Option<Arc<Client>>,
}

impl Sent {
    fn new(body: Incoming, client: Arc<Client>) -> Self {
        let mut sent = Self {
            body,
            client: Some(client),
        };
        if sent.body.is_end_stream() {
            sent.is_whole();
        }
        sent
    }

    fn is_whole(&mut self) {
        if let Some(client) = self.client.take() {
            client.request_is_whole();
        }
    }
}

impl HttpBody for Sent {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        if frame.is_none() || self.body.is_end_stream() {
            self.is_whole();
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// An answer's body, which says when it was handed over, and a word in between where one is wanted.
struct Told {
    body: Body,
    client: Arc<Client>,
    is_stream: bool,
}

impl HttpBody for Told {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) {
            return Poll::Ready(frame);
        }
        if !self.is_stream {
            return Poll::Pending;
        }
        let mut turn = self.client.turn.lock();
        if std::mem::take(&mut turn.wanted) {
            return Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(COMMENT)))));
        }
        turn.waker = Some(cx.waker().clone());
        Poll::Pending
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        self.client.turn.lock().complete = true;
    }
}

/// The socket, which is also looked at while hyper holds it.
struct Wire(Arc<Client>);

impl AsyncRead for Wire {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            ready!(self.0.socket.poll_read_ready(cx))?;
            match self.0.socket.try_read_buf(buffer) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                read => return Poll::Ready(read.map(drop)),
            }
        }
    }
}

impl AsyncWrite for Wire {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.0.turn.lock().writing = true;
        loop {
            ready!(self.0.socket.poll_write_ready(cx))?;
            match self.0.socket.try_write_vectored(slices) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                written => return Poll::Ready(written),
            }
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.flushed();
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let done = rustix::net::shutdown(&self.0.socket, rustix::net::Shutdown::Write);
        Poll::Ready(done.map_err(io::Error::from))
    }
}
