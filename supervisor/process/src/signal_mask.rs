//! Signal mask of the process, and starts of programs under it.
//!
//! All signals that would end the process are blocked from the first instruction of `main` on. A blocked signal is
//! pending until it is read, also across `exec`, so the next program reads the remaining ones. The mask is inherited,
//! so programs are started with no signal blocked ([`unblocked`]).
//!
//! Deliberately absent: reading signals, and their meaning.

use nix::libc::{SIGRTMAX, SIGRTMIN};
use nix::sys::signal::{SigSet, SigmaskHow, Signal, kill};
use nix::unistd::Pid;
use parking_lot::Mutex;
use signal_hook::flag;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

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

/// Signals that [`block`] blocks.
#[must_use]
pub fn handled() -> SigSet {
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

/// Installs handlers that record a signal during [`unblocked`].
///
/// # Errors
/// If the kernel accepts no handler.
pub fn catch() -> io::Result<()> {
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
pub fn unblocked<T>(start: impl FnOnce() -> T) -> T {
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
pub fn blocked<T>(execute: impl FnOnce() -> T) -> T {
    let _turn = STARTING.lock();
    block();
    execute()
}
