//! HTTP/1.1 client over TCP, TLS or a Unix socket. Each connection carries one request.
//!
//! A TLS server must have a certificate of an authority that this host trusts. `SSL_CERT_FILE` and `SSL_CERT_DIR` set
//! other authorities. They are read again for each connection.
//!
//! Deliberately absent: redirects, proxies, and an option to skip certificate checks.

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::header::{HOST, HeaderValue};
use hyper::{Request, Response, Uri};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use std::path::Path;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Parts of `http://host:port/path` or `https://…`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Url {
    /// `host:port` in the syntax of a socket address.
    pub authority: String,
    pub path: String,
    /// Name required in the certificate. `None` without TLS.
    pub tls: Option<ServerName<'static>>,
}

impl Url {
    /// # Errors
    /// A human-readable reason.
    pub fn parse(text: &str) -> Result<Self, String> {
        let secured = text.strip_prefix("https://");
        let rest = secured
            .or_else(|| text.strip_prefix("http://"))
            .ok_or(format!("{text:?} does not begin with http:// or https://"))?;
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        if authority.is_empty() || text.chars().any(|c| c.is_whitespace() || c.is_control()) {
            return Err(format!("{text:?} is no URL"));
        }
        // `[::1]` ends in a bracket, `host:80` has a colon after the last bracket.
        let after_bracket = &authority[authority.rfind(']').map_or(0, |at| at + 1)..];
        let port = match (after_bracket.contains(':'), secured) {
            (true, _) => "",
            (false, None) => ":80",
            (false, Some(_)) => ":443",
        };
        let path = if path.is_empty() { "/" } else { path };
        // An invalid path is refused here, not at the first request.
        path.parse::<Uri>()
            .map_err(|_| format!("{text:?} is no URL"))?;
        let tls = secured.map(|_| server_name(authority)).transpose()?;
        Ok(Self {
            authority: format!("{authority}{port}"),
            path: path.to_owned(),
            tls,
        })
    }
}

/// Host without port and brackets.
fn server_name(authority: &str) -> Result<ServerName<'static>, String> {
    let host = match authority.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => host,
        _ => authority,
    };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    ServerName::try_from(host.to_owned())
        .map_err(|_| format!("{host:?} is no name that a certificate could have"))
}

/// Connects and sends a request. Its URI is a path.
///
/// # Errors
/// The reason why there is no answer, human-readable.
pub async fn send(url: &Url, request: Request<Full<Bytes>>) -> Result<Response<Incoming>, String> {
    connect(url).await?.send(request).await
}

/// Connection without a request yet.
#[derive(Debug)]
pub struct Connection {
    host: HeaderValue,
    sender: http1::SendRequest<Full<Bytes>>,
}

/// # Errors
/// The reason why there is no connection, human-readable.
pub async fn connect(url: &Url) -> Result<Connection, String> {
    let host = url.authority.parse();
    let host = host.map_err(|_| format!("{:?} is no host", url.authority))?;
    let stream = TcpStream::connect(&url.authority).await;
    let stream = stream.map_err(|error| error.to_string())?;
    let sender = match &url.tls {
        None => handshake(stream).await?,
        Some(name) => handshake(secured(stream, name).await?).await?,
    };
    Ok(Connection { host, sender })
}

/// Connects to a Unix socket.
///
/// # Errors
/// The reason why there is no connection, human-readable.
pub async fn connect_at(socket: &Path) -> Result<Connection, String> {
    let stream = UnixStream::connect(socket).await;
    let stream = stream.map_err(|error| error.to_string())?;
    let sender = handshake(stream).await?;
    let host = HeaderValue::from_static("localhost");
    Ok(Connection { host, sender })
}

impl Connection {
    /// Sends the only request and returns the head of the answer with an unread body. The URI is a path.
    ///
    /// # Errors
    /// The reason why there is no answer, human-readable.
    pub async fn send(
        mut self,
        mut request: Request<Full<Bytes>>,
    ) -> Result<Response<Incoming>, String> {
        request.headers_mut().insert(HOST, self.host);
        let answer = self.sender.send_request(request).await;
        answer.map_err(|error| match std::error::Error::source(&error) {
            Some(why) => format!("{error}: {why}"),
            None => error.to_string(),
        })
    }
}

async fn handshake(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
) -> Result<http1::SendRequest<Full<Bytes>>, String> {
    let connected = http1::handshake(TokioIo::new(stream)).await;
    let (sender, connection) = connected.map_err(|error| error.to_string())?;
    // The task ends with the body of the answer, or when the body is dropped.
    tokio::spawn(connection);
    Ok(sender)
}

async fn secured(
    stream: TcpStream,
    name: &ServerName<'static>,
) -> Result<TlsStream<TcpStream>, String> {
    // The trust store has hundreds of files on some hosts.
    let trusted = tokio::task::spawn_blocking(trusted).await;
    let trusted = trusted.map_err(|error| error.to_string())??;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(trusted)
        .with_no_client_auth();
    let connected = TlsConnector::from(Arc::new(config)).connect(name.clone(), stream);
    connected.await.map_err(|error| format!("TLS: {error}"))
}

/// Certificate authorities that this host trusts.
fn trusted() -> Result<RootCertStore, String> {
    let found = rustls_native_certs::load_native_certs();
    let mut store = RootCertStore::empty();
    let (known, _) = store.add_parsable_certificates(found.certs);
    if known > 0 {
        return Ok(store);
    }
    let why = found.errors.first().map(|error| format!(": {error}"));
    Err(format!(
        "TLS: this host trusts no certificate authority; SSL_CERT_FILE names a file of them{}",
        why.unwrap_or_default()
    ))
}
