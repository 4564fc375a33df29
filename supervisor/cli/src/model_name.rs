//! Values of `--model`: a file, `smollm2`, or `owner/repository[:file]`. A repository's file may have been downloaded
//! by `pull`, be in the cache of Hugging Face's hub, or be missing.
//!
//! Deliberately absent: downloads ([`pull`](crate::pull)), and reading model files.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use worker_orcd_ipc::ModelPart;
#[cfg(doc)]
use worker_orcd_ipc::model_parts;
use worker_orcd_text::printable::printable;

/// Model that needs no hub.
pub const SMOLLM2: &str = "smollm2";

/// File name of `smollm2`.
pub const SMOLLM2_FILE: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";

/// Depth of the search for a file in a repository.
const MAX_FOLDERS: usize = 4;

/// Selected file of a repository.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice<'a> {
    /// The only model.
    Only,
    File(&'a str),
    /// The only model with a name that ends with this text: `Q4_K_M`, `UD-Q4_K_XL`, `MXFP4`.
    Quantization(&'a str),
}

/// Location of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Whereabouts {
    Here(PathBuf),
    /// A name for `pull`, not downloaded yet.
    Elsewhere,
}

/// # Errors
/// If it is neither a file nor a name for `pull`.
pub fn resolve(model: &str) -> Result<Whereabouts, String> {
    resolve_in(&Caches::of_environment(), model)
}

/// Variable that forbids requests to the hub, if set ([`huggingface_hub` reads the
/// same](https://huggingface.co/docs/huggingface_hub/package_reference/environment_variables)).
#[must_use]
pub fn forbids_the_hub() -> Option<&'static str> {
    let says_yes = |name: &&str| {
        let value = std::env::var(name).unwrap_or_default();
        ["1", "ON", "YES", "TRUE"].contains(&value.to_ascii_uppercase().as_str())
    };
    ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"]
        .into_iter()
        .find(says_yes)
}

/// Directories of models, in order of preference.
#[derive(Debug, Default)]
struct Caches {
    own: Option<PathBuf>,
    /// Directory with `models--OWNER--NAME/snapshots/COMMIT/FILE`, as in `huggingface_hub`.
    hub: Option<PathBuf>,
}

fn resolve_in(caches: &Caches, model: &str) -> Result<Whereabouts, String> {
    if model == SMOLLM2 {
        let path = caches.own.as_ref().map(|own| own.join(SMOLLM2_FILE));
        let here = path.filter(|path| path.is_file()).map(Whereabouts::Here);
        return Ok(here.unwrap_or(Whereabouts::Elsewhere));
    }
    let path = PathBuf::from(model);
    let error = match fs::metadata(&path) {
        Ok(found) if found.is_dir() => {
            return Err(format!("{model} is a directory, not a .gguf file"));
        }
        Ok(_) => return Ok(Whereabouts::Here(path)),
        Err(error) => error,
    };
    // A wrong path has the form of a repository.
    let named = repository_and_choice(model).filter(|_| !is_file_name(model));
    let Some((repository, choice)) = named else {
        return Err(format!(
            "{model} cannot be read: {error}; `worker-orcd pull` gets a model, {SMOLLM2} or \
             owner/repository:file.gguf"
        ));
    };
    for folder in caches.folders_of(repository) {
        if let Some(path) = found_in(&folder, repository, choice)? {
            return Ok(Whereabouts::Here(path));
        }
    }
    Ok(Whereabouts::Elsewhere)
}

/// Whether a name has the extension of a model file.
fn is_file_name(model: &str) -> bool {
    model.ends_with(".gguf") && !model.contains(':')
}

impl Caches {
    fn of_environment() -> Self {
        let hub = variable("HF_HUB_CACHE").or_else(|| Some(hub_home()?.join("hub")));
        Self {
            own: cache_directory(),
            hub,
        }
    }

    fn folders_of(&self, repository: &str) -> impl Iterator<Item = PathBuf> {
        let own = self.own.as_ref().map(|own| own.join(repository));
        let hub = self.hub.as_ref().and_then(|hub| {
            let folder = hub.join(format!("models--{}", repository.replace('/', "--")));
            let commit = fs::read_to_string(folder.join("refs/main")).ok()?;
            let commit = commit.trim();
            let is_commit = !commit.is_empty() && commit.bytes().all(|it| it.is_ascii_hexdigit());
            is_commit.then(|| folder.join("snapshots").join(commit))
        });
        own.into_iter().chain(hub)
    }
}

/// Selected file in a repository's folder; `None` if there is none.
fn found_in(
    folder: &Path,
    repository: &str,
    choice: Choice<'_>,
) -> Result<Option<PathBuf>, String> {
    let mut found = Vec::new();
    gguf_files(folder, MAX_FOLDERS, &mut found);
    let names = found
        .iter()
        .filter_map(|path| path.strip_prefix(folder).ok());
    let names: Vec<_> = names.filter_map(Path::to_str).collect();
    let name = chosen(repository, choice, &names)?;
    Ok(name.map(|name| folder.join(name)))
}

/// Selects a file of a repository, or the first of [several parts](mod@model_parts); `None` if there is none.
///
/// # Errors
/// If several models match, or if it is a later part.
pub fn chosen<'a>(
    repository: &str,
    choice: Choice<'_>,
    files: &[&'a str],
) -> Result<Option<&'a str>, String> {
    let is_meant = |file: &&str| match choice {
        Choice::Only => !is_projector(file),
        Choice::File(name) => *file == name,
        Choice::Quantization(tag) => !is_projector(file) && ends_with(name_of(file), tag),
    };
    let is_first = |file: &&str| part_of(file).is_none_or(|part| part.number == 1);
    let meant: Vec<_> = files.iter().copied().filter(is_meant).collect();
    let firsts: Vec<_> = meant.iter().copied().filter(is_first).collect();
    match (firsts.as_slice(), meant.as_slice()) {
        ([], []) => Ok(None),
        ([file], _) => Ok(Some(file)),
        ([], [later, ..]) => Err(format!(
            "{} is one of several files of a model, which is named by the first",
            printable(later)
        )),
        (several, _) => {
            let names: Vec<_> = several.iter().map(|name| printable(name)).collect();
            Err(format!(
                "{repository} has several: say which, {repository}:FILE with one of\n  {}",
                names.join("\n  ")
            ))
        }
    }
}

/// Whether it is an image encoder, which is no model by itself.
fn is_projector(file: &str) -> bool {
    let name = file.rsplit('/').next().unwrap_or(file);
    name.starts_with("mmproj")
}

fn part_of(file: &str) -> Option<ModelPart<'_>> {
    ModelPart::of_stem(stem(file))
}

fn stem(file: &str) -> &str {
    file.strip_suffix(".gguf").unwrap_or(file)
}

/// Path without the extension.
fn name_of(file: &str) -> &str {
    part_of(file).map_or(stem(file), |part| part.name)
}

/// Whether the last words of a name are this tag.
fn ends_with(stem: &str, tag: &str) -> bool {
    let Some(before) = stem.len().checked_sub(tag.len()) else {
        return false;
    };
    let end = stem.get(before..);
    let is_word = before == 0 || stem[..before].ends_with(['-', '.', '_', '/']);
    is_word && end.is_some_and(|end| end.eq_ignore_ascii_case(tag))
}

fn gguf_files(folder: &Path, depth: usize, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        // Incomplete files are hidden.
        if entry.file_name().as_encoded_bytes().starts_with(b".") {
            continue;
        }
        if path.is_dir() && depth > 0 {
            gguf_files(&path, depth - 1, found);
        } else if path.extension() == Some(OsStr::new("gguf")) {
            found.push(path);
        }
    }
}

fn variable(name: &str) -> Option<PathBuf> {
    let value = std::env::var_os(name).filter(|value| !value.is_empty());
    value.map(PathBuf::from)
}

fn cache_home() -> Option<PathBuf> {
    variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")))
}

#[must_use]
pub fn cache_directory() -> Option<PathBuf> {
    Some(cache_home()?.join("worker-orcd"))
}

/// Home directory of Hugging Face's programs ([their
/// settings](https://huggingface.co/docs/huggingface_hub/package_reference/environment_variables)).
#[must_use]
pub fn hub_home() -> Option<PathBuf> {
    variable("HF_HOME").or_else(|| Some(cache_home()?.join("huggingface")))
}

/// Splits `owner/repository[:choice]`; `None` for other texts.
#[must_use]
pub fn repository_and_choice(name: &str) -> Option<(&str, Choice<'_>)> {
    let (repository, choice) = match name.split_once(':') {
        Some((repository, file)) if is_gguf_path(file) => (repository, Choice::File(file)),
        Some((repository, tag)) if is_tag(tag) => (repository, Choice::Quantization(tag)),
        Some(_) => return None,
        None => (name, Choice::Only),
    };
    is_repository(repository).then_some((repository, choice))
}

fn is_tag(tag: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || "_-".contains(c);
    !tag.is_empty() && tag.chars().all(is_part)
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
        let file = Choice::File("q4/c.gguf");
        assert_eq!(repository_and_choice("a/b:q4/c.gguf"), Some(("a/b", file)));
        assert_eq!(repository_and_choice("a/b"), Some(("a/b", Choice::Only)));
        let tag = Choice::Quantization("UD-Q4_K_XL");
        assert_eq!(repository_and_choice("a/b:UD-Q4_K_XL"), Some(("a/b", tag)));
        for bad in [
            "a/b:../c.gguf",
            "a/b:/c.gguf",
            "a/b:c/./d.gguf",
            "a/b:c.bin",
            "a/b:c\n.gguf",
            "a:b.gguf",
            "a/b:",
            "a/b:Q4/K",
        ] {
            assert_eq!(repository_and_choice(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn a_pulled_name_is_found_and_a_missing_one_is_to_be_got() {
        let cache = tempfile::tempdir().unwrap();
        let caches = Caches {
            own: Some(cache.path().to_owned()),
            hub: None,
        };
        let resolve = |model: &str| resolve_in(&caches, model);
        for missing in ["smollm2", "a/b", "a/b:c.gguf", "a/b:Q4_K_M"] {
            assert_eq!(resolve(missing), Ok(Whereabouts::Elsewhere), "{missing}");
        }
        for mistyped in ["nope.gguf", "no/such.gguf", "/no/such", "a/b/c"] {
            let why = resolve(mistyped).unwrap_err();
            assert!(why.contains("worker-orcd pull"), "{why}");
        }
        let folder = cache.path().join("a/b/q4");
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("c.gguf"), b"GGUF").unwrap();
        fs::write(folder.join("d.gguf.0123.partial"), b"GGUF").unwrap();
        let found = Ok(Whereabouts::Here(folder.join("c.gguf")));
        assert_eq!(resolve("a/b"), found);
        assert_eq!(resolve("a/b:q4/c.gguf"), found);
        assert_eq!(resolve("a/b:q4/d.gguf"), Ok(Whereabouts::Elsewhere));
        fs::write(folder.join("e.gguf"), b"GGUF").unwrap();
        let why = resolve("a/b").unwrap_err();
        assert!(
            why.contains("q4/c.gguf") && why.contains("q4/e.gguf"),
            "{why}"
        );
    }

    #[test]
    fn a_quantization_is_the_end_of_a_name_and_never_an_encoder_of_images() {
        let files = [
            "M-Q4_K_M.gguf",
            "M-UD-Q4_K_XL.gguf",
            "M.IQ4_XS.gguf",
            "big/M-q8_0.gguf",
            "mmproj-F16.gguf",
            "M-F16.gguf",
            "M-BF16.gguf",
        ];
        let found = |tag| chosen("a/b", Choice::Quantization(tag), &files);
        for (tag, file) in [
            ("Q4_K_M", Some(files[0])),
            ("UD-Q4_K_XL", Some(files[1])),
            ("q4_k_xl", Some(files[1])),
            ("IQ4_XS", Some(files[2])),
            ("Q8_0", Some(files[3])),
            ("F16", Some(files[5])),
            ("4_K_M", None),
            ("Q2_K", None),
        ] {
            assert_eq!(found(tag), Ok(file), "{tag}");
        }
        let only = [files[0], files[4]];
        assert_eq!(chosen("a/b", Choice::Only, &only), Ok(Some(files[0])));
    }

    #[test]
    fn a_model_in_several_files_is_its_first_and_several_models_are_listed() {
        let parts = ["M-Q8_0-00001-of-00002.gguf", "M-Q8_0-00002-of-00002.gguf"];
        let tag = Choice::Quantization("Q8_0");
        for choice in [tag, Choice::Only, Choice::File(parts[0])] {
            assert_eq!(chosen("a/b", choice, &parts), Ok(Some(parts[0])));
        }
        let why = chosen("a/b", Choice::File(parts[1]), &parts).unwrap_err();
        assert!(why.contains("named by the first"), "{why}");
        let two = ["one-Q8_0.gguf", "two-Q8_0.gguf"];
        let why = chosen("a/b", tag, &two).unwrap_err();
        assert!(two.iter().all(|name| why.contains(name)), "{why}");
    }

    #[test]
    fn what_another_program_has_left_in_the_hubs_cache_is_found_behind_our_own() {
        let (own, hub) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let folder = hub.path().join("models--a--b");
        let snapshot = folder.join("snapshots/0123abcd");
        fs::create_dir_all(&snapshot).unwrap();
        fs::create_dir_all(folder.join("refs")).unwrap();
        fs::create_dir_all(folder.join("blobs")).unwrap();
        fs::write(folder.join("refs/main"), "0123abcd\n").unwrap();
        fs::write(folder.join("blobs/ff"), b"GGUF").unwrap();
        let linked = snapshot.join("M-Q4_K_M.gguf");
        std::os::unix::fs::symlink("../../blobs/ff", &linked).unwrap();
        let caches = Caches {
            own: Some(own.path().to_owned()),
            hub: Some(hub.path().to_owned()),
        };
        let found = |path: &PathBuf| Ok(Whereabouts::Here(path.clone()));
        assert_eq!(resolve_in(&caches, "a/b:Q4_K_M"), found(&linked));
        let elsewhere = Ok(Whereabouts::Elsewhere);
        assert_eq!(resolve_in(&caches, "a/c:Q4_K_M"), elsewhere);
        for no_commit in ["", "..", "0123abce"] {
            fs::write(folder.join("refs/main"), no_commit).unwrap();
            assert_eq!(resolve_in(&caches, "a/b"), elsewhere, "{no_commit:?}");
        }
        let pulled = own.path().join("a/b/M-Q4_K_M.gguf");
        fs::create_dir_all(pulled.parent().unwrap()).unwrap();
        fs::write(&pulled, b"GGUF").unwrap();
        assert_eq!(resolve_in(&caches, "a/b:Q4_K_M"), found(&pulled));
    }
}
