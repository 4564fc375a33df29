//! Sockets: which addresses, how many connections, and how long a client may be slow.
//!
//! * A head that does not arrive in time ends its connection (hyper's timer); a body has its
//!   own timer in [`super::body`].
//! * A client that stops reading fills its socket; when nothing could be written for the write
//!   timeout, the connection is dropped, and with it the stream and its work.
//! * A client that goes away is noticed by the read side while the answer is being written;
//!   hyper then drops the answer's body, which cancels.

use crate::config::HttpConfig;
use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::future::Future;
use std::io::{self, ErrorKind, IoSlice};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::time::Sleep;

/// Two loopback addresses need one port that is free on both.
const FREE_PORT_ATTEMPTS: u32 = 20;

/// After a failed accept (out of file descriptors, mostly) there is no hurry.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

#[derive(Debug, Error)]
#[error("{address} cannot be listened on: {source}")]
pub struct ListenError {
    address: SocketAddr,
    source: io::Error,
}

/// # Errors
/// When an address is taken or not this machine's.
pub async fn bind(config: &HttpConfig) -> Result<Vec<TcpListener>, ListenError> {
    if !config.hosts.is_empty() {
        return bind_all(&config.hosts, config.port).await;
    }
    for _ in 0..FREE_PORT_ATTEMPTS {
        match bind_loopback(config.port).await {
            // The port that was free on one address was not on the other: take another.
            Err(error) if config.port == 0 && error.source.kind() == ErrorKind::AddrInUse => {}
            result => return result,
        }
    }
    bind_loopback(config.port).await
}

async fn bind_all(hosts: &[IpAddr], port: u16) -> Result<Vec<TcpListener>, ListenError> {
    let mut listeners: Vec<TcpListener> = Vec::with_capacity(hosts.len());
    let mut port = port;
    for host in hosts {
        let listener = bind_one(SocketAddr::new(*host, port)).await?;
        port = listener.local_addr().map_or(port, |address| address.port());
        listeners.push(listener);
    }
    Ok(listeners)
}

/// `localhost` works whichever address it resolves to, as far as this machine has both.
async fn bind_loopback(port: u16) -> Result<Vec<TcpListener>, ListenError> {
    let first = bind_one(SocketAddr::from((Ipv4Addr::LOCALHOST, port))).await?;
    let port = first.local_addr().map_or(port, |address| address.port());
    match bind_one(SocketAddr::from((Ipv6Addr::LOCALHOST, port))).await {
        Ok(second) => Ok(vec![first, second]),
        Err(error) if error.source.kind() == ErrorKind::AddrInUse => Err(error),
        Err(error) => {
            tracing::info!(reason = %error, "no_ipv6");
            Ok(vec![first])
        }
    }
}

async fn bind_one(address: SocketAddr) -> Result<TcpListener, ListenError> {
    TcpListener::bind(address)
        .await
        .map_err(|source| ListenError { address, source })
}

/// Limits that all listeners share.
#[derive(Debug)]
pub struct Server {
    router: Router,
    connections: Arc<Semaphore>,
    max_connections: u32,
    read_timeout: Duration,
    write_timeout: Duration,
}

impl Server {
    #[must_use]
    pub fn new(router: Router, config: &HttpConfig) -> Self {
        let max_connections = config.max_connections.get();
        Self {
            router,
            connections: Arc::new(Semaphore::new(max_connections)),
            max_connections: u32::try_from(max_connections).unwrap_or(u32::MAX),
            read_timeout: config.read_timeout,
            write_timeout: config.write_timeout,
        }
    }

    /// Accepts until `closing` says so; connections then finish the answer they are in.
    pub async fn run(self: Arc<Self>, listener: TcpListener, closing: watch::Receiver<bool>) {
        loop {
            let next = async {
                let permit = Arc::clone(&self.connections).acquire_owned().await;
                (permit, listener.accept().await)
            };
            let (permit, accepted) = tokio::select! {
                () = told_to_close(closing.clone()) => return,
                next = next => next,
            };
            match accepted {
                Ok((stream, _)) => {
                    let (server, closing) = (Arc::clone(&self), closing.clone());
                    tokio::spawn(async move {
                        let _permit = permit;
                        server.serve(stream, closing).await;
                    });
                }
                Err(error) => {
                    tracing::warn!(reason = %error, "accept_failed");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    /// Waits until no connection is left, as long as `patience` lasts.
    pub async fn wait_idle(&self, patience: Duration) {
        let all = self.connections.acquire_many(self.max_connections);
        // Whoever is still connected after that has had the end of its answer written, or
        // does not read it.
        let _ = tokio::time::timeout(patience, all).await;
    }

    async fn serve(&self, stream: TcpStream, closing: watch::Receiver<bool>) {
        // Tokens are small and must not wait for each other.
        if stream.set_nodelay(true).is_err() {
            return;
        }
        let io = TokioIo::new(StallGuard::new(stream, self.write_timeout));
        let service = TowerToHyperService::new(self.router.clone());
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(self.read_timeout)
            .serve_connection(io, service);
        let mut connection = pin!(connection);
        let result = tokio::select! {
            result = connection.as_mut() => result,
            () = told_to_close(closing) => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(error) = result {
            tracing::debug!(reason = %error, "connection_ended");
        }
    }
}

/// Also when nobody is left who could tell.
async fn told_to_close(mut closing: watch::Receiver<bool>) {
    drop(closing.wait_for(|closing| *closing).await);
}

/// A stream whose writes fail once nothing could be written for too long.
struct StallGuard<S> {
    stream: S,
    limit: Duration,
    /// Runs while a write waits for the client.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl<S> StallGuard<S> {
    fn new(stream: S, limit: Duration) -> Self {
        Self {
            stream,
            limit,
            stalled: None,
        }
    }

    fn guard<T>(
        &mut self,
        cx: &mut Context<'_>,
        write: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if write.is_ready() {
            self.stalled = None;
            return write;
        }
        let limit = self.limit;
        let stalled = self
            .stalled
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(limit)));
        match stalled.as_mut().poll(cx) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(()) => {
                tracing::info!(limit_ms = limit.as_millis() as u64, "slow_reader");
                Poll::Ready(Err(ErrorKind::TimedOut.into()))
            }
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for StallGuard<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for StallGuard<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let write = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.guard(cx, write)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let write = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        self.guard(cx, write)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flush = Pin::new(&mut self.stream).poll_flush(cx);
        self.guard(cx, flush)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shutdown = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.guard(cx, shutdown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncWriteExt;

    #[tokio::test]
    async fn both_loopbacks_share_one_free_port() {
        let config = HttpConfig {
            hosts: Vec::new(),
            port: 0,
            api_keys: Vec::new(),
            max_body_bytes: 0,
            max_bodies_bytes: 0,
            max_connections: std::num::NonZeroUsize::MIN,
            read_timeout: Duration::from_secs(1),
            write_timeout: Duration::from_secs(1),
        };
        let listeners = bind(&config).await.unwrap();
        let ports: Vec<u16> = listeners
            .iter()
            .map(|listener| listener.local_addr().unwrap().port())
            .collect();
        assert!(
            ports[0] != 0 && ports.iter().all(|port| *port == ports[0]),
            "{ports:?}"
        );

        let taken = HttpConfig {
            port: ports[0],
            ..config
        };
        let error = bind(&taken).await.unwrap_err().to_string();
        assert!(error.contains(&ports[0].to_string()), "{error}");
    }

    #[tokio::test]
    async fn a_reader_that_reads_nothing_is_given_up() {
        let limit = Duration::from_millis(50);
        let (ours, _theirs) = tokio::io::duplex(8);
        let mut guarded = StallGuard::new(ours, limit);
        guarded.write_all(b"12345678").await.unwrap();
        let started = std::time::Instant::now();
        let error = guarded.write_all(b"9").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert!(started.elapsed() >= limit);
    }
}
