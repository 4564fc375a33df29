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
//! All of these are blocked ([`signal_mask`]) and read from a signalfd.

use nix::sys::signalfd::{SfdFlags, SignalFd};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR2};
use signal_hook::low_level::signal_name;
use std::collections::BTreeSet;
use std::io;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use worker_orcd_process::signal_mask;

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

impl Signals {
    /// # Errors
    /// If the kernel has no descriptor.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub(crate) fn open() -> io::Result<Self> {
        signal_mask::catch()?;
        let flags = SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC;
        let descriptor = SignalFd::with_flags(&signal_mask::handled(), flags)?;
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

fn name(signal: i32) -> String {
    signal_name(signal).map_or_else(|| format!("signal {signal}"), str::to_owned)
}
