//! `docs/operate/container/Containerfile`, as far as it can be checked without an engine: copied files and called
//! programs exist, and its numbers are the worker's.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use worker_orcd::config::options;
use worker_orcd_tests::model::repository_root;
use worker_orcd_tests::{Script, Worker};

/// Instructions and their arguments in order, lines joined, comments removed.
fn instructions() -> Vec<(String, String)> {
    let file = repository_root().join("docs/operate/container/Containerfile");
    let text = fs::read_to_string(file).expect("it is there");
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let joined = lines.collect::<Vec<_>>().join("\n").replace("\\\n", " ");
    let parts = joined.lines().filter_map(|line| line.split_once(' '));
    let parts = parts.map(|(word, rest)| (word.to_owned(), rest.trim().to_owned()));
    parts.collect()
}

fn all(word: &str) -> Vec<String> {
    let found = instructions().into_iter().filter(|(it, _)| it == word);
    found.map(|(_, rest)| rest).collect()
}

fn one(word: &str) -> String {
    let [one] = &all(word)[..] else {
        panic!("{word}: {:?}", all(word));
    };
    one.clone()
}

/// Files that the first stage copies from the repository.
fn copied() -> Vec<String> {
    let copies = all("COPY")
        .into_iter()
        .filter(|it| !it.starts_with("--from"));
    let sources = copies.flat_map(|line| {
        let words: Vec<_> = line.split_whitespace().map(str::to_owned).collect();
        let (target, sources) = words.split_last().expect("a target").to_owned();
        // Paths are the same as in the repository.
        assert!(target == "./" || sources == [target.clone()], "{line}");
        sources.to_vec()
    });
    sources.collect()
}

#[test]
fn what_is_copied_is_there_and_is_all_that_a_build_needs() {
    let copied = copied();
    for source in &copied {
        let output = Command::new("git")
            .args([
                "ls-files",
                "--cached",
                "--others",
                "--exclude-standard",
                source,
            ])
            .current_dir(repository_root())
            .output()
            .expect("git");
        assert!(
            !output.stdout.is_empty(),
            "{source} is not in the repository"
        );
    }
    let has = |path: &str| copied.iter().any(|it| Path::new(path).starts_with(it));
    let workspace = fs::read_to_string(repository_root().join("Cargo.toml")).expect("it is there");
    let (_, members) = workspace.split_once("members = [").expect("members");
    let (members, _) = members.split_once(']').expect("an end");
    let members: Vec<_> = members.split('"').skip(1).step_by(2).collect();
    assert!(members.len() > 5, "{members:?}");
    let installs = fs::read_to_string(repository_root().join("xtask/src/install.rs"));
    let installs = installs.expect("it is there");
    let (_, documents) = installs.split_once("const DOCUMENTS").expect("documents");
    let (documents, _) = documents.split_once("];").expect("an end");
    let documents: Vec<_> = documents.split('"').skip(1).step_by(2).collect();
    assert!(documents.len() > 5, "{documents:?}");
    for path in members
        .into_iter()
        .chain(documents)
        .chain([".cargo/config.toml", "Cargo.lock"])
    {
        assert!(has(path), "{path} is not copied");
    }
}

#[test]
fn the_commands_of_the_build_exist() {
    let commands = all("RUN").into_iter();
    let commands: Vec<_> = commands.filter(|it| it.starts_with("cargo ")).collect();
    assert_eq!(commands.len(), 2, "{commands:?}");
    for command in commands {
        let words = command.split(' ').skip(1);
        let output = Command::new(env!("CARGO"))
            // `cargo xtask test` sets it for the test programs. Build scripts read it, so cargo would build again.
            .env_remove("RUSTC_BOOTSTRAP")
            .args(words)
            // Help is printed after the preceding options are parsed.
            .arg("--help")
            .current_dir(repository_root())
            .output()
            .expect("cargo starts");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{command}: {errors}");
    }
    let workspace = fs::read_to_string(repository_root().join("Cargo.toml")).expect("it is there");
    let version = workspace.split("rust-version = \"").nth(1);
    let version = version
        .and_then(|rest| rest.split('"').next())
        .expect("a version");
    let [build, run] = &all("FROM")[..] else {
        panic!("two stages: {:?}", all("FROM"));
    };
    assert_eq!(
        *build,
        format!("docker.io/library/rust:{version}-bookworm AS build")
    );
    assert_eq!(
        run, "docker.io/library/debian:bookworm-slim",
        "the same libc"
    );
}

#[test]
fn it_runs_as_nobody_at_the_workers_own_port() {
    assert_eq!(one("USER"), "65532:65532");
    let folders = all("RUN").into_iter().find(|it| it.starts_with("install "));
    let folders = folders.expect("folders are made");
    assert!(folders.contains("--owner=65532 --group=65532"));
    let deployment = repository_root().join("docs/operate/kubernetes/worker.yaml");
    let deployment = fs::read_to_string(deployment).expect("it is there");
    for key in ["runAsUser", "runAsGroup", "fsGroup"] {
        assert!(deployment.contains(&format!("{key}: 65532\n")), "{key}");
    }
    let port = options::spec("port").and_then(|spec| spec.default);
    assert_eq!(Some(one("EXPOSE").as_str()), port);
    assert_eq!(one("STOPSIGNAL"), "SIGTERM");
    assert_eq!(one("ENTRYPOINT"), "[\"/usr/bin/worker-orcd\"]");
    let variables = one("ENV");
    let variables = variables
        .split_whitespace()
        .filter_map(|it| it.split_once('='));
    let variables: BTreeMap<_, _> = variables.collect();
    assert_eq!(variables["NVIDIA_DRIVER_CAPABILITIES"], "compute,utility");
    assert_eq!(variables["NVIDIA_VISIBLE_DEVICES"], "all");
    for name in ["TMPDIR", "STATE_DIRECTORY"] {
        assert!(folders.contains(variables[name]), "{name}");
    }
}

/// Whether the image's health check succeeds for a worker at this port.
fn is_healthy(port: u16) -> bool {
    let check = one("HEALTHCHECK");
    let (_, command) = check.split_once("CMD ").expect("a command");
    let words: Vec<String> = serde_json::from_str(command).expect("words in JSON");
    let output = Command::new(&words[0])
        .args(&words[1..])
        .env("WORKER_ORCD_PORT", port.to_string())
        .output()
        .expect("bash starts");
    output.status.success()
}

#[test]
fn the_health_check_knows_a_worker_that_lives() {
    let keys = tempfile::NamedTempFile::new().expect("a temporary file");
    fs::write(keys.path(), "a-key\n").expect("the file is ours");
    let worker = Worker::scripted(Script::behave());
    let mut worker = worker.arg("--api-key-file", keys.path().display()).start();
    let port = worker.client().address.port();
    assert!(is_healthy(port));
    worker.signal(nix::sys::signal::Signal::SIGTERM);
    worker.wait_exit();
    assert!(!is_healthy(port));
}
