//! The virtual environment that the oracles run in: `.venv/`, made once, remade when
//! `tests/oracle/requirements.txt` changes.

use crate::{paths, process};
use anyhow::{Context, Result};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A Python that has the packages of `requirements.txt`. `WORKER_ORCD_PYTHON` names another.
pub fn interpreter() -> Result<PathBuf> {
    if let Some(python) = std::env::var_os("WORKER_ORCD_PYTHON") {
        return Ok(python.into());
    }
    let folder = paths::root().join(".venv");
    let python = folder.join("bin/python");
    let requirements = paths::oracle_script("requirements.txt");
    let wanted = fs::read_to_string(&requirements)?;
    // Written last, so an interrupted installation is done again.
    let stamp = folder.join("installed-requirements.txt");
    if fs::read_to_string(&stamp).is_ok_and(|installed| installed == wanted) {
        return Ok(python);
    }
    println!("setting up .venv with llama.cpp and the other oracles");
    create(&folder)?;
    install(&python, &requirements).context("the oracles cannot be installed")?;
    fs::write(stamp, wanted)?;
    Ok(python)
}

/// `--without-pip`: some distributions split pip's bootstrap off `python3`, and a pip that is
/// there can install into any environment.
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

/// `pip install` into the environment of `python`; what to install is still to be added.
pub fn pip_install(python: &Path) -> Command {
    let mut command = Command::new("python3");
    command
        .args(["-m", "pip", "--disable-pip-version-check", "--python"])
        .arg(python)
        .args(["install", "--quiet"]);
    command
}
