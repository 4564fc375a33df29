//! `worker-orcd`: the command line, and nothing else.

#![forbid(unsafe_code)]

use std::process::ExitCode;
use worker_orcd::commands;
use worker_orcd::commands::serve::upgrade;
use worker_orcd::interpreter::process;

fn main() -> ExitCode {
    let arguments = commands::command_line().get_matches();
    match arguments.subcommand() {
        Some(("pull", arguments)) => match commands::pull::run(arguments) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("{error:#}");
                ExitCode::FAILURE
            }
        },
        Some(("doctor", arguments)) => commands::doctor::run(arguments),
        Some(("serve", arguments)) => ExitCode::from(commands::serve::run(arguments).code()),
        Some((upgrade::COMMAND, arguments)) => {
            ExitCode::from(commands::serve::check(arguments).code())
        }
        Some((process::COMMAND, arguments)) => process::run(arguments),
        _ => ExitCode::from(commands::serve::run(&arguments).code()),
    }
}
