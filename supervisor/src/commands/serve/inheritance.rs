//! What this supervisor finds of an earlier one, and what it leaves.
//!
//! It comes in a [`parcel`]: after an upgrade in this process's own descriptor 0, after a crash in the
//! descriptor store of the service manager.

use crate::commands::serve::upgrade;
use crate::engine::Inheritance;
use crate::estate::parcel::{Parcel, pack, unpack};
use crate::estate::{EngineEstate, EngineNote};
use crate::http::App;
use crate::http::connection::Handed;
use crate::http::handover::{ConnectionNote, Left};
use crate::http::listen::Server;
use crate::http::presentation::Presentation;
use crate::requests::wal::{self, Ending};
use rustix::net::{AddressFamily, SocketType, sockopt};
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixDatagram;
use std::sync::Arc;
use std::thread;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::timeout;
use uuid::Uuid;
use worker_orcd_ipc::{DeviceSelector, Generation, LoadOrder};

/// Longest time for which new requests wait for the first child.
const HELD_FOR: Duration = Duration::from_secs(2);

/// An earlier supervisor's.
#[derive(Debug)]
pub(super) struct Inherited {
    pub(super) worker_id: Uuid,
    pub(super) listeners: Vec<TcpListener>,
    pub(super) connections: Vec<(TcpStream, ConnectionNote)>,
    /// It was told to end when it could not any more: the time to do so.
    pub(super) stops: Option<Duration>,
    /// Number of the parcel in the descriptor store.
    pub(super) number: u64,
    ending: Ending,
    engine: EngineEstate,
}

/// The document of a parcel. The descriptors are those of the engine, listeners and connections, in this order.
#[derive(Debug, Serialize, Deserialize)]
struct Inventory {
    format: u32,
    number: u64,
    worker_id: Uuid,
    engine: EngineNote,
    listeners: usize,
    connections: Vec<ConnectionNote>,
    stops: Option<Duration>,
}

/// What is left.
#[derive(Debug)]
pub(super) struct Estate<'a> {
    /// Those of one worker are numbered, in the order in which they were made.
    pub(super) number: u64,
    pub(super) worker_id: Uuid,
    pub(super) engine: &'a EngineEstate,
    pub(super) listeners: &'a [TcpListener],
    pub(super) connections: Vec<Left>,
    pub(super) stops: Option<Duration>,
}

impl Estate<'_> {
    /// # Errors
    /// When the kernel has no memory or no descriptor for it.
    pub(super) fn pack(self) -> io::Result<UnixDatagram> {
        let (engine, mut descriptors) = self.engine.parts();
        descriptors.extend(self.listeners.iter().map(|it| it.as_fd()));
        let (connections, sockets): (Vec<_>, Vec<_>) = self
            .connections
            .into_iter()
            .map(|left| (left.note, left.socket))
            .unzip();
        descriptors.extend(sockets.iter().map(|it| it.as_fd()));
        let inventory = Inventory {
            format: upgrade::FORMAT,
            number: self.number,
            worker_id: self.worker_id,
            engine,
            listeners: self.listeners.len(),
            connections,
            stops: self.stops,
        };
        pack(&serde_json::to_vec(&inventory)?, &descriptors)
    }
}

/// What an upgrade has left in descriptor 0, which is nobody's any more then. To be called before anything
/// else has a child.
///
/// # Errors
/// When there is something that cannot be read: an upgrade that failed.
pub(super) fn of_an_upgrade() -> io::Result<Option<Inherited>> {
    let stdin = io::stdin();
    let socket = stdin.as_fd();
    let is_datagram = sockopt::socket_type(socket) == Ok(SocketType::DGRAM);
    if !is_datagram || sockopt::socket_domain(socket) != Ok(AddressFamily::UNIX) {
        return Ok(None);
    }
    let socket = UnixDatagram::from(socket.try_clone_to_owned()?);
    let parcel = match unpack(&socket) {
        Ok(parcel) => parcel,
        // Somebody else's socket.
        Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
        Err(error) => return Err(error),
    };
    rustix::stdio::dup2_stdin(&File::open("/dev/null")?)?;
    reap_last_children()?;
    read(parcel, Ending::Upgrade).map(Some)
}

/// The last of what a supervisor that died has left in the descriptor store. What cannot be read is another
/// version's, and this one begins anew.
pub(super) fn of_a_crash(parcels: &[UnixDatagram]) -> Option<Inherited> {
    let read = |parcel| {
        let read = unpack(parcel).and_then(|parcel| read(parcel, Ending::Crash));
        let unreadable = |error: &io::Error| tracing::warn!(%error, "estate_unreadable");
        read.inspect_err(unreadable).ok()
    };
    let all = parcels.iter().filter_map(read);
    all.max_by_key(|inherited| inherited.number)
}

fn read(parcel: Parcel, ending: Ending) -> io::Result<Inherited> {
    let inventory: Inventory = serde_json::from_slice(&parcel.document)?;
    if inventory.format != upgrade::FORMAT {
        let what = format!("an estate of format {}", inventory.format);
        return Err(io::Error::new(ErrorKind::InvalidData, what));
    }
    let mut descriptors = parcel.descriptors.into_iter();
    let engine = EngineEstate::from_parts(inventory.engine, &mut descriptors)?;
    let mut next = || descriptors.next().ok_or(ErrorKind::UnexpectedEof);
    let listeners: Result<_, _> = (0..inventory.listeners)
        .map(|_| next().map(TcpListener::from))
        .collect();
    let listeners = listeners?;
    let connection = |note| next().map(|socket| (TcpStream::from(socket), note));
    let connections: Result<_, _> = inventory.connections.into_iter().map(connection).collect();
    Ok(Inherited {
        worker_id: inventory.worker_id,
        listeners,
        connections: connections?,
        stops: inventory.stops,
        number: inventory.number,
        ending,
        engine,
    })
}

/// The same process had children before it became this program, and killed them. Nobody else waits for them.
fn reap_last_children() -> io::Result<()> {
    let children = std::fs::read_to_string("/proc/thread-self/children")?;
    let pids = children
        .split_whitespace()
        .filter_map(|pid| Pid::from_raw(pid.parse().ok()?));
    let pids: Vec<_> = pids.collect();
    let reap = move || {
        for pid in pids {
            // One that is not there any more needs nobody.
            let _ = waitid(WaitId::Pid(pid), WaitIdOptions::EXITED);
        }
    };
    thread::Builder::new()
        .name("last-children".to_owned())
        .spawn(reap)
        .map(drop)
}

impl Inherited {
    /// The last child of the supervisor before, which may still be dying.
    pub(super) fn last_child(&self) -> Option<Generation> {
        self.engine.note.last_child
    }

    /// The device that was decided on.
    pub(super) fn device(&self) -> Option<DeviceSelector> {
        self.engine.note.device
    }

    /// The engine's part, and how many tokens the journal has of each job.
    pub(super) fn engine(&mut self, load: &LoadOrder) -> (Inheritance, HashMap<String, u32>) {
        let mut estate = std::mem::take(&mut self.engine);
        estate.keep_for(&load.model_path, load.device);
        let requests = estate.wal.take().map(|wal| wal::read(wal, self.ending));
        let mut requests = match requests {
            Some(Ok(requests)) => requests,
            Some(Err(error)) => {
                tracing::error!(%error, "wal_unreadable");
                Vec::new()
            }
            None => Vec::new(),
        };
        let connected = |job_id: &str| {
            let mut answers = self
                .connections
                .iter()
                .filter_map(|(_, note)| note.answer.as_ref());
            answers.any(|answer| answer.job_id == job_id)
        };
        // Nobody can ask for the rest of an answer whose name was never told.
        requests.retain(|request| {
            let presentation = Presentation::read(&request.presentation);
            presentation.is_some_and(|it| it.form.is_streamed()) || connected(&request.job_id)
        });
        let tokens = requests
            .iter()
            .map(|request| (request.job_id.clone(), request.generated.len() as u32))
            .collect();
        (Inheritance { estate, requests }, tokens)
    }

    /// Goes on with connections, and with an order to end. Whoever asks while the first child starts waits a
    /// little: clients were served a moment ago.
    pub(super) async fn go_on(
        self,
        app: &Arc<App>,
        server: &Arc<Server>,
        tokens: &HashMap<String, u32>,
        closing: &watch::Receiver<bool>,
    ) {
        server.handover().hold();
        let (engine, handover) = (app.engine.clone(), Arc::clone(server.handover()));
        tokio::spawn(async move {
            // However it ends, there is an answer then.
            let _ = timeout(HELD_FOR, engine.wait_ready()).await;
            handover.release();
        });
        for (stream, note) in self.connections {
            let answer = note.answer.as_ref();
            let tokens = answer.and_then(|answer| tokens.get(&answer.job_id).copied());
            let handed = Handed {
                tokens: tokens.unwrap_or_default(),
                note,
            };
            // One of which the kernel knows nothing more is gone.
            if let Ok(stream) = tokio::net::TcpStream::from_std(stream) {
                server.take_over(stream, handed, closing).await;
            }
        }
        if let Some(drain_timeout) = self.stops {
            app.engine.drain(drain_timeout);
        }
    }
}
