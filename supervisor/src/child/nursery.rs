//! Children in the making: for each a door to knock at, a recorder to write into, and the thread
//! that makes the process.
//!
//! Deliberately absent: what is said to a child, and whether there should be another.

use super::Child;
use super::custody::Custody;
use super::flight_recorder::FlightRecorder;
use super::output::log_lines;
use super::reap::Process;
use super::socket::{Door, PrivateDir};
use super::spawn::{SpawnOrder, Spawned, Spawner};
use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::Child as StdChild;
use thiserror::Error;
use tokio::sync::mpsc;
use tracing::warn;
use worker_orcd_ipc::Generation;
use worker_orcd_lifecycle::Signal;

#[derive(Debug)]
pub(crate) struct Nursery {
    spawner: io::Result<Spawner>,
    spawned: mpsc::UnboundedReceiver<Spawned>,
    /// Made with the first door, and again when it is gone.
    dir: Option<PrivateDir>,
    /// The door at which the process that is being made will knock.
    door: Option<(Generation, Door, Option<Custody>)>,
}

/// Why no process could be ordered.
#[derive(Debug, Error)]
pub(crate) enum NotBegun {
    #[error("the thread that makes processes: {0}")]
    Thread(io::Error),
    /// Something that the supervisor itself lacks, which is no death of a child.
    #[error(transparent)]
    Socket(io::Error),
}

#[derive(Debug)]
pub(crate) enum Born {
    Child(Box<Child>),
    /// Given up while it was being made; it is killed.
    Late {
        pid: u32,
    },
}

impl Nursery {
    #[must_use]
    pub(crate) fn new() -> Self {
        let (answers, spawned) = mpsc::unbounded_channel();
        Self {
            spawner: Spawner::start(answers),
            spawned,
            dir: None,
            door: None,
        }
    }

    /// Orders a child that is allowed so much, and returns what it will write into.
    ///
    /// # Errors
    /// When there is no thread, or no socket can be made.
    pub(crate) fn begin(
        &mut self,
        generation: Generation,
        program: &Path,
        allowed: Vec<OsString>,
    ) -> Result<Option<FlightRecorder>, NotBegun> {
        let spawner = match &self.spawner {
            Ok(spawner) => spawner,
            Err(error) => {
                let error = io::Error::new(error.kind(), error.to_string());
                return Err(NotBegun::Thread(error));
            }
        };
        let dir = match self.dir.take().filter(PrivateDir::exists) {
            Some(dir) => dir,
            None => PrivateDir::create().map_err(NotBegun::Socket)?,
        };
        let dir = self.dir.insert(dir);
        let door = dir.open_door(generation).map_err(NotBegun::Socket)?;
        // A child without one serves as well; only its death is told worse.
        let recorder = FlightRecorder::create(generation)
            .and_then(|recorder| Ok((recorder.for_child()?, recorder)))
            .inspect_err(|error| warn!(%error, "flight_recorder_missing"));
        let (for_child, recorder) = recorder.ok().unzip();
        // So does one without this, as long as nobody touches the model file.
        let custody = dir.open_custody(generation);
        let custody = custody
            .inspect_err(|error| warn!(%error, "custody_socket_missing"))
            .ok();
        spawner.order(SpawnOrder {
            generation,
            program: program.to_owned(),
            socket: door.path().to_owned(),
            custody: custody.as_ref().map(|custody| custody.path().to_owned()),
            allowed,
            recorder: for_child,
        });
        self.door = Some((generation, door, custody));
        Ok(recorder)
    }

    /// The next process that was made, or was not.
    pub(crate) async fn next(&mut self) -> Spawned {
        match self.spawned.recv().await {
            Some(spawned) => spawned,
            None => std::future::pending().await,
        }
    }

    /// Brings a process and its door together.
    ///
    /// # Errors
    /// When there is no process, or nothing can be learned of it.
    pub(crate) fn finish(&mut self, spawned: Spawned) -> io::Result<Born> {
        let generation = spawned.generation;
        let door = self.door.take_if(|(expected, ..)| *expected == generation);
        let process = adopt(spawned.outcome?, generation)?;
        Ok(match door {
            Some((_, door, custody)) => {
                Born::Child(Box::new(Child::new(generation, process, door, custody)))
            }
            None => {
                let pid = process.pid();
                warn!(generation = generation.0, pid, "late_child_killed");
                // Its group ends with it.
                tokio::spawn(see_off(process));
                Born::Late { pid }
            }
        })
    }

    /// Closes the door: no process is expected any more.
    pub(crate) fn give_up(&mut self) {
        self.door = None;
    }
}

/// Takes the process over and lets its output flow into the log.
fn adopt(mut child: StdChild, generation: Generation) -> io::Result<Process> {
    let stdout = child.stdout.take().map(OwnedFd::from);
    let stderr = child.stderr.take().map(OwnedFd::from);
    let process = Process::new(child)?;
    for (pipe, stream) in [(stdout, "stdout"), (stderr, "stderr")] {
        if let Some(pipe) = pipe {
            log_lines(pipe, stream, generation)?;
        }
    }
    Ok(process)
}

async fn see_off(mut process: Process) {
    process.kill(Signal::Kill);
    process.exited().await;
}
