//! Listening sockets, and a slot for each connection.
//!
//! If all slots have answers in progress, a new connection is served probes alone: an orchestrator must not take a busy
//! worker for a dead one.

#![expect(
    clippy::disallowed_methods,
    reason = "a listener that cannot accept waits"
)]

use super::connection::{Terms, serve, until_closing};
use super::connection_slots::{ConnectionSlots, Place, Stage};
use super::handover::{ConnectionNote, Handover, Left, Stage as HandoverStage};
use super::tls::Tls;
use crate::config::HttpConfig;
use crate::descriptors::PROBE_CONNECTIONS;
use axum::Router;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};
use thiserror::Error;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};

/// Attempts to find a port that is free on both loopback addresses.
const FREE_PORT_ATTEMPTS: u32 = 20;

/// Address of a socket that reports none.
const UNKNOWN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

/// Pause after a failed accept, usually for lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Time for a probe's request to arrive and its answer to be read.
const PROBE_PATIENCE: Duration = Duration::from_secs(5);

/// Time between two log lines about a lack of slots.
const SAY_AGAIN: Duration = Duration::from_secs(10);

#[derive(Debug, Error)]
#[error("{address} cannot be listened on: {source}{}", self.remedy())]
pub struct ListenError {
    address: SocketAddr,
    source: io::Error,
}

impl ListenError {
    fn remedy(&self) -> &'static str {
        match self.source.kind() {
            ErrorKind::AddrInUse => "; --port 0 takes a free port and says which",
            _ => "",
        }
    }
}

/// Inherited sockets, or new ones.
///
/// # Errors
/// If an address is in use or not local.
pub async fn listeners(
    config: &HttpConfig,
    handed: Vec<std::net::TcpListener>,
) -> Result<Vec<TcpListener>, ListenError> {
    if handed.is_empty() {
        return bind(config).await;
    }
    let take = |listener: std::net::TcpListener| {
        let address = listener.local_addr().unwrap_or(UNKNOWN);
        TcpListener::from_std(listener).map_err(|source| ListenError { address, source })
    };
    handed.into_iter().map(take).collect()
}

async fn bind(config: &HttpConfig) -> Result<Vec<TcpListener>, ListenError> {
    if !config.hosts.is_empty() {
        return bind_all(&config.hosts, config.port).await;
    }
    for _ in 0..FREE_PORT_ATTEMPTS {
        match bind_loopback(config.port).await {
            // The free port of one address is in use on the other: try another.
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

/// Listens on both loopback addresses, as far as the host has them, so that `localhost` works however it resolves.
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

/// State shared by all listeners.
#[derive(Debug)]
pub struct Server {
    everything: Terms,
    slots: Arc<ConnectionSlots>,
    probes_only: Terms,
    probe_places: Arc<ConnectionSlots>,
    handover: Arc<Handover>,
}

impl Server {
    /// `probes_only`: router of connections without a slot among `slots`.
    #[must_use]
    pub fn new(
        everything: Router,
        probes_only: Router,
        slots: Arc<ConnectionSlots>,
        tls: Option<Tls>,
        config: &HttpConfig,
    ) -> Self {
        let handover = Arc::new(Handover::default());
        let everything = Terms {
            handover: Arc::clone(&handover),
            router: everything,
            tls: tls.clone(),
            keep_alive: true,
            read_timeout: config.read_timeout,
            write_timeout: config.write_timeout,
            while_answered: Stage::Answered,
        };
        let probes_only = Terms {
            handover: Arc::clone(&handover),
            router: probes_only,
            tls,
            keep_alive: false,
            read_timeout: config.read_timeout.min(PROBE_PATIENCE),
            write_timeout: config.write_timeout.min(PROBE_PATIENCE),
            // A probe is answered from memory, so a slow one may be evicted like an idle connection.
            while_answered: Stage::Sending,
        };
        Self {
            everything,
            slots,
            probes_only,
            probe_places: ConnectionSlots::new(PROBE_CONNECTIONS),
            handover,
        }
    }

    #[must_use]
    pub fn handover(&self) -> &Arc<Handover> {
        &self.handover
    }

    /// Accepts until `closing` is true, or until a handover. Connections then finish their present answer.
    pub async fn run(self: Arc<Self>, listener: TcpListener, closing: watch::Receiver<bool>) {
        let Some(door) = self.handover.door() else {
            return;
        };
        let mut stages = self.handover.stages();
        let mut full = Said::default();
        loop {
            let stage = *stages.borrow_and_update();
            let accepted = tokio::select! {
                () = until_closing(closing.clone()) => return,
                _ = stages.changed() => continue,
                accepted = listener.accept(), if self.accepts_in(stage) => accepted,
                () = std::future::ready(()), if stage == HandoverStage::Leaving => return,
            };
            let stream = match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::warn!(reason = %error, "accept_failed");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let place = tokio::select! {
                place = self.find_place() => place,
                _ = stages.wait_for(|stage| *stage == HandoverStage::Leaving) => {
                    leave(stream, &door);
                    return;
                }
            };
            if let Some((_, terms)) = &place
                && !terms.keep_alive
                && full.is_due()
            {
                tracing::warn!(limit = self.slots.limit(), "connections_full");
            }
            // The probe lane cannot evict: without a slot the connection is closed.
            if let Some((place, terms)) = place {
                // A handover waits for it from here on.
                let note = ConnectionNote::default();
                spawn(stream, (place, terms), &closing, note, door.clone());
            }
        }
    }

    /// Continues a connection of an earlier supervisor.
    pub fn take_over(
        &self,
        stream: TcpStream,
        note: ConnectionNote,
        closing: &watch::Receiver<bool>,
    ) {
        let Some(door) = self.handover.door() else {
            return;
        };
        let place = (self.slots.take_over(), &self.everything);
        spawn(stream, place, closing, note, door);
    }

    /// A TLS session cannot be handed over, so TLS connections wait in the kernel's queue.
    fn accepts_in(&self, stage: HandoverStage) -> bool {
        match stage {
            HandoverStage::Serving => true,
            HandoverStage::Quiet => self.everything.tls.is_none(),
            HandoverStage::Leaving => false,
        }
    }

    async fn find_place(&self) -> Option<(Place, &Terms)> {
        if let Some(place) = self.slots.take().await {
            return Some((place, &self.everything));
        }
        let place = self.probe_places.take().await?;
        Some((place, &self.probes_only))
    }

    /// Waits until all connections have ended, for at most `patience`.
    pub async fn wait_idle(&self, patience: Duration) {
        self.slots.wait_empty(patience).await;
    }
}

fn spawn(
    stream: TcpStream,
    (place, terms): (Place, &Terms),
    closing: &watch::Receiver<bool>,
    note: ConnectionNote,
    door: mpsc::UnboundedSender<Left>,
) {
    let (terms, closing) = (terms.clone(), closing.clone());
    tokio::spawn(async move {
        if let Err(error) = serve(stream, place, terms, closing, note, door).await {
            tracing::debug!(reason = %error, "connection_ended");
        }
    });
}

/// Hands over a connection of which no byte was read.
fn leave(stream: TcpStream, door: &mpsc::UnboundedSender<Left>) {
    if let Ok(stream) = stream.into_std() {
        let note = ConnectionNote::default();
        let socket = stream.into();
        drop(door.send(Left { note, socket }));
    }
}

/// Rate limit of a log line.
#[derive(Debug, Default)]
struct Said(Option<Instant>);

impl Said {
    fn is_due(&mut self) -> bool {
        let is_due = self.0.is_none_or(|at| at.elapsed() >= SAY_AGAIN);
        if is_due {
            self.0 = Some(Instant::now());
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn both_loopbacks_share_one_free_port() {
        let config = HttpConfig {
            hosts: Vec::new(),
            port: 0,
            named_addresses: Vec::new(),
            insecure: false,
            keys: Default::default(),
            admin_socket: None,
            tls: None,
            allowed_hosts: Vec::new(),
            cors_origins: Vec::new(),
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
}
