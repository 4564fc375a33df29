//! Commands of `worker-orcd`. No command means `serve`. Those for a running worker or a hub are in `worker_orcd_cli`.
//!
//! Deliberately absent: placeholders for future commands. An unknown command is an error.

pub mod doctor;
pub mod interpret;
mod reload;
pub mod serve;
pub mod upgrade;
mod usage;

use crate::config::sources;
use crate::exit::WorkerExit;
use clap::Command;
use std::fmt::Display;
use worker_orcd_cli::{bench, chat, pull, top};

const EXAMPLES: &str = "\
Examples:
  worker-orcd pull                                download SmolLM2-135M (98 MB)
  worker-orcd --model smollm2 --port 8080
  worker-orcd --model m.gguf --device cuda:0 --api-key-file keys.txt
  worker-orcd doctor --model m.gguf               check this machine
  worker-orcd chat                                talk to a running worker
  worker-orcd top                                 watch a running worker
  worker-orcd bench --request-rate 4              measure a running worker";

/// Command-line parser.
#[must_use]
pub fn command_line() -> Command {
    let command = Command::new("worker-orcd")
        .version(env!("CARGO_PKG_VERSION"))
        .about("Serves a language model over HTTP; a child process owns the device, and streams outlive its death")
        .before_help(EXAMPLES)
        .after_help(WorkerExit::help())
        .subcommand_negates_reqs(true)
        // A wrapper can append its own flags to those of a unit file.
        .args_override_self(true)
        .args_conflicts_with_subcommands(true)
        .subcommand(sources::arguments(
            Command::new("serve")
                .about("Serve a model (the default command)")
                .args_override_self(true),
        ))
        .subcommand(pull::command_line())
        .subcommand(doctor::command_line())
        .subcommand(upgrade::command_line())
        .subcommand(chat::command_line())
        .subcommand(top::command_line())
        .subcommand(bench::command_line())
        .subcommand(interpret::command_line())
        .subcommand(sources::arguments(serve::rehearsal::command_line()));
    sources::arguments(command)
}

/// Reports why the worker ends. Returns its exit code.
fn end_with(exit: WorkerExit, reason: &dyn Display) -> WorkerExit {
    tracing::error!(exit = exit.name(), %reason, "error");
    serve::lifeline::note(&reason.to_string());
    exit
}
