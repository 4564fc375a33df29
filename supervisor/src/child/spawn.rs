//! The one thread that makes processes.
//!
//! A child asks the kernel to be killed when its parent dies (`PR_SET_PDEATHSIG`), and the kernel
//! takes "parent" to be the *thread* that forked it. A worker thread of the runtime may end at
//! any time; this thread lives as long as the supervisor, so the promise holds exactly as long.

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child as StdChild, Command, Stdio};
use std::sync::mpsc;
use tokio::sync::mpsc::UnboundedSender;
use worker_orcd_ipc::Generation;

/// Start a child that connects to `socket`.
#[derive(Debug)]
pub(crate) struct SpawnOrder {
    pub generation: Generation,
    pub program: PathBuf,
    pub socket: PathBuf,
    /// Path of the socket at which it hands descriptors over, if such a socket could be made.
    pub custody: Option<PathBuf>,
    /// What it may have ([`confinement`](super::confinement)).
    pub allowed: Vec<OsString>,
    /// Becomes the child's descriptor 0: its flight recorder, where one could be made.
    pub recorder: Option<OwnedFd>,
}

#[derive(Debug)]
pub(crate) struct Spawned {
    pub generation: Generation,
    pub outcome: io::Result<StdChild>,
}

/// Ends its thread when dropped.
#[derive(Debug)]
pub(crate) struct Spawner {
    orders: mpsc::Sender<SpawnOrder>,
}

impl Spawner {
    /// Outcomes go to `answers`, one per order.
    ///
    /// # Errors
    /// When the machine has no thread to give.
    pub(crate) fn start(answers: UnboundedSender<Spawned>) -> io::Result<Self> {
        let (orders, inbox) = mpsc::channel::<SpawnOrder>();
        std::thread::Builder::new()
            .name("spawner".to_owned())
            .spawn(move || {
                for order in inbox {
                    let generation = order.generation;
                    let answer = Spawned {
                        generation,
                        outcome: spawn(order),
                    };
                    if let Err(refused) = answers.send(answer) {
                        abandon(refused.0);
                    }
                }
            })?;
        Ok(Self { orders })
    }

    /// Does not wait.
    pub(crate) fn order(&self, order: SpawnOrder) {
        // The thread ends only after this sender is gone.
        drop(self.orders.send(order));
    }
}

fn spawn(order: SpawnOrder) -> io::Result<StdChild> {
    let mut command = Command::new(&order.program);
    if let Some(custody) = &order.custody {
        command.arg("--custody").arg(custody);
    }
    command
        .arg("--socket")
        .arg(&order.socket)
        .arg("--generation")
        .arg(order.generation.to_string())
        .arg("--parent")
        .arg(std::process::id().to_string())
        .args(order.allowed)
        // Its own group: it is killed with everything it forks, and a Ctrl-C in the terminal
        // reaches the supervisor alone, which then drains.
        .process_group(0)
        .stdin(order.recorder.map_or_else(Stdio::null, Stdio::from))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
}

/// Kills a new process that nobody is left to look after.
fn abandon(answer: Spawned) {
    if let Ok(mut child) = answer.outcome {
        drop(child.kill());
        drop(child.wait());
    }
}

/// Errors that a second attempt meets again.
#[must_use]
pub(crate) fn is_permanent(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound
            | io::ErrorKind::PermissionDenied
            | io::ErrorKind::NotADirectory
            | io::ErrorKind::IsADirectory
    ) || error.raw_os_error() == Some(rustix::io::Errno::NOEXEC.raw_os_error())
}

/// Errors that tell of this process's descriptors, or the machine's, and of nothing else.
#[must_use]
pub(crate) fn is_want_of_descriptors(error: &io::Error) -> bool {
    let wants = [rustix::io::Errno::MFILE, rustix::io::Errno::NFILE];
    wants
        .iter()
        .any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}
