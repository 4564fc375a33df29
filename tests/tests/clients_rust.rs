//! Rust snippets of `docs/guide/clients.md`, compiled unchanged and run against a worker.

use std::fs;
use std::process::Command;
use worker_orcd_tests::clients::{Printed, point, worker};
use worker_orcd_tests::model::repository_root;
use worker_orcd_tests::snippets::of_page;
use worker_orcd_tests::worker::binary;

/// Snippets in the order of the page.
const SNIPPETS: &[(&str, Printed)] = &[
    ("async-openai-chat", Printed::Text),
    ("async-openai-stream", Printed::Counted),
    ("async-openai-tools", Printed::Call),
    ("async-openai-structured", Printed::River),
    ("async-openai-responses", Printed::Counted),
    ("async-openai-responses-tools", Printed::Call),
    ("async-openai-embeddings", Printed::Nearness),
];

#[test]
fn the_page_shows_the_rust_that_is_compiled() {
    let folder = repository_root().join("tests/clients/rust");
    for snippet in of_page("rust") {
        let file = folder.join(format!("{}.rs", snippet.name));
        let compiled = fs::read_to_string(&file).unwrap_or_default();
        assert_eq!(snippet.code, compiled, "{}", file.display());
    }
    let files = fs::read_dir(folder).expect("it is there").count();
    assert_eq!(files, SNIPPETS.len(), "each file is on the page");
}

#[test]
fn every_rust_snippet_of_the_page_prints_what_it_is_about() {
    let snippets = of_page("rust");
    let names: Vec<_> = snippets.iter().map(|it| it.name.as_str()).collect();
    let known: Vec<_> = SNIPPETS.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, known, "the page's snippets and those that are run");
    let (_dir, worker) = worker();
    let wrong: Vec<_> = SNIPPETS
        .iter()
        .filter_map(|(name, printed)| {
            let mut command = Command::new(binary("rust-snippets"));
            point(&mut command, &worker);
            let output = command.arg(name).output().expect("it starts");
            let wrong = printed.check(&output).err()?;
            Some(format!("{name}: {wrong}"))
        })
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
