//! `cargo xtask tables`: writes the generated tables of docs/guide/.
//!
//! The test that checks the pages generates the tables: it links the code, which xtask need not.

use crate::{paths, process};
use anyhow::Result;

/// Variable with which `tests/tests/tidy/tables.rs` writes the tables instead of comparing them.
const WRITE: &str = "ORCD_WRITE_TABLES";

pub fn run() -> Result<()> {
    let mut command = process::cargo();
    command
        .args(["test", "--quiet", "--workspace"])
        .args(["--test", "tidy", "--", "tables::"])
        .env(WRITE, "1")
        .current_dir(paths::root());
    process::run(&mut command)
}
