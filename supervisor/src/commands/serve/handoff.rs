//! Handoff state: received from an earlier supervisor, and left for the next one.
//!
//! It arrives through `exec` after an upgrade ([`lifeline`]), and in a [bundle](worker_orcd_engine::handoff::bundle) from the
//! service manager's descriptor store after a crash.

use super::lifeline::{self, Received};
use crate::commands::serve::upgrade;
use crate::config::{Config, HttpConfig};
use crate::http::App;
use crate::http::handover::{ConnectionNote, Left};
use crate::http::listen::Server;
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
use serde::{Deserialize, Serialize};
use std::io::{self, ErrorKind};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::timeout;
use uuid::Uuid;
use worker_orcd_api::answer_format::AnswerFormat;
use worker_orcd_engine::PreviousEngine;
use worker_orcd_engine::handoff::bundle::{pack, unpack};
use worker_orcd_engine::handoff::{EngineHandoff, EngineNote};
use worker_orcd_ipc::DeviceSelector;
use worker_orcd_requests::wal::{self, Ending, Restored};

/// Longest time for which new requests wait for the first child.
const HELD_FOR: Duration = Duration::from_secs(2);

/// State of an earlier supervisor.
#[derive(Debug)]
pub(super) struct Predecessor {
    worker_id: Uuid,
    listeners: Vec<TcpListener>,
    listeners_given: bool,
    /// Notes of the connections that [`lifeline::release`] returns, in the same order.
    connections: Vec<ConnectionNote>,
    pub(super) admin_socket: Option<PathBuf>,
    /// Nonce of a rehearsal.
    pub(super) nonce: Uuid,
    /// Reason for the rollback of an upgrade to this program.
    pub(super) undone: Option<String>,
    /// Number of the bundle in the descriptor store.
    pub(super) number: u64,
    ending: Ending,
    engine: EngineHandoff,
}

/// Document of a handoff. The descriptors are those of engine, listeners and connections, in this order.
#[derive(Debug, Serialize, Deserialize)]
struct Inventory {
    format: u32,
    nonce: Uuid,
    admin_socket: Option<PathBuf>,
    number: u64,
    worker_id: Uuid,
    engine: EngineNote,
    listeners: usize,
    /// A service manager created the listeners.
    listeners_given: bool,
    connections: Vec<ConnectionNote>,
}

/// State for the next supervisor.
#[derive(Debug)]
pub(super) struct SupervisorHandoff {
    /// Number of the bundle, ascending within one worker.
    pub(super) number: u64,
    pub(super) nonce: Uuid,
    pub(super) worker_id: Uuid,
    pub(super) admin_socket: Option<PathBuf>,
    pub(super) engine: EngineHandoff,
    pub(super) listeners: Arc<[TcpListener]>,
    pub(super) listeners_given: bool,
    pub(super) connections: Vec<Left>,
}

impl SupervisorHandoff {
    /// # Errors
    /// If the kernel has no memory or no descriptor for it.
    pub(super) fn pack(&self) -> io::Result<UnixDatagram> {
        let (document, descriptors) = self.parts()?;
        pack(&document, &descriptors)
    }

    /// The document and its descriptors.
    ///
    /// # Errors
    /// If there is no memory for it.
    pub(super) fn parts(&self) -> io::Result<(Vec<u8>, Vec<BorrowedFd<'_>>)> {
        let (engine, mut descriptors) = self.engine.parts();
        descriptors.extend(self.listeners.iter().map(|it| it.as_fd()));
        descriptors.extend(self.connections.iter().map(|left| left.socket.as_fd()));
        let inventory = Inventory {
            format: upgrade::FORMAT,
            nonce: self.nonce,
            admin_socket: self.admin_socket.clone(),
            number: self.number,
            worker_id: self.worker_id,
            engine,
            listeners: self.listeners.len(),
            listeners_given: self.listeners_given,
            connections: self
                .connections
                .iter()
                .map(|left| left.note.clone())
                .collect(),
        };
        Ok((serde_json::to_vec(&inventory)?, descriptors))
    }
}

/// Handoff state found at start.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) last: Option<Predecessor>,
    /// Errors of state that another version wrote. The worker starts fresh.
    pub(super) unreadable: Vec<String>,
}

/// Listening sockets.
#[derive(Debug)]
pub(super) struct Sockets {
    pub(super) listeners: Vec<TcpListener>,
    /// A service manager created them.
    pub(super) given: bool,
    /// Sockets of the earlier supervisor at other addresses: the fallback if new ones are not available.
    pub(super) before: Vec<TcpListener>,
}

/// Finds the state of an upgrade, else the latest bundle in the descriptor store. Must be called before another module
/// starts a child.
///
/// # Errors
/// If the state of an upgrade is unreadable.
pub(super) fn find(received: Option<Received>, stored: &[UnixDatagram]) -> io::Result<Found> {
    if let Some(received) = received {
        return Ok(Found {
            last: Some(of_an_upgrade(received)?),
            unreadable: Vec::new(),
        });
    }
    let read = |bundle| {
        let bundle = unpack(bundle)?;
        read(&bundle.document, bundle.descriptors, Ending::Crash)
    };
    let (mut all, mut unreadable) = (Vec::new(), Vec::new());
    for bundle in stored {
        match read(bundle) {
            Ok(inherited) => all.push(inherited),
            Err(error) => unreadable.push(error.to_string()),
        }
    }
    let last = all.into_iter().max_by_key(|inherited| inherited.number);
    Ok(Found { last, unreadable })
}

/// State from the program that ran in this process before `exec`.
fn of_an_upgrade(received: Received) -> io::Result<Predecessor> {
    let Received {
        document,
        descriptors,
        undone,
    } = received;
    let inherited = Predecessor {
        undone,
        ..read(&document, descriptors, Ending::Upgrade)?
    };
    let children: Vec<_> = inherited.engine.children().collect();
    reap_last_children(&children)?;
    Ok(inherited)
}

fn read(document: &[u8], descriptors: Vec<OwnedFd>, ending: Ending) -> io::Result<Predecessor> {
    let inventory: Inventory = serde_json::from_slice(document)?;
    if inventory.format != upgrade::FORMAT {
        let what = format!("a handoff of format {}", inventory.format);
        return Err(io::Error::new(ErrorKind::InvalidData, what));
    }
    let mut descriptors = descriptors.into_iter();
    let engine = EngineHandoff::from_parts(inventory.engine, &mut descriptors)?;
    let mut next = || descriptors.next().ok_or(ErrorKind::UnexpectedEof);
    let listeners: Result<_, _> = (0..inventory.listeners)
        .map(|_| next().map(TcpListener::from))
        .collect();
    Ok(Predecessor {
        worker_id: inventory.worker_id,
        listeners: listeners?,
        listeners_given: inventory.listeners_given,
        connections: inventory.connections,
        admin_socket: inventory.admin_socket,
        nonce: inventory.nonce,
        undone: None,
        number: inventory.number,
        ending,
        engine,
    })
}

/// Reaps children of the program before `exec`, which killed all except the living ones.
fn reap_last_children(living: &[u32]) -> io::Result<()> {
    let children = std::fs::read_to_string("/proc/thread-self/children")?;
    let pids = children
        .split_whitespace()
        .filter(|pid| pid.parse().is_ok_and(|pid| !living.contains(&pid)))
        .filter_map(|pid| Pid::from_raw(pid.parse().ok()?));
    let pids: Vec<_> = pids.collect();
    let reap = move || {
        for pid in pids {
            // The child may have been reaped already.
            let _ = waitid(WaitId::Pid(pid), WaitIdOptions::EXITED);
        }
    };
    thread::Builder::new()
        .name("last-children".to_owned())
        .spawn(reap)
        .map(drop)
}

impl Predecessor {
    /// Takes over the worker's id, unless the settings name one.
    pub(super) fn settle(&self, config: &mut Config) {
        if config.worker_is_unnamed {
            config.worker_id = self.worker_id;
        }
        if self.ending == Ending::Upgrade {
            // The earlier supervisor has called it.
            config.callback_url = None;
        }
    }

    /// Takes its sockets, unless the settings name other addresses.
    pub(super) fn sockets(&mut self, http: &HttpConfig) -> Sockets {
        let listeners = std::mem::take(&mut self.listeners);
        let addresses = listeners.iter().map(TcpListener::local_addr);
        let addresses: io::Result<Vec<_>> = addresses.collect();
        let are_asked_for = addresses.is_ok_and(|addresses| http.asks_for(&addresses));
        let (listeners, before) = match are_asked_for || self.listeners_given {
            true => (listeners, Vec::new()),
            false => (Vec::new(), listeners),
        };
        Sockets {
            given: self.listeners_given && before.is_empty(),
            listeners,
            before,
        }
    }

    /// True after an upgrade, false after a crash.
    pub(super) fn is_of_an_upgrade(&self) -> bool {
        self.ending == Ending::Upgrade
    }

    pub(super) fn model_path(&self) -> &str {
        &self.engine.note.model_path
    }

    /// Selected devices, if they were selected for this process.
    pub(super) fn devices(&self) -> Option<Vec<DeviceSelector>> {
        let devices = self.engine.note.devices.iter();
        let devices: Option<Vec<_>> = devices.map(|device| device.selector).collect();
        devices.filter(|it| !it.is_empty() && self.ending == Ending::Upgrade)
    }

    /// Requests of the journal.
    ///
    /// # Errors
    /// If the write-ahead log is unreadable.
    pub(super) fn requests(&mut self) -> io::Result<Vec<Restored>> {
        let log = self.engine.wal.take();
        log.map_or(Ok(Vec::new()), |log| wal::read(log, self.ending))
    }

    /// Takes the engine's part.
    pub(super) fn engine(&mut self) -> PreviousEngine {
        let mut requests = self.requests().unwrap_or_else(|error| {
            tracing::error!(%error, "wal_unreadable");
            Vec::new()
        });
        let handoff = std::mem::take(&mut self.engine);
        let connected = |job_id: &str| {
            let mut answers = self
                .connections
                .iter()
                .filter_map(|note| note.answer.as_ref());
            answers.any(|answer| answer.job_id == job_id)
        };
        // A client cannot resume an answer if it never received the id.
        requests.retain(|request| {
            let format = AnswerFormat::read(&request.format);
            let answer = request.part_of.as_ref().unwrap_or(&request.job_id);
            format.is_some_and(|it| it.requested.is_streamed) || connected(answer)
        });
        PreviousEngine { handoff, requests }
    }

    /// Continues all connections, once the driver runs. Resumed requests wait a short time for the first child.
    pub(super) fn go_on(
        self,
        app: &Arc<App>,
        server: &Arc<Server>,
        closing: &watch::Receiver<bool>,
    ) {
        server.handover().hold();
        app.goes_on
            .store(self.is_of_an_upgrade(), Ordering::Release);
        let (held, handover) = (Arc::clone(app), Arc::clone(server.handover()));
        tokio::spawn(async move {
            // Requests are answered in each case.
            let _ = timeout(HELD_FOR, held.engine.wait_ready()).await;
            held.goes_on.store(false, Ordering::Release);
            handover.release();
        });
        let streams = lifeline::release().into_iter().map(TcpStream::from);
        for (stream, note) in streams.zip(self.connections) {
            // The kernel may have closed the connection.
            if let Ok(stream) = tokio::net::TcpStream::from_std(stream) {
                server.take_over(stream, note, closing);
            }
        }
    }
}
