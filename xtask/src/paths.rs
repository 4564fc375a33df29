//! Paths of the repository.

use std::path::{Path, PathBuf};

/// Repository root: the parent of this crate's folder.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("xtask lies in the repository")
}

/// Path of a program that cargo builds for the given profile (`debug` or `release`).
pub fn built(profile: &str, program: &str) -> PathBuf {
    target().join(profile).join(program)
}

pub fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| root().join("target"), |folder| root().join(folder))
}

pub fn oracle_script(name: &str) -> PathBuf {
    root().join("tests/oracle").join(name)
}

pub fn bench_results() -> PathBuf {
    root().join("bench/results")
}
