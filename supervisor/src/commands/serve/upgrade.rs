//! SIGUSR2: replaces this program by another one in the same process, without an effect on clients.
//!
//! ```text
//! rehearse ──────────→ quiesce ─→ driver hands over ─→ connections stop ─→ exec ─→ first turn of the next driver
//!   in a process of    TLS        children end,        sockets, and their    │
//!   its own, on a copy ends       the log is whole     place in an answer    └─ or this program again (lifeline)
//! ```
//!
//! Until the driver hands over, an impossible upgrade is refused without effects, and a stop signal cancels it. After
//! that, this program continues if the new one cannot be executed, or does not reach the first turn of its driver
//! ([`lifeline`]).

use super::handoff::SupervisorHandoff;
use super::lifeline;
use super::store::Stored;
use crate::commands::end_with;
use crate::exit::WorkerExit;
use crate::http::App;
use crate::http::listen::Server;
use crate::logging;
use rustix::fs::{MemfdFlags, memfd_create};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{ChildStderr, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe::Receiver;
use tokio::time::timeout;
use uuid::Uuid;
use worker_orcd_engine::child::spawn::Spawner;
use worker_orcd_engine::handoff::passage::Label;
use worker_orcd_ipc::Exit;
use worker_orcd_process::reap::Process;
use worker_orcd_process::signal_mask::unblocked;
use worker_orcd_text::printable::printable;

/// Version of the complete handoff format. Any change to the handoff state increments it.
pub(super) const FORMAT: u32 = 10;

/// Name of the memory file with the result of the last upgrade ([`Report`]).
pub(in crate::commands) const REPORT_NAME: &str = "worker-orcd-upgrade";

/// Prefix of a success report.
pub(in crate::commands) const TAKEN_OVER: &str = "taken over";

/// Time limit of the new program's rehearsal.
const REHEARSAL: Duration = Duration::from_secs(10);

/// Time limit for the start of a worker that has just begun to serve.
const STARTING: Duration = Duration::from_secs(2);

/// Bytes of a rehearsal's output that are read.
const MAX_SAID_BYTES: u64 = 4096;

/// Time beyond the read timeout for requests that cannot be handed over.
const GRACE: Duration = Duration::from_secs(2);

/// Time to write the last lines of the log.
const LAST_LINES: Duration = Duration::from_millis(100);

/// This program, for a repeated execution.
#[derive(Debug, Clone)]
pub(super) struct Program {
    /// Path of its start. The file there may be another one now.
    path: PathBuf,
    arguments: Vec<OsString>,
}

impl Program {
    /// Must be called at start, before the file can be replaced.
    ///
    /// # Errors
    /// If the kernel does not report the path.
    pub(super) fn of_this_process() -> io::Result<Self> {
        Ok(Self {
            path: as_named(&std::env::current_exe()?),
            arguments: std::env::args_os().skip(1).collect(),
        })
    }

    /// Runs the rehearsal of the program that is at the path now, on a copy of the handoff state.
    async fn rehearse(&self, bundle: OwnedFd, nonce: Uuid) -> Result<(), String> {
        let path = self.path.display();
        let mut command = Command::new(&self.path);
        let serve = self.arguments.first().is_some_and(|it| it == "serve");
        command
            .arg(super::rehearsal::COMMAND)
            .args(&self.arguments[usize::from(serve)..])
            // The timeout kills its whole process group.
            .process_group(0)
            .stdin(bundle)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        without_descriptors_of_systemd(&mut command);
        let not_started = |error| format!("{path} cannot be started: {error}");
        let mut started = unblocked(|| command.spawn()).map_err(not_started)?;
        // The command holds the bundle.
        drop(command);
        let outputs = (started.stdout.take(), started.stderr.take());
        let mut process = Process::new(started).map_err(not_started)?;
        let answer = async {
            let (said, complaint) = tokio::join!(read_out(outputs.0), read_err(outputs.1));
            (process.exited().await, said, complaint)
        };
        let Ok((exit, said, complaint)) = timeout(REHEARSAL, answer).await else {
            let seconds = REHEARSAL.as_secs();
            return Err(format!(
                "{path} did not finish its rehearsal within {seconds} s"
            ));
        };
        if exit == Exit::Code(0) && said == answer_to(nonce) {
            return Ok(());
        }
        Err(match complaint.is_empty() {
            true => format!(
                "{path} did not rehearse its start, or reads another format: {exit:?} {said}"
            ),
            false => format!("{path}: {complaint}"),
        })
    }

    fn command(&self, path: &Path) -> Command {
        let mut command = Command::new(path);
        command.args(&self.arguments);
        command
    }
}

async fn read_out(pipe: Option<ChildStdout>) -> String {
    read(pipe.map(OwnedFd::from)).await
}

async fn read_err(pipe: Option<ChildStderr>) -> String {
    read(pipe.map(OwnedFd::from)).await
}

/// Reads a process's output up to a limit. The pipe is closed at the limit.
async fn read(pipe: Option<OwnedFd>) -> String {
    let mut said = Vec::new();
    if let Some(Ok(pipe)) = pipe.map(Receiver::from_owned_fd) {
        // An error keeps the output so far.
        let _ = pipe.take(MAX_SAID_BYTES).read_to_end(&mut said).await;
    }
    printable(String::from_utf8_lossy(&said).trim())
}

/// Removes the variables of socket activation: these sockets are handed over in the bundle.
pub(super) fn without_descriptors_of_systemd(command: &mut Command) {
    for variable in ["LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"] {
        command.env_remove(variable);
    }
}

/// Answer of a successful rehearsal with this nonce.
pub(super) fn answer_to(nonce: Uuid) -> String {
    format!("{FORMAT} {nonce}")
}

/// Original path of a program, even after its file was replaced.
pub(in crate::commands) fn as_named(path: &Path) -> PathBuf {
    // Suffix of the kernel for an unlinked file (proc(5)).
    let path = path.as_os_str().as_bytes();
    let path = path.strip_suffix(b" (deleted)").unwrap_or(path);
    OsStr::from_bytes(path).into()
}

/// Result of the last upgrade, in a memory file that `worker-orcd upgrade` finds among this process's descriptors.
#[derive(Debug)]
pub(super) struct Report(Option<File>);

impl Report {
    /// Empty, or with the result of the upgrade that started this process.
    pub(super) fn new() -> Self {
        let memory = memfd_create(REPORT_NAME, MemfdFlags::CLOEXEC);
        Self(memory.ok().map(File::from))
    }

    pub(super) fn send(&self, outcome: &str) {
        let Some(file) = &self.0 else { return };
        #[expect(
            clippy::disallowed_methods,
            reason = "so that no two reports are equal"
        )]
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        // One line for each.
        let outcome = outcome.split_whitespace().collect::<Vec<_>>().join(" ");
        let text = format!("{outcome}\n{}", since.unwrap_or_default().as_nanos());
        // The reader waits for a complete report.
        let _ = file.set_len(0);
        let _ = file.write_all_at(text.as_bytes(), 0);
    }
}

/// State for the next supervisor.
#[derive(Debug)]
pub(super) struct Holdings {
    pub(super) program: Program,
    /// The thread that created the children, which live on.
    pub(super) spawner: Spawner,
    pub(super) app: Arc<App>,
    pub(super) server: Arc<Server>,
    pub(super) listeners: Arc<[TcpListener]>,
    /// A service manager created them.
    pub(super) listeners_given: bool,
    pub(super) admin_socket: Option<PathBuf>,
    pub(super) stored: Stored,
    pub(super) report: Report,
    pub(super) read_timeout: Duration,
}

impl Holdings {
    /// Runs all fallible steps while this program serves. Requests are held after success. If it is cancelled,
    /// [`call_off`](Self::call_off) reverts all effects.
    ///
    /// # Errors
    /// Why an upgrade is not possible.
    pub(super) async fn prepare(&self) -> Result<(), String> {
        if self.app.engine.is_closed() {
            return Err("the worker is ending".to_owned());
        }
        // A worker needs a moment after the previous upgrade.
        match timeout(STARTING, self.app.engine.wait_ready()).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => return Err("the engine has ended".to_owned()),
            Err(_) => return Err("the worker is starting".to_owned()),
        }
        let engine = self.app.engine.copy_handoff().await;
        let engine = engine.ok_or("the engine has ended")?;
        let nonce = Uuid::new_v4();
        let handoff = self.handoff(engine, nonce);
        let bundle = handoff
            .pack()
            .map_err(|error| format!("nothing can be handed over: {error}"))?;
        drop(handoff);
        self.program.rehearse(bundle.into(), nonce).await?;
        match self
            .server
            .handover()
            .quiesce(self.read_timeout + GRACE)
            .await
        {
            true => Ok(()),
            false => Err("requests are still sent in chunks, or answered over TLS".to_owned()),
        }
    }

    fn handoff(
        &self,
        engine: worker_orcd_engine::handoff::EngineHandoff,
        nonce: Uuid,
    ) -> SupervisorHandoff {
        SupervisorHandoff {
            number: self.stored.number(),
            nonce,
            listeners_given: self.listeners_given,
            worker_id: self.app.worker_id,
            admin_socket: self.admin_socket.clone(),
            engine,
            listeners: Arc::clone(&self.listeners),
            connections: Vec::new(),
        }
    }

    /// Reports a refused upgrade. The worker serves on.
    pub(super) fn refuse(&self, reason: &str) {
        tracing::error!(reason, "upgrade_refused");
        self.report.send(&format!("refused: {reason}"));
    }

    /// Reverts [`prepare`](Self::prepare).
    pub(super) fn call_off(&self, reason: &str) {
        self.server.handover().release();
        self.refuse(reason);
    }

    /// Executes the prepared program. Returns if the engine has ended meanwhile, or, with an exit code, if neither
    /// program can be executed.
    pub(super) async fn hand_over(&self) -> Option<WorkerExit> {
        tracing::info!(program = %self.program.path.display(), "upgrade");
        let Some(engine) = self.app.engine.hand_over().await else {
            self.call_off("the engine has ended");
            return None;
        };
        self.app.hand_over();
        let connections = self.server.handover().collect().await;
        let unsent_bytes: usize = connections.iter().map(|left| left.note.unsent.len()).sum();
        tracing::info!(count = connections.len(), unsent_bytes, "connections_left");
        logging::settle(LAST_LINES);
        let handoff = SupervisorHandoff {
            connections,
            ..self.handoff(engine, Uuid::nil())
        };
        let departure = Arc::new(Departure {
            handoff,
            program: File::open("/proc/self/exe").ok(),
        });
        let next = self.execute(&self.program.path, &departure, None).await;
        tracing::error!(error = %next, "upgrade_failed");
        logging::settle(LAST_LINES);
        let reason = format!("it cannot be executed: {next}");
        let this = Path::new("/proc/self/exe");
        let error = self.execute(this, &departure, Some(reason)).await;
        let reason = format!("nothing could take over: {error}");
        Some(end_with(WorkerExit::Startup, &reason))
    }

    async fn execute(
        &self,
        path: &Path,
        departure: &Arc<Departure>,
        undone: Option<String>,
    ) -> io::Error {
        let (command, departure) = (self.program.command(path), Arc::clone(departure));
        let execute = move || departure.execute(command, undone);
        self.spawner.execute(Box::new(execute)).await
    }
}

/// State that passes through `exec`.
struct Departure {
    handoff: SupervisorHandoff,
    /// This program, for the next one's rollback.
    program: Option<File>,
}

impl Departure {
    fn execute(&self, command: Command, undone: Option<String>) -> io::Error {
        let program = self.program.as_ref().filter(|_| undone.is_none());
        let label = Label {
            has_program: program.is_some(),
            connections: self.handoff.connections.len(),
            arguments: std::env::args_os().collect(),
            variables: std::env::vars_os().collect(),
            undone,
        };
        let (document, descriptors) = match self.handoff.parts() {
            Ok(parts) => parts,
            Err(error) => return error,
        };
        let program = program.map(|it| it.as_fd());
        let all: Vec<BorrowedFd<'_>> = program.into_iter().chain(descriptors).collect();
        lifeline::execute(command, &label, &document, &all)
    }
}
