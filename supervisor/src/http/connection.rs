//! One connection: requests in sequence, and the end of the connection.
//!
//! * A head that does not arrive in time closes it (hyper's timer); a body has its own timer in [`super::body`].
//! * A client that stops reading fills its socket. After the write timeout without progress the connection is dropped,
//!   and with it the stream and its work.
//! * A client that shuts down its side may be gone, or may wait for the answer. The kernel does not distinguish these,
//!   but it rejects bytes for a closed socket. So the worker sends bytes that every client skips: `100 Continue` before
//!   an answer, a comment in a stream.
//! * A connection without an answer in progress may be evicted ([`super::connection_slots`]).
//! * An open connection may be handed over to another supervisor ([`super::handover`]), at any byte of an answer. The
//!   next supervisor requests the rest of the answer from itself, and omits the head, which the client has.
//!
//! [`client`]: state of the client and of its request. [`bodies`]: bodies that track progress. [`replay`]: a request in
//! bytes, to be read again. [`wire`]: the socket.

mod bodies;
mod client;
mod replay;
mod wire;

pub use client::Attachment;

use super::PROBES;
use super::client::Address;
use super::connection_slots::{Place, Stage};
use super::guarded::Guarded;
use super::handover::{ConnectionNote, Handover, Left, Stage as HandoverStage};
use super::resume::HandedOver;
use super::routes;
use super::tls::Tls;
use axum::body::Body;
use axum::http::header::CONTENT_TYPE;
use axum::http::{Request, Response};
use axum::{Extension, Router};
use bodies::{Sent, TrackedBody};
use client::Client;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{HttpService, Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use parking_lot::Mutex;
use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, watch};
use tokio::task::unconstrained;
use tokio::time::timeout;
use wire::Wire;

/// Buffer of each connection, and the longest head. Further bytes of a body are not read until there is room for them
/// ([`super::body`]).
const BUFFER_BYTES: usize = 64 << 10;

/// Time for requests in progress to be answered, or to enter the journal, during a handover.
const SETTLE: Duration = Duration::from_secs(1);

/// Routes and timeouts of one kind of connection.
#[derive(Debug, Clone)]
pub struct Terms {
    pub router: Router,
    pub tls: Option<Tls>,
    pub keep_alive: bool,
    pub read_timeout: Duration,
    pub write_timeout: Duration,
    /// Stage of a connection while it is answered.
    pub while_answered: Stage,
    pub handover: Arc<Handover>,
}

/// Serves until the client disconnects, the connection is evicted, all is answered after `closing`, or all is handed
/// over. `note`: state from an earlier supervisor; default for a new connection.
pub async fn serve(
    stream: TcpStream,
    place: Place,
    terms: Terms,
    closing: watch::Receiver<bool>,
    note: ConnectionNote,
    door: mpsc::UnboundedSender<Left>,
) -> Result<(), hyper::Error> {
    // Tokens are small and must not be delayed by Nagle's algorithm.
    if stream.set_nodelay(true).is_err() {
        return Ok(());
    }
    // An inherited connection has no TLS.
    let tls = terms
        .tls
        .as_ref()
        .filter(|_| note == ConnectionNote::default());
    let client = Arc::new(Client {
        socket: stream,
        place,
        is_secured: tls.is_some(),
        while_answered: terms.while_answered,
        handover: Arc::clone(&terms.handover),
        turn: Mutex::default(),
        unread: Mutex::default(),
    });
    if let Some(tls) = tls {
        // Boxed: a TLS session is large, and most connections have none.
        return Box::pin(secured(tls, client, &terms, closing, door)).await;
    }
    let mut stages = terms.handover.stages();
    let mut io = Guarded::new(Wire::new(Arc::clone(&client)), terms.write_timeout);
    if let Some(unsent) = send_rest(&mut io, &note.unsent, &mut stages).await {
        let note = ConnectionNote { unsent, ..note };
        return client.hand_over(note, &door);
    }
    if note.closes {
        return Ok(());
    }
    let resumed = io.get_mut().go_on(note);
    converse(io, resumed, client, &terms, closing, door).await
}

/// Serves after a TLS handshake. A TLS session cannot be handed over.
async fn secured(
    tls: &Tls,
    client: Arc<Client>,
    terms: &Terms,
    closing: watch::Receiver<bool>,
    door: mpsc::UnboundedSender<Left>,
) -> Result<(), hyper::Error> {
    let wire = Wire::new(Arc::clone(&client));
    let mut shaking = pin!(tls.accept(wire, terms.read_timeout));
    let mut stages = terms.handover.stages();
    let shaken = loop {
        if *stages.borrow_and_update() == HandoverStage::Leaving {
            return Ok(());
        }
        tokio::select! {
            shaken = shaking.as_mut() => break shaken,
            () = client.place.until_evicted() => return Ok(()),
            () = until_closing(closing.clone()) => return Ok(()),
            changed = stages.changed() => if changed.is_err() { return Ok(()) },
        }
    };
    match shaken {
        Ok(stream) => {
            let io = Guarded::new(stream, terms.write_timeout);
            converse(io, None, client, terms, closing, door).await
        }
        Err(error) => {
            tracing::debug!(reason = %error, "tls_handshake_failed");
            Ok(())
        }
    }
}

/// Serves HTTP over `io`.
async fn converse<I: AsyncRead + AsyncWrite + Unpin>(
    io: Guarded<I>,
    resumed: Option<HandedOver>,
    client: Arc<Client>,
    terms: &Terms,
    closing: watch::Receiver<bool>,
    door: mpsc::UnboundedSender<Left>,
) -> Result<(), hyper::Error> {
    let Ok(peer) = client.socket.peer_addr() else {
        return Ok(());
    };
    let mut stages = terms.handover.stages();
    let resumed = Mutex::new(resumed);
    let router = terms.router.clone().layer(Extension(Address(peer.ip())));
    let router = TowerToHyperService::new(router);
    let service = service_fn(|mut request: Request<Incoming>| {
        // The first request of an inherited connection is the supervisor's own.
        if let Some(resumed) = resumed.lock().take() {
            request.extensions_mut().insert(resumed);
        }
        answer(Arc::clone(&client), router.clone(), request)
    });
    let mut connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(terms.read_timeout)
        .keep_alive(terms.keep_alive)
        .half_close(true)
        .max_buf_size(BUFFER_BYTES)
        .serve_connection(TokioIo::new(io), service);
    let mut leaves = pin!(async {
        tokio::select! {
            () = client.place.until_evicted() => {}
            () = client.gone() => {}
        }
    });
    let mut closing = pin!(until_closing(closing));
    let mut is_closing = false;
    while *stages.borrow_and_update() != HandoverStage::Leaving {
        tokio::select! {
            result = &mut connection => return result,
            () = leaves.as_mut() => return Ok(()),
            () = closing.as_mut(), if !is_closing => {
                is_closing = true;
                Pin::new(&mut connection).graceful_shutdown();
            }
            changed = stages.changed() => if changed.is_err() { return Ok(()) },
        }
    }
    if client.is_secured {
        return Ok(());
    }
    let Some(note) = stop(connection, &client).await else {
        tracing::warn!("connection_not_handed_over");
        return Ok(());
    };
    client.hand_over(note, &door)
}

/// Stops a connection at its present byte. `None` if its request is unknown.
async fn stop<I, S>(
    mut connection: http1::Connection<TokioIo<Guarded<I>>, S>,
    client: &Client,
) -> Option<ConnectionNote>
where
    I: AsyncRead + AsyncWrite + Unpin,
    S: HttpService<Incoming, ResBody = Body, Error = Infallible> + Unpin,
{
    client.turn.lock().is_handed_over = true;
    let settled = poll_fn(|cx| {
        let ended = Pin::new(&mut connection).poll(cx).is_ready();
        match ended || client.is_settled() {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    });
    timeout(SETTLE, unconstrained(settled)).await.ok()?;
    // Bytes that hyper has read ahead, then those that it has not read yet.
    let ahead = connection.into_parts().read_buf;
    let unread = [&ahead[..], &client.unread.lock()[..]].concat();
    client.note(unread)
}

/// Sends the unsent bytes of an earlier supervisor. Returns the rest if a handover comes first.
async fn send_rest(
    io: &mut Guarded<Wire>,
    unsent: &[u8],
    stages: &mut watch::Receiver<HandoverStage>,
) -> Option<Vec<u8>> {
    let mut sent = 0;
    while sent < unsent.len() {
        tokio::select! {
            wrote = io.write(&unsent[sent..]) => match wrote {
                Ok(bytes) if bytes > 0 => sent += bytes,
                // The client is gone; its answer ends with the connection.
                _ => return None,
            },
            _ = stages.wait_for(|stage| *stage == HandoverStage::Leaving) => {
                return Some(unsent[sent..].to_vec());
            }
        }
    }
    None
}

/// Returns when `closing` becomes true, or its sender is dropped.
pub async fn until_closing(mut closing: watch::Receiver<bool>) {
    drop(closing.wait_for(|closing| *closing).await);
}

async fn answer(
    client: Arc<Client>,
    router: TowerToHyperService<Router>,
    request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    let mut request = request.map(|body| Arc::new(Mutex::new(body)));
    client.asked(&request);
    // Yields before each request, so that a pipelining client does not starve others.
    tokio::task::yield_now().await;
    let path = request.uri().path();
    let is_probe = PROBES.contains(&path);
    let is_resumed = request.extensions().get::<HandedOver>().is_some();
    client.begins(is_probe || is_resumed).await;
    request
        .extensions_mut()
        .insert(Attachment(Arc::clone(&client)));
    let mut request = request.map(|body| Body::new(Sent::new(body, Arc::clone(&client))));
    if let Some(plain) = routes::plain(request.uri()) {
        *request.uri_mut() = plain;
    }
    let response = router.call(request).await?;
    let is_known = client.turn.lock().known;
    if !is_known && !is_probe && !is_resumed && !client.is_secured {
        client.handover.may_answer().await;
    }
    client.turn.lock().begun = true;
    let kind = response.headers().get(CONTENT_TYPE);
    let probe = kind.and_then(|kind| bodies::probe_of(kind.as_bytes()));
    Ok(response.map(|body| {
        Body::new(TrackedBody {
            body,
            client,
            probe,
        })
    }))
}
