//! `cargo xtask endurance`: the test of `tests/tests/endurance.rs`, with many more requests and an optimised build.

use crate::{process, python};
use anyhow::Result;

#[derive(clap::Args)]
pub struct Arguments {
    #[arg(long, default_value_t = 100_000)]
    requests: u32,
}

pub fn run(arguments: &Arguments) -> Result<()> {
    process::run(
        process::cargo()
            .args(["test", "--release", "-p", "worker-orcd-tests"])
            .args(["--features", "fault-injection", "--bins"])
            .args(["--test", "endurance", "--", "--nocapture"])
            .env("WORKER_ORCD_PYTHON", python::interpreter()?)
            .env(
                "WORKER_ORCD_ENDURANCE_REQUESTS",
                arguments.requests.to_string(),
            ),
    )
}
