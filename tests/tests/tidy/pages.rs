//! Checks that pages agree with the code: tests, files, folders, causes of death, exit codes, Xids.

use crate::repository::{committed_files, read, rust_sources};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use worker_orcd::exit::WorkerExit;
use worker_orcd_ipc::ExitCode;
use worker_orcd_lifecycle::{DeathCause, Remedy, Xid};

const DEATHS: &str = "docs/operate/deaths.md";
const PROMISES: &str = "docs/internals/promises.md";
const NVML: &str = "docs/operate/nvml.md";

/// Limit of ARCHITECTURE.md, which takes a quarter of an hour to read; details have pages of their own.
const MAX_ARCHITECTURE_WORDS: usize = 2_500;

/// Attribute of a test that takes minutes and runs only with `cargo xtask test --deep`.
const DEEP: &str = "#[ignore = \"deep: ";

/// A promise needs a test that exists and that `cargo xtask test` runs. A row with a test for `--deep` alone names that
/// flag.
#[test]
fn every_test_that_a_page_names_is_there_and_runs_in_a_check() {
    let sources: Vec<_> = rust_sources("").into_iter().map(|(_, text)| text).collect();
    for page in ["ARCHITECTURE.md", PROMISES, "tests/README.md", DEATHS, NVML] {
        let text = read(Path::new(page));
        let proofs: Vec<_> = text
            .lines()
            .filter(|line| line.starts_with('|'))
            .filter_map(|row| cells(row).pop())
            .flat_map(|cell| words_of_code(cell).map(move |word| (cell, word)))
            .filter(|(_, word)| is_test_name(word))
            .filter(|(_, word)| !Path::new(&format!("tests/{word}.rs")).is_file())
            .collect();
        assert!(proofs.len() > 5, "{page} names no tests: {proofs:?}");
        for (cell, name) in proofs {
            let (open, prefix) = match name.strip_suffix(['…', '*']) {
                Some(prefix) => ("", prefix),
                None => ("(", name),
            };
            let declared = format!("fn {prefix}{open}");
            let before = sources.iter().find_map(|it| it.split_once(&declared));
            let (before, _) = before
                .unwrap_or_else(|| panic!("{page} names the test {name}, which is not there"));
            let attributes = before.rsplit("\n\n").next();
            assert!(
                !attributes.is_some_and(|it| it.contains(DEEP)) || cell.contains("--deep"),
                "{page} names the test {name}, which runs with --deep alone"
            );
        }
    }
}

#[test]
fn every_file_that_a_page_names_is_there() {
    let files = committed_files();
    let is_there = |word: &str| {
        let is_folder = word.ends_with('/');
        let mut names = files.iter().filter_map(|path| path.to_str());
        match is_folder {
            true => names.any(|name| name.starts_with(word)),
            false => names.any(|name| name == word || name.ends_with(&format!("/{word}"))),
        }
    };
    let pages = files.iter().filter(|path| {
        let is_at_root = path.components().count() == 1 && *path != Path::new("CHANGELOG.md");
        has_suffix(path, "md") && (is_at_root || path.starts_with("docs"))
    });
    let mut named = 0;
    for page in pages {
        let text = read(page);
        for word in text.lines().flat_map(words_of_code) {
            let is_path = ["rs", "cu", "cuh", "py", "md"]
                .iter()
                .any(|suffix| has_suffix(Path::new(word), suffix));
            // `target/` is not committed, and NAME is a placeholder.
            let is_of_others = word.starts_with('/') || word.starts_with("target/");
            let is_meant = !is_of_others && !word.contains("NAME");
            if is_meant && (is_path || word.ends_with('/')) {
                named += 1;
                assert!(is_there(word), "{page:?} names {word}, which is not there");
            }
        }
    }
    assert!(named > 50, "the pages name only {named} files");
}

#[test]
fn architecture_stays_short() {
    let words = read(Path::new("ARCHITECTURE.md"))
        .split_whitespace()
        .count();
    assert!(
        words < MAX_ARCHITECTURE_WORDS,
        "{words} words: decisions go to docs/internals/decisions, deaths to {DEATHS}"
    );
}

#[test]
fn every_row_of_the_deaths_names_a_test() {
    let text = read(Path::new(DEATHS));
    let rows: Vec<_> = text
        .split("\n## ")
        .flat_map(|section| rows(section).into_iter())
        .collect();
    assert!(rows.len() > 60, "{rows:?}");
    for mut row in rows {
        let shown_by = row.pop().unwrap_or_default();
        assert!(
            words_of_code(shown_by).any(is_test_name),
            "no test is named: {row:?}"
        );
    }
}

#[test]
fn every_label_and_every_exit_code_has_a_row_among_the_deaths() {
    let text = read(Path::new(DEATHS));
    let names: BTreeSet<_> = rows_under(&text, "Causes")
        .iter()
        .map(|row| row[0].trim_matches('`').to_owned())
        .collect();
    let labels = DeathCause::labels().map(str::to_owned);
    assert_eq!(names, labels.collect());

    let told = numbered(&text, "Exit codes of `worker-orcd`");
    let row = |exit: &WorkerExit| (i32::from(exit.code()), exit.name().to_owned());
    let known: Vec<_> = WorkerExit::all().iter().map(row).collect();
    assert_eq!(told, known);

    let told = numbered(&text, "Exit codes of `worker-orcd-gpu`");
    let row = |exit: ExitCode| (exit.code(), DeathCause::Exited(exit).label().to_owned());
    let known: Vec<_> = ExitCode::all().map(row).collect();
    assert_eq!(told, known);
}

#[test]
fn the_page_on_nvml_has_every_xid_that_ends_a_worker() {
    let text = read(Path::new(NVML));
    for remedy in [
        Remedy::ResetUnlessCleared,
        Remedy::ResetGpu,
        Remedy::RebootNode,
    ] {
        let name = format!("`{}`", remedy.name());
        let rows = rows_under(&text, "What follows from an Xid");
        let row = rows.iter().find(|row| row[0] == name);
        let told: Vec<u32> = row.expect(&name)[1].split(", ").flat_map(range).collect();
        let all = 0..1000;
        let known = all.filter(|number| Xid(Some(*number)).remedy() == remedy);
        assert_eq!(told, known.collect::<Vec<_>>(), "{name}");
    }
}

#[test]
fn every_folder_has_a_row_of_the_code_map() {
    let text = read(Path::new("ARCHITECTURE.md"));
    let (_, map) = text.split_once("## Code map").expect("it is there");
    let (map, _) = map.split_once("\n## ").expect("something follows");
    let above = [
        "",
        "supervisor",
        "supervisor/src",
        "supervisor/engine/src",
        "gpu-child/src",
    ];
    let folders: BTreeSet<PathBuf> = committed_files()
        .iter()
        .flat_map(|file| file.ancestors().skip(1))
        .filter(|folder| {
            let parent = folder.parent().and_then(Path::to_str);
            parent.is_some_and(|parent| above.contains(&parent))
        })
        .map(Path::to_owned)
        .collect();
    assert!(folders.len() > 20, "{folders:?}");
    for folder in folders {
        let name = folder.file_name().and_then(|name| name.to_str());
        let name = name.expect("a name");
        let is_of_tools = name.starts_with('.') || name == "proptest-regressions";
        // A module may be named by its file, its folder, or both.
        let words = ["/", "*", ".rs"].map(|end| format!("{name}{end}"));
        let is_named = is_of_tools || words.iter().any(|it| map.contains(it));
        assert!(is_named, "{} is not on the map", folder.display());
    }
}

/// Range such as `5` or `5–7`.
fn range(text: &str) -> std::ops::RangeInclusive<u32> {
    let (first, last) = text.split_once('–').unwrap_or((text, text));
    let number = |text: &str| text.parse().unwrap_or_else(|_| panic!("{text:?}"));
    number(first)..=number(last)
}

/// First and second cell of each row: a number, and a name or an empty cell.
fn numbered(page: &str, heading: &str) -> Vec<(i32, String)> {
    let rows = rows_under(page, heading).into_iter();
    rows.map(|row| (row[0].parse().expect(row[0]), row[1].replace('`', "")))
        .collect()
}

/// Rows of the first table under a heading of the second level.
fn rows_under<'a>(page: &'a str, heading: &str) -> Vec<Vec<&'a str>> {
    let (_, section) = page
        .split_once(&format!("\n## {heading}\n"))
        .unwrap_or_else(|| panic!("no section {heading:?}"));
    rows(section)
}

/// Rows of the first table, without its head.
fn rows(section: &str) -> Vec<Vec<&str>> {
    section
        .lines()
        .skip_while(|line| !line.starts_with("|---"))
        .skip(1)
        .take_while(|line| line.starts_with('|'))
        .map(cells)
        .collect()
}

fn cells(row: &str) -> Vec<&str> {
    let inner = row.trim().trim_start_matches('|').trim_end_matches('|');
    inner.split('|').map(str::trim).collect()
}

/// Text between backticks.
fn words_of_code(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

fn has_suffix(path: &Path, suffix: &str) -> bool {
    path.extension().is_some_and(|found| found == suffix)
}

/// Whether a word can only be a function: lower case, with several underscores.
fn is_test_name(word: &str) -> bool {
    word.matches('_').count() >= 2
        && word
            .chars()
            .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "_…*".contains(c))
}
