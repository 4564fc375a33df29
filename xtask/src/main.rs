//! `cargo xtask`: commands of this repository, for developers and CI.
//!
//! One command a file. Shared modules: [`paths`] (paths of the repository), [`process`] (child processes and their
//! cleanup), [`python`] (virtual environments), [`javascript`] (Node and clients), [`worker`] (running worker).
//!
//! Deliberately absent: anything that ships. The worker itself has everything that its users need.

#![forbid(unsafe_code)]

mod bench;
mod chaos;
mod compare;
mod deb;
mod endurance;
mod fetch_model;
mod flaky;
mod fuzz;
mod haiku;
mod install;
mod javascript;
mod kernels;
mod lanes;
mod lines;
mod paths;
mod played;
mod process;
mod python;
mod schemathesis;
mod side_by_side;
mod tables;
mod test;
mod up;
mod verify;
mod worker;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

#[derive(Parser)]
#[command(
    name = "cargo xtask",
    about = "Set-up, tests and benchmarks of worker-orcd"
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Get the default model, build, serve it, and show one streamed answer.
    Up(up::Arguments),
    /// Compare a model file with llama.cpp, and its answers under disturbances with those alone.
    Verify(verify::Arguments),
    /// Formatting, lints, every test, and the comparisons with llama.cpp.
    Test(test::Arguments),
    /// Run the test programs again and again beside busy processes, and list those that failed.
    Flaky(flaky::Arguments),
    /// Write the tables of models, tensor types, settings and fields into docs/guide/, from the code.
    Tables,
    /// Count lines of product code by package.
    Lines,
    /// Compile the CUDA kernels, with a toolkit that is here or from PyPI. No GPU is needed.
    Kernels(kernels::Arguments),
    /// The child's tests for a card, with an interpreter of its kernels. No GPU is needed.
    Played(played::Arguments),
    /// Put programs, units, man page, completions and settings below a folder.
    Install(install::Arguments),
    /// Make a Debian package of that.
    Deb(deb::Arguments),
    /// Get SmolLM2-135M-Instruct (98 MB) into models/.
    FetchModel,
    /// Measure, and write bench/results/NAME.md.
    Bench(bench::Arguments),
    /// Run every fuzz target for a while.
    Fuzz(fuzz::Arguments),
    /// Streams against the real worker while its children die of everything.
    Chaos(chaos::Arguments),
    /// The same beside hostile requests, clients, templates, disks and signals: an hour of it.
    Siege(chaos::Arguments),
    /// Everything that the OpenAPI document allows, and much that it does not, for ten minutes.
    Schemathesis(schemathesis::Arguments),
    /// Many requests under systemd, while children and supervisors die and are replaced.
    Endurance(endurance::Arguments),
    /// A fresh haiku on the current minute, streamed, with every token derived again.
    Haiku(haiku::Arguments),
    /// The largest difference per checkpoint between two logits traces.
    Compare(compare::Arguments),
}

/// Exit code that a shell reports for a program that ^C ended.
const INTERRUPTED: u8 = 130;

fn main() -> ExitCode {
    process::end_children_on_signals();
    let result = match Arguments::parse().command {
        Command::Up(arguments) => up::run(&arguments),
        Command::Verify(arguments) => verify::run(&arguments),
        Command::Test(arguments) => test::run(&arguments),
        Command::Flaky(arguments) => flaky::run(&arguments),
        Command::Tables => tables::run(),
        Command::Lines => lines::run(),
        Command::Kernels(arguments) => kernels::run(&arguments),
        Command::Played(arguments) => played::run(&arguments),
        Command::Install(arguments) => install::run(&arguments),
        Command::Deb(arguments) => deb::run(&arguments),
        Command::FetchModel => fetch_model::run().map(drop),
        Command::Bench(arguments) => bench::run(&arguments),
        Command::Fuzz(arguments) => fuzz::run(&arguments),
        Command::Chaos(arguments) => chaos::run(&arguments),
        Command::Siege(arguments) => chaos::siege(&arguments),
        Command::Schemathesis(arguments) => schemathesis::run(&arguments),
        Command::Endurance(arguments) => endurance::run(&arguments),
        Command::Haiku(arguments) => haiku::run(&arguments),
        Command::Compare(arguments) => compare::run(&arguments),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) if process::interrupted() => ExitCode::from(INTERRUPTED),
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}
