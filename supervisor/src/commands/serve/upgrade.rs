//! SIGUSR2: another program takes the place of this one, in the same process, and no client notices.
//!
//! ```text
//! ask the new program ─→ hush ─→ the driver leaves ─→ connections leave ─→ exec
//!   settings, format     requests on       children end,     sockets, and where    descriptor 0 is the parcel
//!                        their way come    the log is whole  in which answer
//!                        in
//! ```
//!
//! Until the driver leaves, an upgrade that is not possible is refused, and nothing has happened. After
//! that, this program itself is what takes over when the new one cannot be executed.

use super::inheritance::Estate;
use super::store::Stored;
use crate::child::spawn::Spawner;
use crate::commands::end_with;
use crate::exit::WorkerExit;
use crate::http::App;
use crate::http::listen::Server;
use crate::logging;
use crate::signals::{Signals, unblocked};
use clap::Command as Cli;
use std::convert::Infallible;
use std::ffi::{OsStr, OsString};
use std::io;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

/// Of everything that one supervisor leaves to another: raised whenever any of it changes.
pub(super) const FORMAT: u32 = 8;

pub const COMMAND: &str = "takes-over";

/// Time for the new program to say whether it can take over.
const ANSWER: Duration = Duration::from_secs(10);

/// Time beyond the read timeout for requests that are being sent.
const GRACE: Duration = Duration::from_secs(2);

/// Time for the last lines of the log to be read.
const LAST_LINES: Duration = Duration::from_millis(100);

/// This program as it can be executed again.
#[derive(Debug, Clone)]
pub(super) struct Program {
    /// The path by which it was found; another file may be there by now.
    path: PathBuf,
    arguments: Vec<OsString>,
}

impl Program {
    /// To be called at the start, before the file can have been replaced.
    ///
    /// # Errors
    /// When the kernel does not tell.
    pub(super) fn of_this_process() -> io::Result<Self> {
        Ok(Self {
            path: as_named(&std::env::current_exe()?),
            arguments: std::env::args_os().skip(1).collect(),
        })
    }

    /// Whether the program that the path leads to now can go on with these settings.
    async fn takes_over(&self) -> Result<(), String> {
        let path = self.path.display();
        let mut question = tokio::process::Command::new(&self.path);
        let serve = self.arguments.first().is_some_and(|it| it == "serve");
        question
            .arg(COMMAND)
            .args(&self.arguments[usize::from(serve)..]);
        let answer = question
            .stdin(std::process::Stdio::null())
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .kill_on_drop(true);
        let asked = match unblocked(|| answer.spawn()) {
            Ok(asked) => asked.wait_with_output(),
            Err(error) => return Err(format!("{path} cannot be started: {error}")),
        };
        let answer = match tokio::time::timeout(ANSWER, asked).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => return Err(format!("{path} cannot be started: {error}")),
            Err(_) => return Err(format!("{path} did not answer")),
        };
        let said = String::from_utf8_lossy(&answer.stdout);
        if said.trim().parse() == Ok(FORMAT) {
            return Ok(());
        }
        let complaint = String::from_utf8_lossy(&answer.stderr);
        let complaint = complaint.trim();
        Err(match complaint.is_empty() {
            true => format!(
                "{path} cannot go on with what this version leaves: {}",
                said.trim()
            ),
            false => format!("{path}: {complaint}"),
        })
    }

    /// Becomes it. Returns only when there is nothing that could be executed.
    async fn execute(&self, parcel: OwnedFd, spawner: &Spawner) -> io::Error {
        let first = match parcel.try_clone() {
            Ok(parcel) => spawner.execute(self.command(&self.path, parcel)).await,
            Err(error) => return error,
        };
        tracing::error!(error = %first, "upgrade_failed");
        logging::settle(LAST_LINES);
        let this = Path::new("/proc/self/exe");
        spawner.execute(self.command(this, parcel)).await
    }

    fn command(&self, path: &Path, parcel: OwnedFd) -> Command {
        let mut command = Command::new(path);
        command.args(&self.arguments).stdin(parcel);
        // Those descriptors are in the parcel.
        for variable in ["LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"] {
            command.env_remove(variable);
        }
        command
    }
}

/// The path of a program as it was found, whatever has become of the file since.
pub(in crate::commands) fn as_named(path: &Path) -> PathBuf {
    // The kernel's word for a file that has no name any more (proc(5)).
    let path = path.as_os_str().as_bytes();
    let path = path.strip_suffix(b" (deleted)").unwrap_or(path);
    OsStr::from_bytes(path).into()
}

/// The command by which a running program asks this one.
#[must_use]
pub fn command_line() -> Cli {
    Cli::new(COMMAND)
        .about("Says whether this program could take over from a running one with these settings")
        .args_override_self(true)
        .hide(true)
}

/// The answer to [`Program::takes_over`].
pub fn answer() {
    println!("{FORMAT}");
}

/// Everything that is handed over.
#[derive(Debug)]
pub(super) struct Holdings {
    pub(super) program: Program,
    /// The thread whose children live on.
    pub(super) spawner: Spawner,
    pub(super) app: Arc<App>,
    pub(super) server: Arc<Server>,
    pub(super) listeners: Arc<[TcpListener]>,
    /// A service manager has made them.
    pub(super) listeners_given: bool,
    pub(super) stored: Stored,
    pub(super) read_timeout: Duration,
}

impl Holdings {
    /// Returns only when it was refused, or, with the exit code, when it failed.
    pub(super) async fn hand_over(
        &self,
        _signals: &mut Signals,
    ) -> Result<Infallible, Option<WorkerExit>> {
        let refused = |reason: &str| {
            tracing::error!(reason, "upgrade_refused");
            None
        };
        if self.app.engine.is_closed() {
            return Err(refused("the worker is ending"));
        }
        if self.app.engine.model().is_none() {
            return Err(refused("the worker is starting"));
        }
        if let Err(reason) = self.program.takes_over().await {
            return Err(refused(&reason));
        }
        let handover = self.server.handover();
        if !handover.hush(self.read_timeout + GRACE).await {
            return Err(refused(
                "requests are still being sent, or answered over TLS",
            ));
        }
        tracing::info!(program = %self.program.path.display(), "upgrade");
        let Some(engine) = self.app.engine.leave().await else {
            return Err(refused("the engine has ended"));
        };
        self.app.leaves();
        let connections = handover.collect().await;
        let unsent_bytes: usize = connections.iter().map(|left| left.note.unsent.len()).sum();
        tracing::info!(count = connections.len(), unsent_bytes, "connections_left");
        let estate = Estate {
            number: self.stored.number(),
            listeners_given: self.listeners_given,
            worker_id: self.app.worker_id,
            engine: &engine,
            listeners: &self.listeners,
            connections,
        };
        let parcel = estate.pack();
        logging::settle(LAST_LINES);
        let error = match parcel {
            Ok(parcel) => self.program.execute(parcel.into(), &self.spawner).await,
            Err(error) => error,
        };
        let reason = format!("nothing could take over: {error}");
        Err(Some(end_with(WorkerExit::Startup, &reason)))
    }
}
