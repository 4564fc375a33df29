//! Paths of the real model, and of the Python with the oracles.

use crate::gguf_patch::with_layers;
use nix::fcntl::{Flock, FlockArg};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::{env, fs};

/// Variable with another model file.
pub const MODEL_VARIABLE: &str = "WORKER_ORCD_MODEL";

/// Variable with a Python that has the packages of `tests/oracle/requirements.txt`.
const PYTHON_VARIABLE: &str = "WORKER_ORCD_PYTHON";

const DEFAULT_MODEL: &str = "models/SmolLM2-135M-Instruct.Q4_1.gguf";

/// Model of the tests. A missing model is a failure that names the remedy: a silently skipped test proves nothing.
#[must_use]
pub fn real_model() -> PathBuf {
    let path = match env::var_os(MODEL_VARIABLE) {
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

/// Layers of [`shallow_model`].
const SHALLOW_LAYERS: u32 = 6;

/// The first layers of [`real_model`], for tests in which its text needs no meaning: they compare the model with itself,
/// and fewer layers compute faster.
#[must_use]
pub fn shallow_model() -> PathBuf {
    static MADE: OnceLock<PathBuf> = OnceLock::new();
    MADE.get_or_init(|| first_layers_of(&real_model())).clone()
}

/// File with the first layers of a model, as [`shallow_model`]. It is made beside this program, unless it is newer than
/// program and model.
///
/// # Panics
/// The file cannot be written.
#[must_use]
pub fn first_layers_of(model: &Path) -> PathBuf {
    let program = env::current_exe().expect("a program has a path");
    let name = model.file_name().expect("a file has a name");
    let path = program.with_file_name(name).with_extension("shallow.gguf");
    // Another test program must not replace the file under a worker of this one.
    let lock = File::create(path.with_extension("lock")).expect("a folder of ours");
    let _turn = Flock::lock(lock, FlockArg::LockExclusive).expect("a lock of ours");
    let changed = |path: &Path| fs::metadata(path).and_then(|it| it.modified()).ok();
    if changed(&path) <= changed(&program).max(changed(model)) {
        // A program that is killed leaves no half of it.
        let unfinished = path.with_extension("unfinished");
        with_layers(model, SHALLOW_LAYERS, &unfinished).expect("a copy with fewer layers");
        fs::rename(&unfinished, &path).expect("both are in one folder");
    }
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
    let python = match env::var_os(PYTHON_VARIABLE) {
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
