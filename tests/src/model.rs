//! Paths of the real model, and of the Python with the oracles.

use std::path::{Path, PathBuf};

/// Variable with another model file.
pub const MODEL_VARIABLE: &str = "WORKER_ORCD_MODEL";

/// Variable with a Python that has the packages of `tests/oracle/requirements.txt`.
const PYTHON_VARIABLE: &str = "WORKER_ORCD_PYTHON";

const DEFAULT_MODEL: &str = "models/SmolLM2-135M-Instruct.Q4_1.gguf";

/// Model of the tests. A missing model is a failure that names the remedy: a silently skipped test proves nothing.
#[must_use]
pub fn real_model() -> PathBuf {
    let path = match std::env::var_os(MODEL_VARIABLE) {
        Some(path) => PathBuf::from(path),
        None => repository_root().join(DEFAULT_MODEL),
    };
    assert!(
        path.is_file(),
        "no model at {}: run `cargo xtask fetch-model`, or set {MODEL_VARIABLE}",
        path.display()
    );
    path
}

#[must_use]
pub fn repository_root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("tests/ has a parent")
}

/// Python of the oracles. A missing oracle is a failure that names the remedy: a silently skipped comparison proves
/// nothing.
#[must_use]
pub fn oracle_python() -> PathBuf {
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
