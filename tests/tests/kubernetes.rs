//! Manifests of `docs/operate/kubernetes/`: they are valid for Kubernetes, and agree with the worker.

use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use worker_orcd::commands::serve::LONGEST_END;
use worker_orcd::config::options;
use worker_orcd_lifecycle::Deadlines;
use worker_orcd_tests::model::repository_root;
use worker_orcd_tests::oracle;
use worker_orcd_tests::worker::{binary, request};
use worker_orcd_tests::{Script, Worker, wait};

/// Default in `--help`.
fn default_of(option: &str) -> u64 {
    let default = options::spec(option).and_then(|spec| spec.default);
    let number = default.map(|text| text.trim_end_matches('s').parse());
    number.expect(option).expect(option)
}

/// Watchdog timeout of systemd's unit.
fn watchdog() -> u64 {
    let unit = repository_root().join("systemd/worker-orcd@.service");
    let unit = fs::read_to_string(unit).expect("it is there");
    let line = unit
        .lines()
        .find_map(|line| line.strip_prefix("WatchdogSec="));
    let seconds = line.and_then(|text| text.strip_suffix('s')?.parse().ok());
    seconds.expect("seconds")
}

/// Families of `/metrics` and their types, once a child has reported its load.
fn families(worker: &Worker) -> BTreeMap<String, String> {
    let client = worker.client();
    let _ = client.execute(&request("abc", 5)).transcript().end();
    let text = wait::until("the child to tell its load", || {
        let text = client.get("/metrics").text();
        text.contains("\nworker_orcd_requests_waiting ")
            .then_some(text)
    });
    let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    let types = types.filter_map(|line| line.split_once(' '));
    types
        .map(|(name, kind)| (name.to_owned(), kind.to_owned()))
        .collect()
}

/// Paths of probes without a key.
fn open_paths() -> Vec<&'static str> {
    let keys = tempfile::NamedTempFile::new().expect("a temporary file");
    fs::write(keys.path(), "a-key\n").expect("the file is ours");
    let worker = Worker::scripted(Script::behave());
    let worker = worker.arg("--api-key-file", keys.path().display()).start();
    let answers = |path: &&str| worker.client().get(path).status == 200;
    let open = ["/livez", "/readyz", "/metrics"]
        .into_iter()
        .filter(answers);
    open.collect()
}

fn facts() -> Value {
    let deadlines = Deadlines::default();
    let seconds = |it: Duration| it.as_secs();
    let first_child = seconds(deadlines.spawn + deadlines.handshake) + default_of("load-timeout");
    json!({
        "port": default_of("port"),
        "open_paths": open_paths(),
        "families": families(&Worker::scripted(Script::behave()).start()),
        "watchdog_s": watchdog(),
        "child_end_s": seconds(deadlines.dismiss + deadlines.terminate + deadlines.kill),
        "longest_end_s": seconds(LONGEST_END),
        "first_child_s": first_child,
    })
}

/// Errors of the worker about these settings, with a Secret's keys as kubelet writes them for a group.
fn mistakes(settings: &Path) -> String {
    let keys = tempfile::tempdir().expect("a temporary directory");
    let file = keys.path().join("keys");
    fs::write(&file, "a-key\n").expect("the directory is ours");
    fs::set_permissions(&file, Permissions::from_mode(0o440)).expect("the file is ours");
    let text = fs::read_to_string(settings).expect("the script wrote it");
    let folder = keys.path().to_str().expect("UTF-8");
    let text = text.replace("/run/credentials/worker-orcd", folder);
    let here = keys.path().join("settings.toml");
    fs::write(&here, text).expect("the directory is ours");
    let output = Command::new(binary("tested-worker-orcd"))
        .arg("--config")
        .arg(here)
        .env("CREDENTIALS_DIRECTORY", keys.path())
        // The environment of tests may name a model.
        .env_remove("WORKER_ORCD_MODEL")
        .output()
        .expect("it starts");
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8_lossy(&output.stderr);
    let mistakes = said.lines().filter(|line| line.starts_with("error: "));
    mistakes.collect::<Vec<_>>().join("\n")
}

#[test]
fn kubernetes_takes_the_manifests_and_they_agree_with_the_worker() {
    let settings = tempfile::tempdir().expect("a temporary directory");
    let folder = repository_root().join("docs/operate/kubernetes");
    let facts = facts().to_string();
    let arguments = [
        folder.as_os_str(),
        facts.as_ref(),
        settings.path().as_os_str(),
    ];
    oracle::run("manifests.py", &arguments);
    for file in ["keys.toml", "gateway.toml"] {
        let said = mistakes(&settings.path().join(file));
        assert_eq!(said.lines().count(), 1, "{file}: {said}");
        assert!(said.contains("/models/model.gguf"), "{file}: {said}");
    }
}
