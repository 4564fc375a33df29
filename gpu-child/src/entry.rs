//! The way from `main` to [`serve`](crate::serve::serve): arguments, the tie to the parent, the
//! socket; or to the answer of a probe.

use crate::custody::Custody;
use crate::device::cuda;
use crate::exit;
#[cfg(feature = "fault-injection")]
use crate::fault_injection;
use crate::flight_recorder::FlightRecorder;
use crate::loader;
use crate::sentinel;
use crate::serve::{Link, Loaded, Progress, serve};
use clap::Parser;
use interprocess::local_socket::{GenericFilePath, Stream, prelude::*};
use nix::sys::prctl;
use nix::sys::signal::{SigHandler, Signal, signal};
use nix::unistd::{Pid, getppid};
use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::sync::Arc;
use worker_orcd_ipc::{ExitCode, Fault, FaultKind, Generation, LoadOrder};

/// Points above the parent's score: as if this process had half of the machine's memory more than
/// it has.
const OOM_SCORE_ABOVE_PARENT: i32 = 500;
const MAX_OOM_SCORE: i32 = 1000;

/// The disposable process that owns one device. Started by worker-orcd, not by hand.
#[derive(Debug, Parser)]
#[command(name = "worker-orcd-gpu", version)]
struct Arguments {
    /// Only say whether this program can compute on that CUDA device.
    #[arg(long, value_name = "ORDINAL", exclusive = true)]
    probe: Option<u32>,
    /// Only say whether this program could serve that file, as far as its header says.
    #[arg(long, value_name = "FILE", exclusive = true)]
    check_model: Option<PathBuf>,
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
    custody: Option<PathBuf>,
    /// Number of this child, counted from 1.
    #[arg(long)]
    generation: u32,
    /// Process id of the supervisor: when the parent is another by now, it is dead.
    #[arg(long)]
    parent: Option<i32>,
}

/// Works until the conversation ends; never returns. `features` are told to the supervisor, which
/// refuses those it was not told to expect.
pub fn run<L>(features: &[&str], loader: L) -> !
where
    L: FnOnce(&LoadOrder, Option<&Custody>, Progress<'_>) -> Result<Loaded, Fault>,
{
    exit::end_process_on_panic(|_| {});
    let arguments = match Arguments::parse() {
        Arguments {
            probe: Some(ordinal),
            ..
        } => answer(cuda::outlook(ordinal)),
        Arguments {
            check_model: Some(path),
            ..
        } => answer(loader::check(&path)),
        Arguments {
            serving: Some(serving),
            ..
        } => serving,
        _ => end(ExitCode::Usage, "--socket and --generation are needed"),
    };
    stand_in_for_the_supervisor();
    if let Err(error) = tie_to_parent(arguments.parent) {
        end(
            ExitCode::Fault(FaultKind::Io),
            &format!("the signals cannot be set up: {error}"),
        );
    }
    let socket = match connect(arguments.socket) {
        Ok(socket) => socket,
        Err(error) => end(
            ExitCode::Fault(FaultKind::Io),
            &format!("the control socket: {error}"),
        ),
    };
    let custody = match arguments
        .custody
        .as_deref()
        .map(Custody::connect)
        .transpose()
    {
        Ok(custody) => custody,
        Err(error) => end(
            ExitCode::Fault(FaultKind::Io),
            &format!("the socket for descriptors: {error}"),
        ),
    };
    let is_watched = custody.as_ref().is_some_and(post_sentinel);
    let loader = move |order: &LoadOrder, progress: Progress<'_>| {
        let loaded = loader(order, custody.as_ref(), progress);
        if !is_watched {
            // Its end would be taken for this process's.
            std::mem::forget(custody);
        }
        loaded
    };
    let (generation, reader) = (Generation(arguments.generation), socket.clone());
    #[cfg(feature = "fault-injection")]
    let (socket, loader) = match fault_injection::rules() {
        Ok(rules) => fault_injection::arm(rules, generation, socket, loader),
        Err(error) => end(ExitCode::Usage, &error.to_string()),
    };
    let link = Arc::new(Link::new(socket, generation, exit::end_process()));
    let speaker = Arc::clone(&link);
    // The panicking thread may be the one that was speaking: then nobody speaks again.
    exit::end_process_on_panic(move |fault| speaker.try_last_words(fault));
    serve(reader, link, features, FlightRecorder::at_stdin(), loader);
    exit::end_now(ExitCode::SupervisorLost);
}

/// Without one, a death by a signal is noticed some milliseconds later.
fn post_sentinel(custody: &Custody) -> bool {
    let posted = custody.line().and_then(sentinel::post);
    let posted = posted.inspect_err(|error| eprintln!("worker-orcd-gpu: no sentinel: {error}"));
    posted.is_ok()
}

/// Answers a question of [`worker_orcd_ipc::probe`].
fn answer(found: Result<String, Fault>) -> ! {
    let (line, code) = match found {
        Ok(words) => (words, ExitCode::Clean),
        Err(fault) => {
            let code = fault.exit_code();
            match fault {
                Fault::DeviceUnavailable { message } | Fault::ModelLoad { message } => {
                    (message, code)
                }
                other => (other.to_string(), code),
            }
        }
    };
    println!("{line}");
    exit::end_now(code);
}

/// Offers this process to the kernel where memory is short: it is replaced, while the death of the
/// supervisor ends every stream. Raising one's own score needs no privilege; where it is refused
/// all the same, the choice stays as it was.
fn stand_in_for_the_supervisor() {
    const OWN_SCORE: &str = "/proc/self/oom_score_adj";
    let inherited = std::fs::read_to_string(OWN_SCORE)
        .ok()
        .and_then(|score| score.trim().parse::<i32>().ok());
    let score = (inherited.unwrap_or(0) + OOM_SCORE_ABOVE_PARENT).min(MAX_OOM_SCORE);
    drop(std::fs::write(OWN_SCORE, score.to_string()));
}

/// The kernel kills this process when its parent dies. A parent that died before this was asked
/// for is noticed by its process id.
fn tie_to_parent(parent: Option<i32>) -> nix::Result<()> {
    prctl::set_pdeathsig(Signal::SIGKILL)?;
    if parent.is_some_and(|parent| getppid() != Pid::from_raw(parent)) {
        end(ExitCode::SupervisorLost, "the supervisor is gone");
    }
    // Ctrl-C in a terminal goes to the whole group; what it means is for the supervisor to say.
    // SAFETY: ignoring a signal installs no handler that could run.
    unsafe { signal(Signal::SIGINT, SigHandler::SigIgn) }?;
    Ok(())
}

fn connect(path: PathBuf) -> io::Result<Socket> {
    Stream::connect(path.to_fs_name::<GenericFilePath>()?).map(|stream| Socket(Arc::new(stream)))
}

/// The socket, from which one thread reads and to which others write.
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
