//! Limits on the lengths of files and functions, and on the number of files over which a type is spread.

use crate::repository::{committed_files, read, rust_sources};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Limit of a file, tests included.
const MAX_LINES: usize = 800;

/// Limit of a function of product code, from its `fn` to its brace.
const MAX_FUNCTION_LINES: usize = 80;

/// Limit of the files of a crate with an inherent `impl` of one type.
const MAX_FILES_OF_A_TYPE: usize = 3;

/// Types above that limit: crate, name, and number of files.
const SPREAD_TYPES: [(&str, &str, usize); 2] = [
    // Two types: the reader of GBNF in one file, and that of schemas, cut by keywords, in five.
    ("gpu-child/grammar", "Reader", 6),
    // State of all routes: each file has what its routes need of it.
    ("supervisor", "App", 8),
];

#[test]
fn no_file_holds_more_than_one_idea() {
    let is_code = |path: &Path| {
        let suffix = path.extension().and_then(|it| it.to_str());
        matches!(suffix, Some("rs" | "cu" | "cuh" | "h"))
    };
    let files = committed_files();
    let code = files.iter().filter(|path| is_code(path) && is_there(path));
    let lengths = code.map(|path| (read(path).lines().count(), path));
    let (long, others): (Vec<_>, Vec<_>) = lengths.partition(|(lines, _)| *lines > MAX_LINES);
    assert!(
        others.len() > 1000,
        "only {} files were found",
        others.len()
    );
    assert!(long.is_empty(), "more than {MAX_LINES}: {long:#?}");
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

/// Types are told apart by crate and name only.
#[test]
fn no_type_of_product_code_is_spread_over_many_files() {
    let mut files: BTreeMap<(String, String), BTreeSet<PathBuf>> = BTreeMap::new();
    for (path, text) in rust_sources("") {
        if !is_product(&path) {
            continue;
        }
        let package = crate_of(&path);
        for name in types_with_impl(without_tests(&text)) {
            let of_type = files.entry((package.clone(), name.to_owned()));
            of_type.or_default().insert(path.clone());
        }
    }
    assert!(files.len() > 300, "only {} types were found", files.len());
    files.retain(|_, files| files.len() > MAX_FILES_OF_A_TYPE);
    let found = files
        .iter()
        .map(|((package, name), files)| (package.as_str(), name.as_str(), files.len()));
    let found: Vec<_> = found.collect();
    assert_eq!(found, SPREAD_TYPES, "{files:#?}");
}

#[test]
fn an_inherent_impl_is_told_from_one_of_a_trait() {
    let text = "impl Plain {}\nimpl<'a, F: Fn() -> Vec<u8>> Generic<'a, F>\nwhere\n    F: for<'b> Of<'b>,\n{\n}\n\
                impl dyn a::Path {}\nimpl From<A> for B {}\nimpl<T> Long<T>\n    for C {}\n    impl Within {}\n";
    let found: Vec<_> = types_with_impl(text).collect();
    assert_eq!(found, ["Plain", "Generic", "Path"]);
}

/// Whether a path is product code.
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
        && is_there(path)
}

/// A listed file that is missing was deleted, and the deletion is not committed yet.
fn is_there(path: &Path) -> bool {
    worker_orcd_tests::model::repository_root()
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

/// Folder of the crate of a source file.
fn crate_of(path: &Path) -> String {
    let path = path.to_str().expect("a path in UTF-8");
    let folder = path.split_once("/src/").map(|(folder, _)| folder);
    folder.unwrap_or(path).to_owned()
}

/// Type of each inherent `impl` that is not indented.
fn types_with_impl(text: &str) -> impl Iterator<Item = &str> {
    let blocks = text.match_indices("impl");
    let outer = blocks.filter(|(at, _)| *at == 0 || text[..*at].ends_with('\n'));
    outer.filter_map(|(at, word)| {
        let head = text[at + word.len()..].split('{').next()?;
        let of = without_parameters(head)?.trim_start();
        let of = of.strip_prefix("dyn ").unwrap_or(of);
        let is_of_a_trait = of.split_whitespace().any(|word| word == "for");
        let path = of.split(|c: char| c == '<' || c.is_whitespace()).next()?;
        let name = path.rsplit("::").next()?;
        (!is_of_a_trait).then_some(name)
    })
}

/// Text behind the parameters in angle brackets with which it begins, if it has any.
fn without_parameters(head: &str) -> Option<&str> {
    if !head.starts_with('<') {
        return Some(head);
    }
    let mut depth = 0;
    let mut before = ' ';
    for (at, c) in head.char_indices() {
        match c {
            '<' => depth += 1,
            // The arrow of a function type closes nothing.
            '>' if before != '-' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some(&head[at + 1..]);
        }
        before = c;
    }
    None
}
