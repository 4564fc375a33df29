//! `worker-orcd interpret`: command line of an interpreter process
//! ([`process`](worker_orcd_engine::interpreter::process)), started by the supervisor, not by hand.

use clap::{Arg, ArgMatches, Command, value_parser};
use std::process::ExitCode;
use worker_orcd_engine::interpreter::process::{self, CPU_SECONDS, PARENT};

pub use worker_orcd_engine::interpreter::process::COMMAND;

#[must_use]
pub fn command_line() -> Command {
    Command::new(COMMAND)
        .about("Interprets chat templates and grammars for a worker that started it")
        .hide(true)
        .arg(
            Arg::new(PARENT)
                .long(PARENT)
                .required(true)
                .value_parser(value_parser!(i32)),
        )
        .arg(
            Arg::new(CPU_SECONDS)
                .long(CPU_SECONDS)
                .required(true)
                .value_parser(value_parser!(u64)),
        )
}

/// Executes orders until the supervisor closes the socket.
#[must_use]
pub fn run(arguments: &ArgMatches) -> ExitCode {
    let parent = arguments.get_one::<i32>(PARENT).copied();
    let cpu_seconds = arguments.get_one::<u64>(CPU_SECONDS).copied();
    match process::run(parent.unwrap_or_default(), cpu_seconds.unwrap_or_default()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}
