//! What this supervisor finds of an earlier one, and what it leaves.
//!
//! It comes in a [`parcel`]: after an upgrade in this process's own descriptor 0, after a crash in the
//! descriptor store of the service manager.

use crate::commands::serve::upgrade;
use crate::config::{Config, HttpConfig};
use crate::engine::Inheritance;
use crate::estate::parcel::{Parcel, pack, unpack};
use crate::estate::{EngineEstate, EngineNote};
use crate::http::App;
use crate::http::handover::{ConnectionNote, Left};
use crate::http::listen::Server;
use crate::http::presentation::Presentation;
use crate::requests::wal::{self, Ending};
use rustix::net::{AddressFamily, SocketType, sockopt};
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
use serde::{Deserialize, Serialize};
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
use worker_orcd_ipc::DeviceSelector;

/// Longest time for which new requests wait for the first child.
const HELD_FOR: Duration = Duration::from_secs(2);

/// An earlier supervisor's.
#[derive(Debug)]
pub(super) struct Inherited {
    worker_id: Uuid,
    listeners: Vec<TcpListener>,
    listeners_given: bool,
    pub(super) connections: Vec<(TcpStream, ConnectionNote)>,
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
    /// A service manager has made them.
    listeners_given: bool,
    connections: Vec<ConnectionNote>,
}

/// What is left.
#[derive(Debug)]
pub(super) struct Estate<'a> {
    /// Those of one worker are numbered, in the order in which they were made.
    pub(super) number: u64,
    pub(super) worker_id: Uuid,
    pub(super) engine: &'a EngineEstate,
    pub(super) listeners: &'a [TcpListener],
    pub(super) listeners_given: bool,
    pub(super) connections: Vec<Left>,
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
            listeners_given: self.listeners_given,
            connections,
        };
        pack(&serde_json::to_vec(&inventory)?, &descriptors)
    }
}

/// What was found of earlier supervisors.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) last: Option<Inherited>,
    /// Why something is another version's. Without it the worker begins anew.
    pub(super) unreadable: Vec<String>,
}

/// Where to listen.
#[derive(Debug)]
pub(super) struct Sockets {
    pub(super) listeners: Vec<TcpListener>,
    /// A service manager has made them.
    pub(super) given: bool,
}

/// What an upgrade has left, or else the last that lies in the descriptor store. To be called before anything
/// else has a child.
///
/// # Errors
/// When an upgrade has left something that cannot be read.
pub(super) fn find(stored: &[UnixDatagram]) -> io::Result<Found> {
    if let Some(last) = of_an_upgrade()? {
        return Ok(Found {
            last: Some(last),
            unreadable: Vec::new(),
        });
    }
    let read = |parcel| unpack(parcel).and_then(|parcel| read(parcel, Ending::Crash));
    let (mut all, mut unreadable) = (Vec::new(), Vec::new());
    for parcel in stored {
        match read(parcel) {
            Ok(inherited) => all.push(inherited),
            Err(error) => unreadable.push(error.to_string()),
        }
    }
    let last = all.into_iter().max_by_key(|inherited| inherited.number);
    Ok(Found { last, unreadable })
}

/// From descriptor 0, which is nobody's any more then.
fn of_an_upgrade() -> io::Result<Option<Inherited>> {
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
    let inherited = read(parcel, Ending::Upgrade)?;
    let devices = inherited.engine.devices.iter();
    let children = devices.filter_map(|it| it.child.as_ref());
    let pids: Vec<_> = children.map(|it| it.note.pid).collect();
    reap_last_children(&pids)?;
    Ok(Some(inherited))
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
        listeners_given: inventory.listeners_given,
        connections: connections?,
        number: inventory.number,
        ending,
        engine,
    })
}

/// The same process had children before it became this program, and killed all but the one that lives on. Nobody
/// else waits for them.
fn reap_last_children(living: &[u32]) -> io::Result<()> {
    let children = std::fs::read_to_string("/proc/thread-self/children")?;
    let pids = children
        .split_whitespace()
        .filter(|pid| pid.parse().is_ok_and(|pid| !living.contains(&pid)))
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
    /// Goes on as the same worker, where nobody has named it.
    pub(super) fn settle(&self, config: &mut Config) {
        if config.worker_is_unnamed {
            config.worker_id = self.worker_id;
        }
        if self.ending == Ending::Upgrade {
            // Whoever was to be told has been told.
            config.callback_url = None;
        }
    }

    /// Its sockets, unless this supervisor is to listen elsewhere.
    pub(super) fn sockets(&mut self, http: &HttpConfig) -> Sockets {
        let listeners = std::mem::take(&mut self.listeners);
        let addresses = listeners.iter().map(TcpListener::local_addr);
        let addresses: io::Result<Vec<_>> = addresses.collect();
        let are_asked_for = addresses.is_ok_and(|addresses| http.asks_for(&addresses));
        match are_asked_for || self.listeners_given {
            true => Sockets {
                listeners,
                given: self.listeners_given,
            },
            false => Sockets {
                listeners: Vec::new(),
                given: false,
            },
        }
    }

    /// The devices that were decided on, if they were for this process.
    pub(super) fn devices(&self) -> Option<Vec<DeviceSelector>> {
        let devices = self.engine.note.devices.iter();
        let devices: Option<Vec<_>> = devices.map(|device| device.selector).collect();
        devices.filter(|it| !it.is_empty() && self.ending == Ending::Upgrade)
    }

    /// The engine's part.
    pub(super) fn engine(&mut self) -> Inheritance {
        let mut estate = std::mem::take(&mut self.engine);
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
            let answer = request.part_of.as_ref().unwrap_or(&request.job_id);
            presentation.is_some_and(|it| it.form.is_streamed()) || connected(answer)
        });
        Inheritance { estate, requests }
    }

    /// Goes on with connections. Whoever asks while the first child starts waits a
    /// little: clients were served a moment ago.
    pub(super) async fn go_on(
        self,
        app: &Arc<App>,
        server: &Arc<Server>,
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
            // One of which the kernel knows nothing more is gone.
            if let Ok(stream) = tokio::net::TcpStream::from_std(stream) {
                server.take_over(stream, note, closing);
            }
        }
    }
}
