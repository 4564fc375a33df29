//! Runs a script of `tests/oracle/` with the Python that has llama.cpp.

use crate::model::{oracle_python, repository_root};
use std::ffi::OsStr;
use std::process::Command;

/// Runs a script that prints its comparisons and fails if something differs.
pub fn run(script: &str, arguments: &[&OsStr]) {
    let path = repository_root().join("tests/oracle").join(script);
    insist(
        script,
        Command::new(oracle_python()).arg(path).args(arguments),
    );
}

fn insist(name: &str, command: &mut Command) {
    // A checkout may be read-only, and a cache in it is unexpected.
    let command = command.env("PYTHONDONTWRITEBYTECODE", "1");
    let status = command.status().expect("Python starts");
    let found = "found differences (above)";
    assert!(status.success(), "{name} {found}: {status}");
}
