//! `cargo xtask endurance`: the test of `tests/tests/endurance.rs`, with many more requests, and those of
//! `tests/tests/upgrade_failing.rs`, with many more upgrades, in an optimized build.

use crate::{process, python};
use anyhow::Result;

#[derive(clap::Args)]
pub struct Arguments {
    #[arg(long, default_value_t = 100_000)]
    requests: u32,
    /// Upgrades that fail, of every kind, beside streams that are compared.
    #[arg(long, default_value_t = 200)]
    failing_upgrades: u32,
}

pub fn run(arguments: &Arguments) -> Result<()> {
    process::run(
        process::cargo()
            .args(["test", "--release", "-p", "worker-orcd-tests"])
            .arg("--bins")
            .args(["--test", "end_to_end", "--", "--nocapture"])
            .args(["endurance::", "upgrade_failing::"])
            .env("WORKER_ORCD_PYTHON", python::interpreter()?)
            .env("ENDURANCE_REQUESTS", arguments.requests.to_string())
            .env("FAILING_UPGRADES", arguments.failing_upgrades.to_string()),
    )
}
