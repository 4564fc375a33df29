//! Model families: real vocabularies and chat templates around layers of random weights, written by
//! `tests/oracle/families.py`.

use crate::model::{oracle_python, real_model, repository_root};
use serde::Deserialize;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Row of `FAMILIES` in `tests/oracle/families.py`.
#[derive(Debug, Deserialize)]
pub struct Family {
    pub name: String,
    /// Model of `tests/oracle/tiny_models.py` with the same layers.
    pub variant: String,
    pub template: String,
    /// Texts of BOS and EOS.
    pub begin: String,
    pub end: String,
    pub has_tools: bool,
    /// Model file, if it was written.
    pub path: Option<PathBuf>,
}

/// All families, without files.
#[must_use]
pub fn templates() -> Vec<Family> {
    all("-".as_ref(), &[])
}

/// All families, with files in a folder.
#[must_use]
pub fn written_to(folder: &Path) -> Vec<Family> {
    all(folder.as_os_str(), &[])
}

/// The same, of models of this context length.
#[must_use]
pub fn written_for(folder: &Path, context: usize) -> Vec<Family> {
    all(folder.as_os_str(), &["--context", &context.to_string()])
}

/// Families of these names, with files in a folder.
///
/// # Panics
/// There is no family of a name.
#[must_use]
pub fn some_written_to(folder: &Path, names: &[&str]) -> Vec<Family> {
    let families = asked_for(folder.as_os_str(), names);
    let is_there = |name: &&str| families.iter().any(|it| it.name == *name);
    assert!(names.iter().all(is_there), "{names:?}: {families:?}");
    families
}

/// Template of the collection that contains those of the families.
///
/// # Panics
/// There is no such template.
#[must_use]
pub fn collected(name: &str) -> String {
    let folder = std::env::var_os("WORKER_ORCD_FAMILIES").map(PathBuf::from);
    let folder = folder.unwrap_or_else(|| repository_root().join("target/families"));
    let path = folder.join(format!(
        "axolotl/utils/chat_templates/templates/{name}.jinja"
    ));
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn all(folder: &OsStr, flags: &[&str]) -> Vec<Family> {
    let families = asked_for(folder, flags);
    assert!(families.len() > 5, "{families:?}");
    families
}

/// `more`: names and flags.
fn asked_for(folder: &OsStr, more: &[&str]) -> Vec<Family> {
    let script = repository_root().join("tests/oracle/families.py");
    let mut command = Command::new(oracle_python());
    command.arg(script).arg(folder).arg(real_model()).args(more);
    let output = command
        // A checkout may be read-only, and a cache in it is unexpected.
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .output()
        .expect("Python starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let lines = String::from_utf8(output.stdout).expect("UTF-8");
    let rows = lines.lines().map(serde_json::from_str);
    rows.collect::<Result<_, _>>().expect("a line for each")
}
