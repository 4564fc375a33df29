//! Checks that each relative link of each page leads to a committed file, and each anchor to a heading.

use crate::repository::{committed_files, read};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};
use worker_orcd_tests::model::repository_root;

#[test]
fn every_relative_link_leads_to_a_file_and_a_heading() {
    let files = committed_files();
    // A deleted page is listed until the deletion is committed.
    let pages = files
        .iter()
        .filter(|path| is_page(path) && repository_root().join(path).is_file());
    let mut links = 0;
    let mut dead = Vec::new();
    for page in pages {
        for target in targets(&without_blocks(&read(page))) {
            links += 1;
            if !is_alive(&files, page, &target) {
                dead.push(format!("{}: {target}", page.display()));
            }
        }
    }
    assert!(links > 200, "only {links} links were found");
    assert!(dead.is_empty(), "{dead:#?}");
}

#[test]
fn anchors_are_those_of_github() {
    let page = "# Exit codes of `worker-orcd`\n\n## A, b: [c](d.md)\n\n```sh\n# no heading\n```\n\n## A, b: c\n";
    let expected = ["exit-codes-of-worker-orcd", "a-b-c", "a-b-c-1"];
    assert_eq!(anchors(page), BTreeSet::from(expected.map(str::to_owned)));
}

fn is_alive(files: &[PathBuf], page: &Path, target: &str) -> bool {
    let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
    let linked = match path {
        "" => page.to_owned(),
        path => normal(&page.with_file_name(path)),
    };
    let is_there = files.iter().any(|file| file.starts_with(&linked));
    is_there && (anchor.is_empty() || is_page(&linked) && anchors(&read(&linked)).contains(anchor))
}

fn is_page(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "md")
}

/// Normalized path: `a/../b` is `b`.
fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir => {
                normal.pop();
            }
            Component::CurDir => {}
            other => normal.push(other),
        }
    }
    normal
}

/// Page without its fenced blocks of code.
fn without_blocks(text: &str) -> String {
    let mut is_inside = false;
    let lines = text.lines().filter(|line| {
        let is_fence = line.trim_start().starts_with("```");
        is_inside ^= is_fence;
        !is_inside && !is_fence
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Targets of relative links.
fn targets(text: &str) -> Vec<String> {
    let targets = text
        .split("](")
        .skip(1)
        .filter_map(|rest| rest.split(')').next())
        .filter(|target| !target.contains(char::is_whitespace))
        .filter(|target| !target.is_empty() && !target.contains("://"));
    targets.map(str::to_owned).collect()
}

/// Anchors of a page's headings, by GitHub's rules.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut seen = BTreeMap::<String, usize>::new();
    let mut anchors = BTreeSet::new();
    for line in without_blocks(text).lines() {
        let Some((marks, heading)) = line.split_once(' ') else {
            continue;
        };
        if marks.is_empty() || marks.chars().any(|c| c != '#') {
            continue;
        }
        let anchor = anchor(heading);
        let before = seen.entry(anchor.clone()).or_default();
        anchors.insert(match *before {
            0 => anchor,
            number => format!("{anchor}-{number}"),
        });
        *before += 1;
    }
    anchors
}

fn anchor(heading: &str) -> String {
    let mut text = String::new();
    // Only the text of a link counts.
    for (number, part) in heading.split("](").enumerate() {
        text.push_str(match number {
            0 => part,
            _ => part.split_once(')').map_or("", |(_, rest)| rest),
        });
    }
    let kept = |c: &char| c.is_alphanumeric() || " -_".contains(*c);
    let lower = text.trim().to_lowercase();
    lower
        .chars()
        .filter(kept)
        .collect::<String>()
        .replace(' ', "-")
}
