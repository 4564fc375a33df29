//! Owner of one child process of this program, which may die and is then replaced.
//!
//! The first order of each process is a template or a vocabulary. After that, the owner sends one order at a time.
//!
//! If the process died or was stopped by a signal, the order is retried once: under memory pressure the kernel kills
//! this process first, and an idle one may have died before the order came. An order that timed out is not retried.
//!
//! An order is not blamed for a process that was killed or stopped from outside, or that hardly ran. So errors
//! distinguish these cases, by the signal and by the processor time of the order.

#![expect(clippy::disallowed_methods, reason = "an order has a deadline")]

use super::Answer;
use super::channel::{Channel, ChannelError};
use super::process::{COMMAND, CPU_SECONDS, PARENT};
use nix::sys::signal::Signal;
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::time::{ClockId, clock_getcpuclockid, clock_gettime};
use nix::unistd::Pid;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use thiserror::Error;
use tokio::sync::watch;
use tracing::{info, warn};
use worker_orcd_process::signal_mask::unblocked;

/// Path of this program, also after its file was replaced.
const OWN_PROGRAM: &str = "/proc/self/exe";

/// Poll interval of a process: whether it is stopped, and its processor time.
const LOOK: Duration = Duration::from_millis(20);

/// An order with less processor time cannot have exhausted memory: a SIGKILL then has another cause.
const SMALL_WORK: Duration = Duration::from_millis(100);

/// Process of a thread, if any.
#[derive(Debug)]
pub(super) struct Keeper {
    process: Option<Process>,
    /// Sum of the processor time of all orders, if anything waits for it.
    worked: Option<watch::Sender<Duration>>,
    /// Time limits of a process's first order.
    patience_at_first: Patience,
    /// Time limits of each other order.
    patience: Patience,
}

/// Time limits. The first that is exceeded counts.
#[derive(Debug, Clone, Copy)]
pub(super) struct Patience {
    /// Processor time, which load of the machine does not extend.
    pub work: Duration,
    /// Wall time, for a machine on which the process hardly runs.
    pub wait: Duration,
}

impl Keeper {
    pub(super) fn new(patience_at_first: Patience, patience: Patience) -> Self {
        Self {
            process: None,
            worked: None,
            patience_at_first,
            patience,
        }
    }

    /// Adds the processor time of orders to `worked`, while they are executed.
    pub(super) fn counting(self, worked: watch::Sender<Duration>) -> Self {
        Self {
            worked: Some(worked),
            ..self
        }
    }

    /// PID of the process, if any.
    pub(super) fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(|process| process.child.id())
    }

    /// Ensures a process that has executed `first`, the frame of its first order.
    pub(super) fn prepare(&mut self, first: &[u8]) -> Result<(), OrderError> {
        if self.process.is_none() {
            self.process = Some(self.twice(|keeper| keeper.start(first))?);
        }
        Ok(())
    }

    /// Sends an order and returns the answer.
    pub(super) fn ask(&mut self, first: &[u8], order: &[u8]) -> Result<Answer, OrderError> {
        self.twice(|keeper| keeper.ask_once(first, order))
    }

    fn twice<T>(
        &mut self,
        attempt: impl Fn(&mut Self) -> Result<T, OrderError>,
    ) -> Result<T, OrderError> {
        match attempt(self) {
            Err(OrderError::Died(_) | OrderError::Outside(_)) => attempt(self),
            outcome => outcome,
        }
    }

    /// Sends an order to the present process or a new one. After an error there is no process.
    fn ask_once(&mut self, first: &[u8], order: &[u8]) -> Result<Answer, OrderError> {
        let mut process = match self.process.take() {
            Some(process) => process,
            None => self.start(first)?,
        };
        let answer = process.ask(order, self.patience)?;
        self.process = Some(process);
        Ok(answer)
    }

    fn start(&self, first: &[u8]) -> Result<Process, OrderError> {
        let cpu_time = self.patience_at_first.work.max(self.patience.work);
        let mut process = Process::spawn(cpu_time, self.worked.clone())?;
        match process.ask(first, self.patience_at_first) {
            Ok(Answer::Ready) => Ok(process),
            Ok(answer) => Err(OrderError::Answered(answer)),
            // What the first order costs is no fault of the order behind it.
            Err(OrderError::Costly(limit)) => Err(OrderError::CostlyStart(limit)),
            Err(error) => Err(error),
        }
    }
}

/// Reason for a missing answer.
#[derive(Debug, Error)]
pub(super) enum OrderError {
    #[error("no process can be had: {0}")]
    NotStarted(io::Error),
    #[error("it took longer than {} ms of processor time", .0.as_millis())]
    Costly(Duration),
    /// The same of a process's first order.
    #[error("it took longer than {} ms of processor time", .0.as_millis())]
    CostlyStart(Duration),
    #[error(
        "it ended the process that interprets it ({}), as nesting too deep and values too large do",
        in_words(*.0)
    )]
    Died(ExitStatus),
    #[error("the process that interprets it was ended or stopped from outside ({0})")]
    Outside(String),
    #[error("the process that interprets it hardly ran for {} ms", .0.as_millis())]
    Starved(Duration),
    #[error("{0}")]
    Garbled(String),
    /// The first order's answer was not [`Answer::Ready`].
    #[error("an answer out of turn")]
    Answered(Answer),
}

impl OrderError {
    /// Whether the order fails in the same way on any machine: it costs too much, or ended two processes by a fault of their
    /// own. A kernel that is short of memory sends SIGKILL, so that signal is no proof.
    pub(super) fn is_of_the_order(&self) -> bool {
        match self {
            Self::Costly(_) => true,
            Self::Died(status) => status.signal() != Some(Signal::SIGKILL as i32),
            _ => false,
        }
    }
}

fn in_words(status: ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(signal), _) => format!("signal {signal}"),
        (None, code) => format!("code {}", code.unwrap_or_default()),
    }
}

/// Whether a signal came from outside: a process does not send these to itself, and the kernel sends none of them for a
/// fault of the order. Under memory pressure the kernel also sends SIGKILL, and an order with some processor time may
/// be the cause.
fn is_from_outside(status: ExitStatus, used: Duration) -> bool {
    use Signal::{SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGKILL, SIGSEGV, SIGSYS, SIGTRAP, SIGXCPU};
    let signal = status.signal().map(Signal::try_from);
    match signal {
        Some(Ok(SIGKILL)) => used < SMALL_WORK,
        Some(Ok(SIGABRT | SIGBUS | SIGFPE | SIGILL | SIGSEGV | SIGSYS | SIGTRAP | SIGXCPU)) => {
            false
        }
        Some(_) => true,
        None => false,
    }
}

/// Killed and reaped when dropped.
#[derive(Debug)]
struct Process {
    child: Child,
    channel: Channel,
    /// Processor time before the order, and as much of the order's as has been counted.
    used_before: Duration,
    counted: Duration,
    worked: Option<watch::Sender<Duration>>,
}

impl Process {
    fn spawn(
        cpu_time: Duration,
        worked: Option<watch::Sender<Duration>>,
    ) -> Result<Self, OrderError> {
        let (ours, theirs) = UnixStream::pair().map_err(OrderError::NotStarted)?;
        let mut command = Command::new(OWN_PROGRAM);
        command
            .arg0("worker-orcd")
            .arg(COMMAND)
            .args([format!("--{PARENT}"), std::process::id().to_string()])
            .args([
                format!("--{CPU_SECONDS}"),
                (cpu_time.as_secs() + 1).to_string(),
            ])
            // The allocator's default reservation exceeds this process's address space.
            .env("MIMALLOC_ARENA_RESERVE", "32M")
            // Ctrl-C in a terminal must reach the supervisor alone.
            .process_group(0)
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            // Pipes without a reader would fill and block the process.
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let child = unblocked(|| command.spawn()).map_err(OrderError::NotStarted)?;
        info!(pid = child.id(), "interpreter_started");
        Ok(Self {
            child,
            channel: Channel::new(ours),
            used_before: Duration::ZERO,
            counted: Duration::ZERO,
            worked,
        })
    }

    fn ask(&mut self, order: &[u8], patience: Patience) -> Result<Answer, OrderError> {
        let deadline = Instant::now() + patience.wait;
        self.used_before = self.processor_time();
        self.counted = Duration::ZERO;
        let sent = self.channel.send(order, Some(deadline));
        let answer = match sent {
            Ok(()) => self.receive(deadline, patience),
            Err(error) => Err(self.explain(error, patience)),
        };
        answer.inspect_err(|failure| {
            warn!(pid = self.child.id(), reason = %failure, "interpreter_ended");
        })
    }

    fn receive(&mut self, deadline: Instant, patience: Patience) -> Result<Answer, OrderError> {
        loop {
            let soon = deadline.min(Instant::now() + LOOK);
            let received = self.channel.receive(Some(soon));
            let used = self.count();
            match received {
                Ok(answer) => return Ok(answer),
                Err(ChannelError::Late) if soon < deadline => {}
                Err(error) => return Err(self.explain(error, patience)),
            }
            if let Some(signal) = self.stopped_by() {
                return Err(OrderError::Outside(signal.to_string()));
            }
            if used >= patience.work {
                return Err(OrderError::Costly(patience.work));
            }
        }
    }

    /// Processor time of the order, which is added to the sum of all.
    fn count(&mut self) -> Duration {
        let used = self.used();
        let more = used.saturating_sub(self.counted);
        self.counted += more;
        if let Some(worked) = &self.worked {
            worked.send_modify(|all| *all += more);
        }
        used
    }

    /// Processor time of the order.
    fn used(&self) -> Duration {
        self.processor_time().saturating_sub(self.used_before)
    }

    /// Signal that has stopped the process, if it is stopped.
    fn stopped_by(&self) -> Option<Signal> {
        let pid = Pid::from_raw(self.child.id().cast_signed());
        let flags = WaitPidFlag::WSTOPPED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
        match waitid(Id::Pid(pid), flags) {
            Ok(WaitStatus::Stopped(_, signal)) => Some(signal),
            _ => None,
        }
    }

    /// Zero if the kernel reports none: for a reaped process.
    fn processor_time(&self) -> Duration {
        let clock = clock_getcpuclockid(Pid::from_raw(self.child.id().cast_signed()));
        let time = clock.and_then(|it: ClockId| clock_gettime(it));
        time.map_or(Duration::ZERO, Duration::from)
    }

    /// Reason of a missing answer. The process is not used again.
    fn explain(&mut self, error: ChannelError, patience: Patience) -> OrderError {
        // The processor time of a dead process is readable until it is reaped.
        let used = self.used();
        match error {
            ChannelError::Late => match self.stopped_by() {
                Some(signal) => OrderError::Outside(signal.to_string()),
                None => OrderError::Starved(patience.wait),
            },
            ChannelError::Closed => match self.end() {
                Ok(status) if is_from_outside(status, used) => {
                    OrderError::Outside(in_words(status))
                }
                Ok(status) => OrderError::Died(status),
                Err(error) => OrderError::Garbled(error.to_string()),
            },
            error => OrderError::Garbled(error.to_string()),
        }
    }

    /// A process that has ended keeps its exit status.
    fn end(&mut self) -> io::Result<ExitStatus> {
        self.child.kill()?;
        self.child.wait()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            warn!(pid = self.child.id(), %error, "interpreter_unreaped");
        }
    }
}
