//! Signals and what they ask for. No signal that somebody sends ends the worker without a word to
//! its clients, but for those that nobody can refuse and those that tell of a fault of our own.
//!
//! | signal | meaning |
//! |---|---|
//! | SIGTERM, SIGINT | drain; the second one ends at once |
//! | SIGQUIT | drain without time: what runs ends with an error |
//! | SIGHUP | read keys and log level again |
//! | SIGUSR2 | let the program that the path leads to now go on in this one's place |
//! | the others that would end a program | nothing, said once each |
//!
//! Handlers, not dispositions: a child starts with none of them, and ends as a program should.

use nix::libc::{SIGRTMAX, SIGRTMIN};
use signal_hook::consts::{
    SIGALRM, SIGHUP, SIGINT, SIGIO, SIGPIPE, SIGPROF, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2,
    SIGVTALRM, SIGXCPU, SIGXFSZ,
};
use signal_hook::iterator::Signals;
use signal_hook::low_level::signal_name;
use std::collections::BTreeSet;
use std::io;
use tokio::sync::mpsc;

/// SIGSTKFLT and SIGPWR, which have no name on every system.
const NAMELESS: [i32; 2] = [16, 30];

const MEANINGLESS: [i32; 8] = [
    SIGALRM, SIGIO, SIGPIPE, SIGPROF, SIGUSR1, SIGVTALRM, SIGXCPU, SIGXFSZ,
];

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
    /// Said for the first time only.
    Ignored(String),
}

/// One item for each signal that comes from now on.
///
/// # Errors
/// When the handlers cannot be installed.
pub(crate) fn watch() -> io::Result<mpsc::UnboundedReceiver<Word>> {
    let meaningful = [SIGTERM, SIGINT, SIGQUIT, SIGHUP, SIGUSR2];
    let all = meaningful
        .into_iter()
        .chain(MEANINGLESS)
        .chain(NAMELESS)
        .chain(SIGRTMIN()..=SIGRTMAX());
    let mut signals = Signals::new(all)?;
    let (sender, receiver) = mpsc::unbounded_channel();
    std::thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || {
            let mut ignored = BTreeSet::new();
            for signal in signals.forever() {
                let word = match signal {
                    SIGTERM => Word::Stop("SIGTERM"),
                    SIGINT => Word::Stop("SIGINT"),
                    SIGQUIT => Word::StopWithoutWaiting,
                    SIGHUP => Word::Reload,
                    SIGUSR2 => Word::Upgrade,
                    other if ignored.insert(other) => Word::Ignored(name(other)),
                    _ => continue,
                };
                if sender.send(word).is_err() {
                    return;
                }
            }
        })?;
    Ok(receiver)
}

fn name(signal: i32) -> String {
    signal_name(signal).map_or_else(|| format!("signal {signal}"), str::to_owned)
}
