//! Signals. No external signal ends the worker without an answer to its clients, except SIGKILL, which cannot be
//! blocked, and the signals of program faults.
//!
//! | signal | meaning |
//! |---|---|
//! | SIGTERM, SIGINT | drain; the second one ends at once |
//! | SIGQUIT | drain without time: running requests end with an error |
//! | SIGHUP | read keys and log level again |
//! | SIGUSR2 | upgrade to the program at the path |
//! | other signals that end a program | ignored, each logged once |
//!
//! All of these are blocked from the first instruction of `main` on and read from a signalfd. A blocked signal is
//! pending until it is read, also across `exec`, so the next program reads the remaining ones. The mask is inherited,
//! so programs are started with no signal blocked ([`unblocked`]).

use nix::libc::{SIGRTMAX, SIGRTMIN};
use nix::sys::signal::{SigSet, SigmaskHow, Signal, kill};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::Pid;
use parking_lot::Mutex;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR2};
use signal_hook::flag;
use signal_hook::low_level::signal_name;
use std::collections::BTreeSet;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Signals that are not blocked: those of faults, or without effect unless handled.
const LEFT_ALONE: [Signal; 15] = [
    Signal::SIGSEGV,
    Signal::SIGBUS,
    Signal::SIGILL,
    Signal::SIGFPE,
    Signal::SIGABRT,
    Signal::SIGTRAP,
    Signal::SIGSYS,
    Signal::SIGCHLD,
    Signal::SIGCONT,
    Signal::SIGTSTP,
    Signal::SIGTTIN,
    Signal::SIGTTOU,
    Signal::SIGURG,
    Signal::SIGWINCH,
    Signal::SIGKILL,
];

/// Lock: only one program is started or executed at a time.
static STARTING: Mutex<()> = Mutex::new(());

/// Flags of signals that arrived while none was blocked.
static CAUGHT: OnceLock<Vec<(i32, Arc<AtomicBool>)>> = OnceLock::new();

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Word {
    /// SIGTERM or SIGINT.
    Stop(&'static str),
    /// SIGQUIT.
    StopWithoutWaiting,
    /// SIGHUP.
    Reload,
    /// SIGUSR2.
    Upgrade,
    /// Ignored signal, reported only the first time.
    Ignored(String),
}

impl Word {
    /// True for a request to end the worker.
    pub(crate) fn ends(&self) -> bool {
        matches!(self, Self::Stop(_) | Self::StopWithoutWaiting)
    }
}

/// Receiver of signals, in the kernel's order of delivery.
#[derive(Debug)]
pub(crate) struct Signals {
    descriptor: AsyncFd<SignalFd>,
    ignored: BTreeSet<i32>,
}

fn handled() -> SigSet {
    let mut set = SigSet::all();
    for signal in LEFT_ALONE {
        set.remove(signal);
    }
    set
}

/// Blocks all handled signals in this thread and its future threads. The first call of `main`.
pub fn block() {
    // The call fails only for an unknown operation.
    let _ = handled().thread_block();
}

/// Reverts [`block`] for commands that any signal may end.
pub fn unblock() {
    let _ = handled().thread_unblock();
}

impl Signals {
    /// # Errors
    /// If the kernel has no descriptor.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub(crate) fn open() -> io::Result<Self> {
        catch()?;
        let flags = SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC;
        let descriptor = SignalFd::with_flags(&handled(), flags)?;
        Ok(Self {
            descriptor: watch(descriptor)?,
            ignored: BTreeSet::new(),
        })
    }

    /// Next signal. Cancel-safe. Unread signals stay pending.
    pub(crate) async fn recv(&mut self) -> Word {
        loop {
            let Ok(mut ready) = self.descriptor.readable().await else {
                return std::future::pending().await;
            };
            let read = ready.try_io(|descriptor| {
                let signal = descriptor.get_ref().read_signal()?;
                signal.ok_or_else(|| io::ErrorKind::WouldBlock.into())
            });
            let Ok(Ok(signal)) = read else {
                continue;
            };
            if let Some(word) = self.word(signal.ssi_signo.cast_signed()) {
                return word;
            }
        }
    }

    fn word(&mut self, signal: i32) -> Option<Word> {
        Some(match signal {
            SIGTERM => Word::Stop("SIGTERM"),
            SIGINT => Word::Stop("SIGINT"),
            SIGQUIT => Word::StopWithoutWaiting,
            SIGHUP => Word::Reload,
            SIGUSR2 => Word::Upgrade,
            other if self.ignored.insert(other) => Word::Ignored(name(other)),
            _ => return None,
        })
    }
}

// The replacement is `unsafe`, because a type may misreport its descriptor. A `SignalFd` owns exactly the descriptor
// that it reports, until it is dropped.
#[expect(
    deprecated,
    reason = "the supervisor has no unsafe code, and needs none here"
)]
fn watch(descriptor: SignalFd) -> io::Result<AsyncFd<SignalFd>> {
    AsyncFd::with_interest(descriptor, Interest::READABLE)
}

/// Installs handlers that record a signal during [`unblocked`].
fn catch() -> io::Result<()> {
    if CAUGHT.get().is_some() {
        return Ok(());
    }
    let handled = handled();
    // The standard library ignores SIGPIPE from the start.
    let is_caught = |signal: &Signal| {
        handled.contains(*signal) && !matches!(signal, Signal::SIGSTOP | Signal::SIGPIPE)
    };
    let named = Signal::iterator().filter(is_caught);
    let all = named.map(|signal| signal as i32);
    let mut caught = Vec::new();
    for signal in all.chain(SIGRTMIN()..=SIGRTMAX()) {
        let flag = Arc::new(AtomicBool::new(false));
        flag::register(signal, Arc::clone(&flag))?;
        caught.push((signal, flag));
    }
    // Another caller was first.
    drop(CAUGHT.set(caught));
    Ok(())
}

/// Starts a program with no signal blocked. A signal that arrives meanwhile is sent again afterwards.
pub(crate) fn unblocked<T>(start: impl FnOnce() -> T) -> T {
    let _turn = STARTING.lock();
    let Ok(before) = SigSet::empty().thread_swap_mask(SigmaskHow::SIG_SETMASK) else {
        return start();
    };
    let started = start();
    let _ = before.thread_set_mask();
    for (signal, flag) in CAUGHT.get().into_iter().flatten() {
        if flag.swap(false, Ordering::AcqRel)
            && let Ok(signal) = Signal::try_from(*signal)
        {
            let _ = kill(Pid::this(), signal);
        }
    }
    started
}

/// Executes a program while no other one is started. All signals are blocked and stay pending for the new program.
pub(crate) fn blocked<T>(execute: impl FnOnce() -> T) -> T {
    let _turn = STARTING.lock();
    block();
    execute()
}

fn name(signal: i32) -> String {
    signal_name(signal).map_or_else(|| format!("signal {signal}"), str::to_owned)
}
