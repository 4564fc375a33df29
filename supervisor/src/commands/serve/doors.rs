//! Listening sockets for clients and the operator, opened before a model is loaded.

use super::handoff::Sockets;
use crate::commands::end_with;
use crate::config::HttpConfig;
use crate::descriptors::{self, TooFew};
use crate::exit::WorkerExit;
use crate::http::admin_socket::{self, Name};
use crate::http::listen::listeners;
use std::fmt::Display;
use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::num::NonZeroUsize;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use tokio::net::{TcpListener, UnixListener};

#[derive(Debug)]
pub(super) struct Doors {
    pub(super) listeners: Vec<TcpListener>,
    /// Duplicates of the sockets for the next supervisor.
    pub(super) duplicates: Arc<[StdListener]>,
    pub(super) addresses: Vec<SocketAddr>,
    pub(super) admin: Option<(UnixListener, Name)>,
}

impl Doors {
    /// Listens on inherited or new sockets, and limits connections by the remaining descriptors.
    ///
    /// `goes_on`: after an upgrade, an unavailable admin socket is logged and is not fatal.
    pub(super) async fn open(
        http: &mut HttpConfig,
        sockets: Sockets,
        goes_on: bool,
    ) -> Result<Self, WorkerExit> {
        let not_listening = |error: &dyn Display| end_with(WorkerExit::Listen, error);
        let opened = match listeners(http, sockets.listeners).await {
            Err(error) if !sockets.before.is_empty() => {
                tracing::error!(reason = %error, "listen_addresses_kept");
                listeners(http, sockets.before).await
            }
            opened => opened,
        };
        let listeners = opened.map_err(|error| not_listening(&error))?;
        let admin = http.admin_socket.as_deref().map(admin_socket::listen);
        let admin = match admin.transpose() {
            Err(error) if goes_on => {
                tracing::error!(reason = %error, "no_admin_socket");
                None
            }
            admin => admin.map_err(|error| not_listening(&error))?,
        };
        let duplicates =
            duplicate(&listeners).map_err(|error| end_with(WorkerExit::Startup, &error))?;
        bound_connections(http, listeners.len())
            .map_err(|error| end_with(WorkerExit::Startup, &error))?;
        let addresses = listeners.iter().filter_map(|it| it.local_addr().ok());
        Ok(Self {
            addresses: addresses.collect(),
            listeners,
            duplicates,
            admin,
        })
    }
}

/// Duplicates descriptors for the next supervisor.
fn duplicate(listeners: &[TcpListener]) -> io::Result<Arc<[StdListener]>> {
    let duplicates = listeners.iter().map(|it| it.as_fd().try_clone_to_owned());
    duplicates.map(|it| it.map(StdListener::from)).collect()
}

/// Limits connections by the descriptors of the process that remain after the children's share.
fn bound_connections(http: &mut HttpConfig, listeners: usize) -> Result<(), TooFew> {
    let wanted = http.max_connections;
    let budget = descriptors::budget(descriptors::raise_limit(), listeners, wanted.get())?;
    http.max_connections = NonZeroUsize::new(budget.connections).unwrap_or(wanted);
    tracing::info!(
        limit = budget.connections,
        wanted,
        descriptors = budget.descriptors,
        kept_back = budget.kept_back,
        "connections"
    );
    Ok(())
}
