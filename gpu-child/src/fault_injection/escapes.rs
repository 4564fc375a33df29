//! First actions of a compromised child: another file, the network, another program. A confined child is refused each,
//! and continues its step.

use super::Kind;
use std::fs;
use std::io;
use std::net::TcpListener;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

/// Readable for all users on any machine.
const FILE: &str = "/etc/passwd";

/// Exits immediately, with success.
const PROGRAM: &str = "/bin/true";

/// Attempts the action, and logs the result on stderr. A program that may start replaces this one.
pub(super) fn attempt(kind: Kind) {
    let outcome = match kind {
        Kind::ReadFile => fs::read(FILE).map(drop),
        Kind::OpenSocket => TcpListener::bind("127.0.0.1:0").map(drop),
        Kind::RunProgram => Err(Command::new(PROGRAM).exec()),
        _ => Err(io::Error::other("no escape")),
    };
    let name = kind.name();
    match outcome {
        Ok(()) => eprintln!("worker-orcd-gpu: {name} went through"),
        Err(error) => eprintln!("worker-orcd-gpu: {name} was refused: {error}"),
    }
}
