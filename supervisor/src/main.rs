//! `worker-orcd`: dispatch of the command line.

#![forbid(unsafe_code)]

use std::process::ExitCode;
use worker_orcd::commands::serve::{lifeline, rehearsal};
use worker_orcd::commands::{self, interpret};
use worker_orcd_cli::{bench, chat, pull, top};
use worker_orcd_process::signal_mask;

fn main() -> ExitCode {
    signal_mask::block();
    let received = lifeline::receive();
    let arguments = match commands::command_line().try_get_matches() {
        Ok(arguments) => arguments,
        Err(error) => {
            lifeline::end(&error.to_string());
            error.exit();
        }
    };
    match arguments.subcommand() {
        None => return ExitCode::from(commands::serve::run(&arguments, received).code()),
        Some(("serve", arguments)) => {
            return ExitCode::from(commands::serve::run(arguments, received).code());
        }
        _ => signal_mask::unblock(),
    }
    match arguments.subcommand() {
        Some(("pull", arguments)) => status_of(&pull::run(arguments)),
        Some(("upgrade", arguments)) => status_of(&commands::upgrade::run(arguments)),
        Some(("chat", arguments)) => status_of(&chat::run(arguments)),
        Some(("bench", arguments)) => status_of(&bench::run(arguments)),
        Some(("top", arguments)) => top::run(arguments),
        Some(("doctor", arguments)) => commands::doctor::run(arguments),
        Some((rehearsal::COMMAND, arguments)) => ExitCode::from(rehearsal::run(arguments).code()),
        Some((interpret::COMMAND, arguments)) => interpret::run(arguments),
        _ => ExitCode::FAILURE,
    }
}

/// Exit status of a command. Prints its error.
fn status_of(outcome: &anyhow::Result<()>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}
