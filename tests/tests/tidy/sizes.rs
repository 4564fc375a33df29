//! Limits on the lengths of files and functions.

use crate::repository::{committed_files, read, rust_sources};
use std::path::Path;

/// Limit of every Rust file, tests included.
const MAX_LINES: usize = 1000;

/// Limit of a file of product code without its unit tests, in Rust or CUDA.
const MAX_PRODUCT_LINES: usize = 800;

/// Limit of a function of product code, from its `fn` to its brace.
const MAX_FUNCTION_LINES: usize = 80;

#[test]
fn no_file_holds_more_than_one_idea() {
    for (path, text) in rust_sources("") {
        let lines = text.lines().count();
        assert!(
            lines <= MAX_LINES,
            "{path:?} has {lines} lines, more than {MAX_LINES}"
        );
    }
}

#[test]
fn no_file_of_product_code_is_long() {
    let is_code = |path: &Path| {
        let suffix = path.extension().and_then(|it| it.to_str());
        matches!(suffix, Some("rs" | "cu" | "cuh" | "h"))
    };
    let files = committed_files();
    let product = files
        .iter()
        .filter(|path| is_product(path) && is_code(path));
    let lengths = product.map(|path| (without_tests(&read(path)).lines().count(), path));
    let long: Vec<_> = lengths
        .filter(|(lines, _)| *lines > MAX_PRODUCT_LINES)
        .collect();
    assert!(long.is_empty(), "more than {MAX_PRODUCT_LINES}: {long:#?}");
}

#[test]
fn no_function_of_product_code_is_long() {
    let mut seen = 0;
    let mut long = Vec::new();
    for (path, text) in rust_sources("") {
        if !is_product(&path) {
            continue;
        }
        for (name, lines) in functions(without_tests(&text)) {
            seen += 1;
            if lines > MAX_FUNCTION_LINES {
                long.push(format!("{}: {name}, {lines} lines", path.display()));
            }
        }
    }
    assert!(seen > 1000, "only {seen} functions were found");
    assert!(long.is_empty(), "more than {MAX_FUNCTION_LINES}: {long:#?}");
}

/// Whether a path is product code. A listed file that is missing was deleted, and the deletion is not committed yet.
fn is_product(path: &Path) -> bool {
    let crates = [
        "supervisor",
        "gpu-child",
        "ipc-protocol",
        "kernels",
        "xtask",
    ];
    let mut folders = path.iter().filter_map(|part| part.to_str());
    let is_of_tests = |part: &str| {
        matches!(part, "tests" | "examples" | "benches" | "fuzz") || part.ends_with("tests.rs")
    };
    folders.next().is_some_and(|first| crates.contains(&first))
        && !folders.any(is_of_tests)
        && worker_orcd_tests::model::repository_root()
            .join(path)
            .is_file()
}

/// Text before the inline module of unit tests, which is a file's last item.
fn without_tests(text: &str) -> &str {
    let tests = text.find("\n#[cfg(test)]\nmod tests {");
    &text[..tests.unwrap_or(text.len())]
}

/// Name and length of each function. `cargo fmt` aligns a function's last brace with its first line, and indents
/// everything in between.
fn functions(text: &str) -> Vec<(&str, usize)> {
    let lines: Vec<&str> = text.lines().collect();
    let indent = |line: &str| line.len() - line.trim_start().len();
    let mut found = Vec::new();
    for (first, line) in lines.iter().enumerate() {
        let Some(name) = function_name(line) else {
            continue;
        };
        let ends = |it: &&str| indent(it) == indent(line) && it.ends_with(['}', ';']);
        let length = lines[first..]
            .iter()
            .position(ends)
            .map_or(0, |last| last + 1);
        found.push((name, length));
    }
    found
}

/// Name after `fn`, if a function begins in this line.
fn function_name(line: &str) -> Option<&str> {
    let (before, behind) = line.trim_start().split_once("fn ")?;
    let is_qualifier = |word: &str| {
        matches!(word, "const" | "async" | "unsafe" | "extern" | "\"C\"") || word.starts_with("pub")
    };
    let name = behind.split(['(', '<']).next()?;
    before
        .split(' ')
        .filter(|it| !it.is_empty())
        .all(is_qualifier)
        .then_some(name)
}
