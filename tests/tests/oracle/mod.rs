//! Runs a script of `tests/oracle/` with the Python that has llama.cpp.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::Command;
use worker_orcd_tests::model::repository_root;

/// Names a Python that has the packages of `tests/oracle/requirements.txt`.
const PYTHON_VARIABLE: &str = "WORKER_ORCD_PYTHON";

/// The script prints what it compared and ends non-zero when something differs.
pub fn run(script: &str, arguments: &[&OsStr]) {
    let path = repository_root().join("tests/oracle").join(script);
    insist(script, Command::new(python()).arg(path).args(arguments));
}

fn insist(name: &str, command: &mut Command) {
    // A checkout may be read-only, and a cache in it is a surprise.
    let command = command.env("PYTHONDONTWRITEBYTECODE", "1");
    let status = command.status().expect("Python starts");
    let found = "found differences (above)";
    assert!(status.success(), "{name} {found}: {status}");
}

/// A missing oracle is a failure that says how to get it: a comparison that skips itself in
/// silence proves nothing.
fn python() -> PathBuf {
    let python = match std::env::var_os(PYTHON_VARIABLE) {
        Some(python) => PathBuf::from(python),
        None => repository_root().join(".venv/bin/python"),
    };
    assert!(
        python.is_file(),
        "no Python with the oracles at {}: run `cargo xtask test` once, or set {PYTHON_VARIABLE}",
        python.display()
    );
    python
}
