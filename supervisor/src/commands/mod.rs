//! What `worker-orcd` can be told to do. Without a word it serves.
//!
//! Deliberately absent: words for what does not exist yet; an unknown one is an error.

pub mod doctor;
pub mod pull;
pub mod serve;
mod usage;

use crate::config::sources;
use crate::exit::Exit;
use crate::interpreter::process;
use clap::Command;

/// The command line.
#[must_use]
pub fn command_line() -> Command {
    let command = Command::new("worker-orcd")
        .version(env!("CARGO_PKG_VERSION"))
        .about("Serves a language model over HTTP; the device lives in a child that may die")
        .after_help(Exit::help())
        .subcommand_negates_reqs(true)
        // So that a wrapper can add its own flags behind those of a unit file.
        .args_override_self(true)
        .args_conflicts_with_subcommands(true)
        .subcommand(pull::command_line())
        .subcommand(doctor::command_line())
        .subcommand(process::command_line());
    sources::arguments(command)
}
