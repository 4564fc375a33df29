//! `cargo xtask compare A B`: runs the child's `worker-orcd-compare`.

use crate::process;
use anyhow::Result;
use std::ffi::OsString;

#[derive(clap::Args)]
pub struct Arguments {
    /// Passed on as they are; `-- --help` lists them.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
    arguments: Vec<OsString>,
}

pub fn run(arguments: &Arguments) -> Result<()> {
    process::run(
        process::cargo()
            .args(["run", "--quiet", "--release", "-p", "worker-orcd-gpu"])
            .args(["--bin", "worker-orcd-compare", "--"])
            .args(&arguments.arguments),
    )
}
