//! TLS: the certificate for new connections, and handshakes.
//!
//! A handshake has the time limit of a request's head, and its connection counts as one without a request. After it,
//! everything is as without TLS, with one exception: a client that shuts down its side of the socket is gone, because a
//! half-close in TLS is a `close_notify` message.

use parking_lot::RwLock;
use rustls::ServerConfig;
use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// Present certificate and key. All clones of this see a replacement.
#[derive(Debug, Clone)]
pub struct Tls(Arc<RwLock<Arc<ServerConfig>>>);

impl Tls {
    #[must_use]
    pub fn new(server: Arc<ServerConfig>) -> Self {
        Self(Arc::new(RwLock::new(server)))
    }

    /// Replaces the certificate for new handshakes.
    pub fn replace(&self, server: Arc<ServerConfig>) {
        *self.0.write() = server;
    }

    pub(super) async fn accept<S>(&self, stream: S, patience: Duration) -> io::Result<TlsStream<S>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let server = Arc::clone(&self.0.read());
        match timeout(patience, TlsAcceptor::from(server).accept(stream)).await {
            Ok(shaken) => shaken,
            Err(_) => Err(ErrorKind::TimedOut.into()),
        }
    }
}
