//! Repository as the tests see it: committed files, and dependencies of packages.

use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use worker_orcd_tests::model::repository_root;

/// Lines that are not comments.
pub fn code_lines(text: &str) -> impl Iterator<Item = &str> {
    text.lines()
        .filter(|line| !line.trim_start().starts_with("//"))
}

pub fn rust_sources(folder: &str) -> Vec<(PathBuf, String)> {
    let sources: Vec<_> = committed_files()
        .into_iter()
        .filter(|path| path.starts_with(folder))
        .filter(|path| path.extension().is_some_and(|extension| extension == "rs"))
        .filter(|path| repository_root().join(path).is_file())
        .map(|path| (path.clone(), read(&path)))
        .collect();
    assert!(!sources.is_empty(), "no Rust source in {folder:?}");
    sources
}

pub fn read(path: &Path) -> String {
    fs::read_to_string(repository_root().join(path))
        .unwrap_or_else(|error| panic!("{path:?}: {error}"))
}

/// Tracked files, and new ones that git does not ignore.
pub fn committed_files() -> Vec<PathBuf> {
    let output = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .current_dir(repository_root())
        .output()
        .expect("git");
    assert!(
        output.status.success(),
        "git ls-files: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout)
        .expect("UTF-8 paths")
        .lines()
        .map(PathBuf::from)
        .collect()
}

/// Names of all packages linked into `package`, without dev-dependencies.
pub fn dependencies_of(package: &str) -> Vec<String> {
    let output = Command::new(env!("CARGO"))
        .args([
            "tree",
            "--edges",
            "normal",
            "--prefix",
            "none",
            "--format",
            "{p}",
            "--package",
        ])
        .arg(package)
        .current_dir(repository_root())
        .output()
        .expect("cargo tree");
    assert!(
        output.status.success(),
        "cargo tree: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let text = String::from_utf8(output.stdout).expect("UTF-8 names");
    text.lines()
        .filter_map(|line| line.split(' ').next())
        .map(str::to_owned)
        .collect()
}

/// Root files of the workspace's programs and libraries that have `test = false`.
pub fn targets_without_tests() -> Vec<PathBuf> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--format-version", "1"])
        .current_dir(repository_root())
        .output()
        .expect("cargo metadata");
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("JSON of cargo metadata");
    let packages = metadata["packages"].as_array().expect("packages");
    let targets = packages.iter().flat_map(|it| it["targets"].as_array());
    let untested = targets.flatten().filter(|target| {
        let is_checked_by_lints = ["example", "custom-build"]
            .iter()
            .any(|it| target["kind"][0] == *it);
        target["test"] == false && !is_checked_by_lints
    });
    let sources = untested.map(|target| Path::new(target["src_path"].as_str().expect("a path")));
    let relative = sources.map(|it| it.strip_prefix(repository_root()).unwrap_or(it));
    relative.map(Path::to_owned).collect()
}
