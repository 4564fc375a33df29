//! `worker-orcd`: the command line, and nothing else.

#![forbid(unsafe_code)]

use std::process::ExitCode;
use worker_orcd::commands;
use worker_orcd::commands::serve::upgrade::COMMAND as TAKES_OVER;
use worker_orcd::interpreter::process;
use worker_orcd::signals;

fn main() -> ExitCode {
    signals::block();
    let arguments = commands::command_line().get_matches();
    if !matches!(arguments.subcommand(), None | Some(("serve", _))) {
        signals::unblock();
    }
    match arguments.subcommand() {
        Some(("pull", arguments)) => told(&commands::pull::run(arguments)),
        Some(("upgrade", arguments)) => told(&commands::upgrade::run(arguments)),
        Some(("chat", arguments)) => told(&commands::chat::run(arguments)),
        Some(("bench", arguments)) => told(&commands::bench::run(arguments)),
        Some(("top", arguments)) => commands::top::run(arguments),
        Some(("doctor", arguments)) => commands::doctor::run(arguments),
        Some(("serve", arguments)) => ExitCode::from(commands::serve::run(arguments).code()),
        Some((TAKES_OVER, arguments)) => ExitCode::from(commands::serve::check(arguments).code()),
        Some((process::COMMAND, arguments)) => process::run(arguments),
        _ => ExitCode::from(commands::serve::run(&arguments).code()),
    }
}

/// Says what went wrong.
fn told(outcome: &anyhow::Result<()>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}
