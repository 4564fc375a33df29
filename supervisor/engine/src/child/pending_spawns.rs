//! Pending spawns: for each a listener, a flight recorder, and the thread that creates the process.
//!
//! Deliberately absent: messages to a child, and the decision to start one.

use super::Child;
use super::fd_socket::FdSocket;
use super::flight_recorder::FlightRecorder;
use super::output::Outputs;
use super::socket::{Door, PrivateDir};
use super::spawn::{SpawnOrder, Spawned, Spawner};
use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::Child as StdChild;
use tokio::sync::mpsc;
use tracing::warn;
use worker_orcd_ipc::Generation;
use worker_orcd_process::reap::Process;

#[derive(Debug)]
pub(crate) struct PendingSpawns {
    spawner: Spawner,
    answers: mpsc::UnboundedSender<Spawned>,
    spawned: mpsc::UnboundedReceiver<Spawned>,
    /// Socket directory, created with the first listener and again if it is removed.
    dir: Option<PrivateDir>,
    /// Listener for the pending process.
    door: Option<(Generation, Door, Option<FdSocket>)>,
}

#[derive(Debug)]
pub(crate) enum Born {
    Child(Box<Child>),
    /// Process of an abandoned spawn. It is killed.
    Late {
        pid: u32,
    },
}

impl PendingSpawns {
    #[must_use]
    pub(crate) fn new(spawner: Spawner) -> Self {
        let (answers, spawned) = mpsc::unbounded_channel();
        Self {
            spawner,
            answers,
            spawned,
            dir: None,
            door: None,
        }
    }

    /// Orders a child with these permissions, and returns its flight recorder.
    ///
    /// # Errors
    /// If no socket can be created. The supervisor itself then lacks a resource, so this is no death of a child.
    pub(crate) fn begin(
        &mut self,
        generation: Generation,
        program: &Path,
        allowed: Vec<OsString>,
    ) -> io::Result<Option<FlightRecorder>> {
        let dir = match self.dir.take().filter(PrivateDir::exists) {
            Some(dir) => dir,
            None => PrivateDir::create()?,
        };
        let dir = self.dir.insert(dir);
        let door = dir.open_door(generation)?;
        // A child without a recorder serves as well; its crash report has fewer facts.
        let recorder = FlightRecorder::create(generation)
            .and_then(|recorder| Ok((recorder.for_child()?, recorder)))
            .inspect_err(|error| warn!(%error, "flight_recorder_missing"));
        let (for_child, recorder) = recorder.ok().unzip();
        // A child without this socket serves as well, while the model file does not change.
        let fd_socket = dir.open_fd_socket(generation);
        let fd_socket = fd_socket
            .inspect_err(|error| warn!(%error, "fd_socket_missing"))
            .ok();
        self.spawner.order(SpawnOrder {
            generation,
            program: program.to_owned(),
            socket: door.path().to_owned(),
            fd_socket: fd_socket
                .as_ref()
                .and_then(FdSocket::path)
                .map(Path::to_owned),
            allowed,
            recorder: for_child,
            answers: self.answers.clone(),
        });
        self.door = Some((generation, door, fd_socket));
        Ok(recorder)
    }

    /// Next result of a spawn.
    pub(crate) async fn next(&mut self) -> Spawned {
        match self.spawned.recv().await {
            Some(spawned) => spawned,
            None => std::future::pending().await,
        }
    }

    /// Combines a process with its listener.
    ///
    /// # Errors
    /// If there is no process, or it cannot be watched.
    pub(crate) fn finish(&mut self, spawned: Spawned) -> io::Result<Born> {
        let generation = spawned.generation;
        let door = self.door.take_if(|(expected, ..)| *expected == generation);
        let (process, outputs) = adopt(spawned.outcome?, generation)?;
        Ok(match door {
            Some((_, door, fd_socket)) => {
                let child = Child::new(generation, process, door, fd_socket, outputs);
                Born::Child(Box::new(child))
            }
            None => {
                let pid = process.pid();
                warn!(generation = generation.0, pid, "late_child_killed");
                // The process group ends with it.
                tokio::spawn(see_off(process));
                Born::Late { pid }
            }
        })
    }

    /// Drops the listener of an abandoned spawn.
    pub(crate) fn give_up(&mut self) {
        self.door = None;
    }
}

/// Takes over the process and starts to log its output.
fn adopt(mut child: StdChild, generation: Generation) -> io::Result<(Process, Outputs)> {
    let outputs = Outputs {
        stdout: child.stdout.take().map(OwnedFd::from),
        stderr: child.stderr.take().map(OwnedFd::from),
    };
    let process = Process::new(child)?;
    outputs.log(generation)?;
    Ok((process, outputs))
}

pub(crate) async fn see_off(mut process: Process) {
    process.kill();
    process.exited().await;
}
