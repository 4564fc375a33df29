//! The one thread that creates processes and executes another program.
//!
//! A child requests SIGKILL at the death of its parent (`PR_SET_PDEATHSIG`), and the kernel takes "parent" to be the
//! *thread* that forked it. A worker thread of the runtime may end at any time, but the main thread lives as long as
//! the process. After an exec only the executing thread remains. It is the main thread too, so the children survive.

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child as StdChild, Command, Stdio};
use std::sync::mpsc;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;
use worker_orcd_ipc::Generation;
use worker_orcd_process::signal_mask::unblocked;

/// Order of a child that connects to `socket`.
#[derive(Debug)]
pub(crate) struct SpawnOrder {
    pub generation: Generation,
    pub program: PathBuf,
    pub socket: PathBuf,
    /// Path of the descriptor socket, if it could be created.
    pub fd_socket: Option<PathBuf>,
    /// Permissions as arguments ([`confinement`](super::confinement)).
    pub allowed: Vec<OsString>,
    /// Flight recorder, if it could be created. It becomes the child's descriptor 0.
    pub recorder: Option<OwnedFd>,
    /// Channel for the result.
    pub answers: UnboundedSender<Spawned>,
}

#[derive(Debug)]
pub(crate) struct Spawned {
    pub generation: Generation,
    pub outcome: io::Result<StdChild>,
}

/// Sender of orders to the thread that creates processes. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Spawner {
    orders: mpsc::Sender<Order>,
}

enum Order {
    Spawn(SpawnOrder),
    /// Execution of another program. The callback gets the error of a failed exec.
    Execute(
        Box<dyn FnOnce() -> io::Error + Send>,
        Box<dyn FnOnce(io::Error) + Send>,
    ),
    End,
}

/// Queue of the thread that creates processes.
#[derive(Debug)]
pub struct Orders(mpsc::Receiver<Order>);

impl Spawner {
    /// Sender, and the queue for the thread that creates processes.
    #[must_use]
    pub fn new() -> (Self, Orders) {
        let (orders, inbox) = mpsc::channel();
        (Self { orders }, Orders(inbox))
    }

    /// Queues an order. Does not wait.
    pub(crate) fn order(&self, order: SpawnOrder) {
        self.give(Order::Spawn(order));
    }

    /// Executes another program by `execute`. Returns only on failure.
    pub async fn execute(&self, execute: Box<dyn FnOnce() -> io::Error + Send>) -> io::Error {
        let (sender, failure) = oneshot::channel();
        self.give(Order::Execute(
            execute,
            Box::new(|error| drop(sender.send(error))),
        ));
        failure.await.unwrap_or_else(|_| gone())
    }

    /// Blocking [`execute`](Self::execute) for a thread outside the runtime.
    pub fn execute_and_wait(
        &self,
        execute: impl FnOnce() -> io::Error + Send + 'static,
    ) -> io::Error {
        let (sender, failure) = mpsc::channel();
        let answer = Box::new(move |error| drop(sender.send(error)));
        self.give(Order::Execute(Box::new(execute), answer));
        failure.recv().unwrap_or_else(|_| gone())
    }

    /// Ends [`Orders::carry_out`], even if other senders exist.
    pub fn end(&self) {
        self.give(Order::End);
    }

    fn give(&self, order: Order) {
        // The receiver is gone only at the end of the process.
        drop(self.orders.send(order));
    }
}

impl Orders {
    /// Carries out orders until the end of the process.
    pub fn carry_out(self) {
        for order in self.0 {
            match order {
                Order::Spawn(order) => make(order),
                Order::Execute(execute, failed) => failed(execute()),
                Order::End => return,
            }
        }
    }
}

fn gone() -> io::Error {
    io::Error::other("the thread that makes processes has ended")
}

fn make(order: SpawnOrder) {
    let (generation, answers) = (order.generation, order.answers.clone());
    let outcome = spawn(order);
    let refused = answers.send(Spawned {
        generation,
        outcome,
    });
    if let Err(refused) = refused {
        abandon(refused.0);
    }
}

fn spawn(order: SpawnOrder) -> io::Result<StdChild> {
    let mut command = Command::new(&order.program);
    if let Some(fd_socket) = &order.fd_socket {
        command.arg("--fd-socket").arg(fd_socket);
    }
    command
        .arg("--socket")
        .arg(&order.socket)
        .arg("--generation")
        .arg(order.generation.to_string())
        .arg("--parent")
        .arg(std::process::id().to_string())
        .args(order.allowed)
        // Its own group: a kill covers its descendants, and a Ctrl-C in the terminal reaches only the supervisor, which
        // then drains.
        .process_group(0)
        .stdin(order.recorder.map_or_else(Stdio::null, Stdio::from))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    unblocked(|| command.spawn())
}

/// Kills a new process without an owner.
fn abandon(answer: Spawned) {
    if let Ok(mut child) = answer.outcome {
        drop(child.kill());
        drop(child.wait());
    }
}

/// True for an error that a retry would meet again.
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

/// True if this process, or the machine, has no free descriptor.
#[must_use]
pub(crate) fn is_shortage_of_descriptors(error: &io::Error) -> bool {
    let wants = [rustix::io::Errno::MFILE, rustix::io::Errno::NFILE];
    wants
        .iter()
        .any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}
