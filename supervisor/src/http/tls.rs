//! TLS, where it was asked for: the certificate that is shown to the next client, and its handshake.
//!
//! A handshake has the time of a request's head, and a client in it has a place like any other that has not
//! asked yet. Behind it everything is as without TLS, but for a client that ends its side of the socket: it is
//! gone. Whoever only has nothing more to say closes its half by a word of TLS (`close_notify`).

use parking_lot::RwLock;
use rustls::ServerConfig;
use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// The present certificate and key; all that hold this see the next ones.
#[derive(Debug, Clone)]
pub struct Tls(Arc<RwLock<Arc<ServerConfig>>>);

impl Tls {
    #[must_use]
    pub fn new(server: Arc<ServerConfig>) -> Self {
        Self(Arc::new(RwLock::new(server)))
    }

    /// For handshakes from now on.
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
