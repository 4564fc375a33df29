//! `cargo xtask lines`: lines of product code by package.
//!
//! It counts committed Rust and CUDA files without blank lines, comments, and unit tests: an inline module `tests` and
//! everything after it, and files and folders of tests, examples, benchmarks and fuzz targets.

use crate::{paths, process};
use anyhow::Result;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

const OF_TESTS: [&str; 4] = ["tests", "examples", "benches", "fuzz"];

pub fn run() -> Result<()> {
    let mut list = Command::new("git");
    list.args(["ls-files", "*.rs", "*.cu", "*.cuh"])
        .current_dir(paths::root());
    let mut packages = BTreeMap::<String, usize>::new();
    for file in process::output(&mut list)?.lines() {
        let file = Path::new(file);
        // A deleted file is listed until the deletion is committed.
        if let (Some(package), Ok(text)) = (
            package_of(file),
            fs::read_to_string(paths::root().join(file)),
        ) {
            *packages.entry(package).or_default() += product_lines(&text);
        }
    }
    println!("| package | lines |\n|---|---|");
    for (package, lines) in &packages {
        println!("| {package} | {lines} |");
    }
    println!("| **sum** | **{}** |", packages.values().sum::<usize>());
    Ok(())
}

/// Folder of the nearest `Cargo.toml`; `None` for a file of tests.
fn package_of(file: &Path) -> Option<String> {
    let is_of_tests = |part: &str| OF_TESTS.contains(&part) || part.ends_with("tests.rs");
    if file.iter().filter_map(|it| it.to_str()).any(is_of_tests) {
        return None;
    }
    let has_manifest = |folder: &&Path| paths::root().join(folder).join("Cargo.toml").is_file();
    let package = file.ancestors().skip(1).find(has_manifest)?;
    Some(package.display().to_string())
}

fn product_lines(text: &str) -> usize {
    let (product, _) = text
        .split_once("\n#[cfg(test)]\nmod tests {")
        .unwrap_or((text, ""));
    let lines = product.lines().map(str::trim_start);
    lines
        .filter(|line| !line.is_empty() && !line.starts_with("//"))
        .count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_blank_lines_and_unit_tests_are_no_product_code() {
        let text = "//! A page.\n\nfn one() {}\n\n/// A comment.\nfn other() {\n    // Why.\n}\n\n#[cfg(test)]\nmod tests {\n}\n";
        assert_eq!(product_lines(text), 3);
    }

    #[test]
    fn a_file_belongs_to_the_nearest_package_unless_it_is_a_test() {
        let package = |file: &str| package_of(Path::new(file));
        assert_eq!(
            package("supervisor/text/src/lib.rs").as_deref(),
            Some("supervisor/text")
        );
        assert_eq!(
            package("supervisor/src/main.rs").as_deref(),
            Some("supervisor")
        );
        assert_eq!(package("supervisor/src/http/tests.rs"), None);
        assert_eq!(package("tests/tests/chat.rs"), None);
    }
}
