//! Values of `--model`: a file, `smollm2`, or `owner/repository[:file]` that was pulled.
//!
//! Deliberately absent: getting a model, and a look into its file.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

/// The model that needs no hub.
pub const SMOLLM2: &str = "smollm2";

/// File name of the model that `smollm2` means.
pub const SMOLLM2_FILE: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";

/// Depth to which a repository is searched for a file.
const MAX_FOLDERS: usize = 4;

/// The file that `--model` means.
///
/// # Errors
/// When it is neither a file nor a name that was pulled.
pub fn resolve(model: &str) -> Result<PathBuf, String> {
    resolve_in(cache_directory().as_deref(), model)
}

fn resolve_in(cache: Option<&Path>, model: &str) -> Result<PathBuf, String> {
    let not_here = || format!("{model} is not here yet: run `worker-orcd pull {model}`");
    if model == SMOLLM2 {
        let path = cache.map(|directory| directory.join(SMOLLM2_FILE));
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
            SMOLLM2
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

#[must_use]
pub fn cache_directory() -> Option<PathBuf> {
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    let base = variable("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| variable("HOME").map(|home| PathBuf::from(home).join(".cache")))?;
    Some(base.join("worker-orcd"))
}

/// `owner/repository`, and what follows a colon; `None` for what is no such name.
#[must_use]
pub fn repository_and_file(name: &str) -> Option<(&str, Option<&str>)> {
    let (repository, file) = match name.split_once(':') {
        Some((repository, file)) => (repository, Some(file)),
        None => (name, None),
    };
    let is_name = is_repository(repository) && file.is_none_or(is_gguf_path);
    is_name.then_some((repository, file))
}

/// A path that stays inside its repository.
#[must_use]
pub fn is_gguf_path(path: &str) -> bool {
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
