//! `cargo xtask schemathesis`: a test of `tests/tests/openapi.rs`, for longer and with another seed.

use crate::{fetch_model, process, python};
use anyhow::Result;
use std::time::{SystemTime, UNIX_EPOCH};

#[derive(clap::Args)]
pub struct Arguments {
    #[arg(long, default_value_t = 10)]
    minutes: u32,
    /// Another one each time unless this says which.
    #[arg(long)]
    seed: Option<u32>,
}

impl Default for Arguments {
    fn default() -> Self {
        Self {
            minutes: 10,
            seed: None,
        }
    }
}

pub fn run(arguments: &Arguments) -> Result<()> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
    let seed = arguments.seed.unwrap_or(now.subsec_nanos());
    let seconds = arguments.minutes * 60;
    let model = fetch_model::run()?;
    process::run(
        process::cargo()
            .args(["test", "--workspace", "--test", "end_to_end"])
            .args(["--", "--nocapture", "openapi::schemathesis_finds_nothing"])
            .env("WORKER_ORCD_PYTHON", python::interpreter()?)
            .env("WORKER_ORCD_MODEL", model)
            .env("OPENAPI_TEST_SECONDS", seconds.to_string())
            .env("OPENAPI_TEST_SEED", seed.to_string()),
    )
}
