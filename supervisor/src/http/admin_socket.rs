//! `--admin-socket`: a Unix socket that only this worker's user and root may open. It needs no key (routes:
//! [`admin`](super::admin)).
//!
//! A stale socket of a killed worker is replaced; a socket with a listener is an error. One connection carries one
//! request, and answers are short, so no connection blocks the next.

use super::admin::AtSocket;
use super::connection::until_closing;
use super::connection_slots::{ConnectionSlots, Place};
use super::guarded::Guarded;
use super::routes;
use crate::config::HttpConfig;
use crate::descriptors::ADMIN_CONNECTIONS;
use axum::body::Body;
use axum::http::Request;
use axum::{Extension, Router};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixListener as StdListener;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;

/// Queue length of connections before accept.
const BACKLOG: i32 = 16;

/// Pause after a failed accept.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Longest head of a request.
const BUFFER_BYTES: usize = 16 << 10;

#[derive(Debug, Error)]
#[error("--admin-socket {path}: {source}{}", self.remedy())]
pub struct AdminSocketError {
    path: String,
    source: io::Error,
}

impl AdminSocketError {
    fn remedy(&self) -> &'static str {
        match self.source.kind() {
            io::ErrorKind::AddrInUse => "; each worker needs a socket of its own",
            _ => "",
        }
    }
}

/// Device, inode and change time: inode numbers are reused.
type Identity = (u64, u64, i64, i64);

/// Path of the socket. Dropping this removes the file, unless another socket has replaced it.
#[derive(Debug)]
pub struct Name {
    path: PathBuf,
    made: Identity,
}

impl Name {
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Name {
    fn drop(&mut self) {
        if identity(&self.path).is_ok_and(|it| it == self.made) {
            // The file may be gone already.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// # Errors
/// If the socket has a listener, or cannot be created.
pub fn listen(path: &Path) -> Result<(UnixListener, Name), AdminSocketError> {
    try_listen(path).map_err(|source| AdminSocketError {
        path: path.display().to_string(),
        source,
    })
}

fn try_listen(path: &Path) -> io::Result<(UnixListener, Name)> {
    let address = SocketAddrUnix::new(path)?;
    remove_stale(path, &address)?;
    let socket = new_socket()?;
    // The file inherits the socket's mode, so no other user can open it at any time.
    rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    rustix::net::bind(&socket, &address)?;
    let name = Name {
        path: path.to_owned(),
        made: identity(path)?,
    };
    rustix::net::listen(&socket, BACKLOG)?;
    let listener = UnixListener::from_std(StdListener::from(socket))?;
    Ok((listener, name))
}

fn new_socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        flags,
        None,
    )?)
}

/// Removes a socket without a listener.
fn remove_stale(path: &Path, address: &SocketAddrUnix) -> io::Result<()> {
    match rustix::net::connect(&new_socket()?, address) {
        Err(Errno::NOENT) => Ok(()),
        Err(Errno::CONNREFUSED) => fs::remove_file(path),
        // A full queue also means a listener.
        Ok(()) | Err(Errno::AGAIN) => Err(Errno::ADDRINUSE.into()),
        Err(error) => Err(error.into()),
    }
}

fn identity(path: &Path) -> io::Result<Identity> {
    let facts = fs::symlink_metadata(path)?;
    Ok((facts.dev(), facts.ino(), facts.mtime(), facts.mtime_nsec()))
}

/// Shared state of the operator's connections.
#[derive(Debug)]
pub struct AdminServer {
    router: Router,
    slots: Arc<ConnectionSlots>,
    read_timeout: Duration,
    write_timeout: Duration,
}

impl AdminServer {
    #[must_use]
    pub fn new(router: Router, config: &HttpConfig) -> Arc<Self> {
        Arc::new(Self {
            router: router.layer(Extension(AtSocket)),
            slots: ConnectionSlots::new(ADMIN_CONNECTIONS),
            read_timeout: config.read_timeout,
            write_timeout: config.write_timeout,
        })
    }

    /// Accepts until `closing` is true.
    pub async fn run(self: Arc<Self>, listener: UnixListener, closing: watch::Receiver<bool>) {
        loop {
            let next = async {
                let (stream, _) = listener.accept().await?;
                Ok((stream, self.slots.take().await))
            };
            let next: io::Result<_> = tokio::select! {
                () = until_closing(closing.clone()) => return,
                next = next => next,
            };
            match next {
                Ok((stream, Some(place))) => {
                    let (server, closing) = (Arc::clone(&self), closing.clone());
                    tokio::spawn(async move { server.serve(stream, place, closing).await });
                }
                // Connections there may be evicted, so there is always a slot.
                Ok((_, None)) => {}
                Err(error) => {
                    tracing::warn!(reason = %error, "admin_accept_failed");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    /// Waits until all connections have ended, for at most `patience`.
    pub async fn wait_idle(&self, patience: Duration) {
        self.slots.wait_empty(patience).await;
    }

    async fn serve(&self, stream: UnixStream, place: Place, closing: watch::Receiver<bool>) {
        let io = TokioIo::new(Guarded::new(stream, self.write_timeout));
        let router = TowerToHyperService::new(self.router.clone());
        let service = service_fn(move |mut request: Request<Incoming>| {
            if let Some(plain) = routes::plain(request.uri()) {
                *request.uri_mut() = plain;
            }
            router.call(request.map(Body::new))
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(self.read_timeout)
            .keep_alive(false)
            .max_buf_size(BUFFER_BYTES)
            .serve_connection(io, service);
        let mut connection = pin!(connection);
        let ended = tokio::select! {
            ended = connection.as_mut() => ended,
            () = place.until_evicted() => return,
            () = until_closing(closing) => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(error) = ended {
            tracing::debug!(reason = %error, "admin_connection_ended");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_name_that_somebody_else_took_over_is_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("admin");
        let (listener, name) = listen(&path).unwrap();
        let taken = listen(&path).unwrap_err().to_string();
        assert!(taken.contains("in use") && taken.contains("own"), "{taken}");
        drop(listener);
        let (_second, other) = listen(&path).expect("no process listens there any more");
        drop(name);
        assert!(path.exists(), "it is the second one's");
        drop(other);
        assert!(!path.exists());
    }
}
