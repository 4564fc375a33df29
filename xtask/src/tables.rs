//! `cargo xtask tables`: tables of docs/guide/ that say what the code serves.
//!
//! What makes them is the test that holds the pages to them: it knows the code, which this program need not be
//! built with.

use crate::{paths, process};
use anyhow::Result;

/// Has `tests/tests/tidy/tables.rs` write what it would compare.
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
