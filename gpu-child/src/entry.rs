//! Start of the process, from `main` to [`serve`]: arguments, parent-death signal, socket, [`confinement`]; or the
//! [answer to a query](crate::questions).

use crate::confinement::{self, Allowed};
use crate::exit;
#[cfg(feature = "fault-injection")]
use crate::fault_injection;
use crate::fd_socket::FdSocket;
use crate::flight_recorder::FlightRecorder;
use crate::questions::Questions;
use crate::sentinel;
use crate::serve::{Link, Loaded, Progress, hello, serve};
use clap::Parser;
use interprocess::local_socket::{GenericFilePath, Stream, prelude::*};
use nix::sys::prctl;
use nix::sys::signal::{SigHandler, Signal, signal};
use nix::unistd::{Pid, getppid};
use rustix::io::fcntl_dupfd_cloexec;
use rustix::process::{Resource, getrlimit};
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::sync::Arc;
use worker_orcd_ipc::{ExitCode, Fault, FaultKind, Generation, LoadOrder};

/// Points above the parent's score: as if this process used half of the machine's memory more than it does.
const OOM_SCORE_ABOVE_PARENT: i32 = 500;
const MAX_OOM_SCORE: i32 = 1000;

/// The disposable process that owns one device. Started by worker-orcd, not by hand.
#[derive(Debug, Parser)]
#[command(name = "worker-orcd-gpu", version)]
struct Arguments {
    #[command(flatten)]
    questions: Questions,
    #[command(flatten)]
    allowed: Allowed,
    #[command(flatten)]
    serving: Option<Serving>,
}

#[derive(Debug, clap::Args)]
struct Serving {
    /// The supervisor's control socket.
    #[arg(long)]
    socket: PathBuf,
    /// The supervisor's socket for descriptors. Without it the model file is not handed on.
    #[arg(long)]
    fd_socket: Option<PathBuf>,
    /// Number of this child, counted from 1.
    #[arg(long)]
    generation: u32,
    /// Process id of the supervisor: when the parent is another by now, it is dead.
    #[arg(long)]
    parent: Option<i32>,
}

/// Serves until the connection ends; never returns.
pub fn run<L>(loader: L) -> !
where
    L: FnOnce(&LoadOrder, Option<&FdSocket>, Progress<'_>) -> Result<Loaded, Fault>,
{
    let (serving, allowed) = begin();
    let (connection, loader) = Connection::open(serving, &allowed, loader);
    let socket = connection.socket.clone();
    connection.converse(&[], socket, loader)
}

/// Variant of [`run`] with the injected faults of `WORKER_ORCD_FAULTS`. Its `Hello` names the feature, and the
/// supervisor refuses it unless started with `--accept-fault-injection`.
#[cfg(feature = "fault-injection")]
pub fn run_with_faults<L>(loader: L) -> !
where
    L: FnOnce(&LoadOrder, Option<&FdSocket>, Progress<'_>) -> Result<Loaded, Fault>,
{
    let (serving, mut allowed) = begin();
    let rules = fault_injection::rules();
    let rules = rules.unwrap_or_else(|error| end(ExitCode::Usage, &error.to_string()));
    // Files that trigger rules.
    allowed
        .removable
        .extend(fault_injection::directories(&rules));
    let (connection, loader) = Connection::open(serving, &allowed, loader);
    let socket = connection.socket.clone();
    let (socket, loader) = fault_injection::arm(rules, connection.generation, socket, loader);
    connection.converse(&[fault_injection::FEATURE], socket, loader)
}

/// Answers a query and exits, or returns the arguments for serving.
fn begin() -> (Serving, Allowed) {
    exit::end_process_on_panic(|_| {});
    let Arguments {
        questions,
        allowed,
        serving,
    } = Arguments::parse();
    questions.answer();
    let Some(serving) = serving else {
        end(ExitCode::Usage, "--socket and --generation are needed");
    };
    stand_in_for_the_supervisor();
    make_room_for_descriptors();
    if let Err(error) = tie_to_parent(serving.parent) {
        end(
            ExitCode::Fault(FaultKind::Io),
            &format!("the signals cannot be set up: {error}"),
        );
    }
    (serving, allowed)
}

/// A confined process with its control socket.
struct Connection {
    socket: Socket,
    generation: Generation,
    confinement_gaps: Vec<String>,
}

impl Connection {
    /// Connects to the supervisor, then confines the process. The returned loader owns the socket for descriptors.
    fn open<L>(
        serving: Serving,
        allowed: &Allowed,
        loader: L,
    ) -> (
        Self,
        impl FnOnce(&LoadOrder, Progress<'_>) -> Result<Loaded, Fault> + use<L>,
    )
    where
        L: FnOnce(&LoadOrder, Option<&FdSocket>, Progress<'_>) -> Result<Loaded, Fault>,
    {
        let mut confinement_gaps = confinement::begin(allowed);
        let lost = |what: &str, error: io::Error| -> ! {
            end(ExitCode::Fault(FaultKind::Io), &format!("{what}: {error}"))
        };
        let socket = connect(serving.socket);
        let socket = socket.unwrap_or_else(|error| lost("the control socket", error));
        let fd_socket = serving.fd_socket.as_deref().map(FdSocket::connect);
        let fd_socket = fd_socket.transpose();
        let fd_socket = fd_socket.unwrap_or_else(|error| lost("the socket for descriptors", error));
        confinement_gaps.extend(confinement::enter(allowed));
        let is_watched = fd_socket.as_ref().is_some_and(post_sentinel);
        let loader = move |order: &LoadOrder, progress: Progress<'_>| {
            let loaded = loader(order, fd_socket.as_ref(), progress);
            if !is_watched {
                // The supervisor would take the socket's end for this process's.
                std::mem::forget(fd_socket);
            }
            loaded
        };
        let connection = Self {
            socket,
            generation: Generation(serving.generation),
            confinement_gaps,
        };
        (connection, loader)
    }

    /// Serves until the supervisor is gone. Events go to `writer`.
    fn converse<W>(
        self,
        features: &[&str],
        writer: W,
        loader: impl FnOnce(&LoadOrder, Progress<'_>) -> Result<Loaded, Fault>,
    ) -> !
    where
        W: Write + Send + 'static,
    {
        let link = Arc::new(Link::new(writer, self.generation, exit::end_process()));
        let speaker = Arc::clone(&link);
        // The panicking thread may hold the link: then no event can be sent any more.
        exit::end_process_on_panic(move |fault| speaker.try_last_words(fault));
        let hello = hello(features, self.confinement_gaps);
        serve(self.socket, link, hello, FlightRecorder::at_stdin(), loader);
        exit::end_now(ExitCode::SupervisorLost);
    }
}

/// Starts the sentinel. Without it, a death by a signal is detected some milliseconds later.
fn post_sentinel(fd_socket: &FdSocket) -> bool {
    let posted = fd_socket.line().and_then(sentinel::post);
    let posted = posted.inspect_err(|error| eprintln!("worker-orcd-gpu: no sentinel: {error}"));
    posted.is_ok()
}

/// Enlarges the kernel's descriptor table of this process to its final size: with several threads, that would take tens
/// of milliseconds, for which streams would wait. If the kernel refuses, it grows later.
fn make_room_for_descriptors() {
    const ROOM: u64 = 1024;
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(ROOM);
    if let Ok(file) = File::open("/dev/null") {
        drop(fcntl_dupfd_cloexec(&file, limit.min(ROOM) as i32 - 1));
    }
}

/// Raises this process's OOM score: a child is replaceable, while the supervisor's death ends every stream. Raising
/// one's own score needs no privilege; if it is refused all the same, the kernel's choice is unchanged.
fn stand_in_for_the_supervisor() {
    const OWN_SCORE: &str = "/proc/self/oom_score_adj";
    let inherited = std::fs::read_to_string(OWN_SCORE)
        .ok()
        .and_then(|score| score.trim().parse::<i32>().ok());
    let score = (inherited.unwrap_or(0) + OOM_SCORE_ABOVE_PARENT).min(MAX_OOM_SCORE);
    drop(std::fs::write(OWN_SCORE, score.to_string()));
}

/// Sets the parent-death signal: the kernel kills this process when its parent dies. A parent that died earlier is
/// detected by its process id.
fn tie_to_parent(parent: Option<i32>) -> nix::Result<()> {
    prctl::set_pdeathsig(Signal::SIGKILL)?;
    if parent.is_some_and(|parent| getppid() != Pid::from_raw(parent)) {
        end(ExitCode::SupervisorLost, "the supervisor is gone");
    }
    // Ctrl-C in a terminal goes to the whole process group; only the supervisor handles it.
    // SAFETY: ignoring a signal installs no handler that could run.
    unsafe { signal(Signal::SIGINT, SigHandler::SigIgn) }?;
    Ok(())
}

fn connect(path: PathBuf) -> io::Result<Socket> {
    Stream::connect(path.to_fs_name::<GenericFilePath>()?).map(|stream| Socket(Arc::new(stream)))
}

/// The socket, with one reading thread and several writing ones.
#[derive(Clone)]
struct Socket(Arc<Stream>);

impl Read for Socket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        (&*self.0).read(buffer)
    }
}

impl Write for Socket {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        (&*self.0).write(buffer)
    }

    fn flush(&mut self) -> io::Result<()> {
        (&*self.0).flush()
    }
}

fn end(code: ExitCode, message: &str) -> ! {
    eprintln!("worker-orcd-gpu: {message}");
    exit::end_now(code);
}
