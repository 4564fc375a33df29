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
//! * An open connection may be handed to another supervisor ([`super::handover`]), at any byte of an answer.
//!   The next supervisor asks itself for the rest of it, and leaves out the head that the client has.
//!
//! [`client`] is who is at the other end and what it was told, [`bodies`] is how that is seen, [`replay`] is
//! a request that is asked again, and [`wire`] the socket itself.

mod bodies;
mod client;
mod replay;
mod wire;

pub use client::Attachment;

use super::PROBES;
use super::client::Address;
use super::guarded::Guarded;
use super::handover::{ConnectionNote, Handover, Left, Stage as HandoverStage};
use super::places::{Place, Stage};
use super::resume::HandedOver;
use super::routes;
use super::tls::Tls;
use axum::body::Body;
use axum::http::header::CONTENT_TYPE;
use axum::http::{Request, Response};
use axum::{Extension, Router};
use bodies::{Sent, Told};
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

/// Buffer of each connection, and the longest head: what has come of a body beyond it is not read
/// until there is room for it ([`super::body`]).
const BUFFER_BYTES: usize = 64 << 10;

/// Time for what is being read to be answered, or known to the journal, when everything is handed over.
const SETTLE: Duration = Duration::from_secs(1);

/// Terms on which connections of one kind are served: routes and times.
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

/// Serves until the client goes, is told to leave, `closing` and everything was answered, or everything is
/// handed over. `note` is what an earlier supervisor left of the connection; nothing where it is new.
pub async fn serve(
    stream: TcpStream,
    place: Place,
    terms: Terms,
    closing: watch::Receiver<bool>,
    note: ConnectionNote,
    door: mpsc::UnboundedSender<Left>,
) -> Result<(), hyper::Error> {
    // Tokens are small and must not wait for each other.
    if stream.set_nodelay(true).is_err() {
        return Ok(());
    }
    // Whoever has spoken with an earlier supervisor did so without TLS.
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
        // Apart, because a session is large, and most connections have none.
        return Box::pin(secured(tls, client, &terms, closing, door)).await;
    }
    let mut stages = terms.handover.stages();
    let mut io = Guarded::new(Wire::new(Arc::clone(&client)), terms.write_timeout);
    if let Some(unsent) = send_rest(&mut io, &note.unsent, &mut stages).await {
        let note = ConnectionNote { unsent, ..note };
        return client.leave(note, &door);
    }
    if note.closes {
        return Ok(());
    }
    let resumed = io.get_mut().go_on(note);
    converse(io, resumed, client, &terms, closing, door).await
}

/// Shakes hands first. What TLS has agreed on cannot be given to another supervisor.
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
            () = client.place.told_to_leave() => return Ok(()),
            () = told_to_close(closing.clone()) => return Ok(()),
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

/// Speaks HTTP over `io`, behind which the client's socket is.
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
        // The first request is the supervisor's own.
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
            () = client.place.told_to_leave() => {}
            () = client.gone() => {}
        }
    });
    let mut closing = pin!(told_to_close(closing));
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
    client.leave(note, &door)
}

/// Stops a connection where it is. `None` while nobody knows what was asked on it.
async fn stop<I, S>(
    mut connection: http1::Connection<TokioIo<Guarded<I>>, S>,
    client: &Client,
) -> Option<ConnectionNote>
where
    I: AsyncRead + AsyncWrite + Unpin,
    S: HttpService<Incoming, ResBody = Body, Error = Infallible> + Unpin,
{
    client.turn.lock().leaves = true;
    let settled = poll_fn(|cx| {
        let ended = Pin::new(&mut connection).poll(cx).is_ready();
        match ended || client.is_settled() {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    });
    timeout(SETTLE, unconstrained(settled)).await.ok()?;
    // What hyper has read ahead, and what it has not asked for yet.
    let ahead = connection.into_parts().read_buf;
    let unread = [&ahead[..], &client.unread.lock()[..]].concat();
    client.note(unread)
}

/// Sends what an earlier supervisor could not. What is left of it, when everything is handed over before
/// the client has taken it all.
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
                // The client is gone; what it was told ends with the connection.
                _ => return None,
            },
            _ = stages.wait_for(|stage| *stage == HandoverStage::Leaving) => {
                return Some(unsent[sent..].to_vec());
            }
        }
    }
    None
}

/// Returns when `closing` is told, and when nobody is left who could tell.
pub async fn told_to_close(mut closing: watch::Receiver<bool>) {
    drop(closing.wait_for(|closing| *closing).await);
}

async fn answer(
    client: Arc<Client>,
    router: TowerToHyperService<Router>,
    request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    let mut request = request.map(|body| Arc::new(Mutex::new(body)));
    client.asked(&request);
    // Whoever asks many things at once lets everybody else have a turn before each of them.
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
