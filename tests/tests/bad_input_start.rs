//! Invalid keys, ports and settings. Each test starts a worker with one and reads its output.

use serde_json::json;
use std::io::Write;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use worker_orcd_tests::worker::request;
use worker_orcd_tests::{Script, Worker};

// === Keys ===

#[test]
fn without_the_key_nothing_is_done() {
    let keys = tempfile::NamedTempFile::new().unwrap();
    keys.as_file().write_all(b"a-long-secret-key\n").unwrap();
    let mut worker = Worker::scripted(Script::behave())
        .arg("--api-key-file", keys.path().display())
        .listening();
    worker.wait_ready();
    let keyed = worker.client().with_key("a-long-secret-key");
    let wrong = worker.client().with_key("a-long-secret-kez");
    for client in [&worker.client(), &wrong] {
        for (path, body) in [
            ("/execute", request("x", 1)),
            ("/cancel", json!({ "job_id": "x" })),
            ("/shutdown", json!({})),
            ("/v1/completions", json!({ "model": "x", "prompt": "x" })),
        ] {
            let response = client.post(path, &body);
            assert_eq!(response.status, 401, "{path}: {}", response.text());
            assert!(!response.text().contains("secret"), "{}", response.text());
        }
        // Probes of an orchestrator have no key.
        assert_eq!(client.get("/readyz").status, 200);
    }
    assert_eq!(
        keyed.execute(&request("x", 2)).transcript().end()["tokens_out"],
        2
    );
    assert!(!worker.log_until_now().contains("a-long-secret-key"));
}

#[test]
fn a_key_file_that_cannot_be_read_ends_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let empty = dir.path().join("empty");
    std::fs::write(&empty, "\n").unwrap();
    for path in [dir.path().join("absent"), dir.path().to_owned(), empty] {
        let mut worker = Worker::scripted(Script::behave())
            .arg("--api-key-file", path.display())
            .spawn();
        let status = worker.wait_exit();
        assert!(!status.success(), "{}", path.display());
        let log = worker.log.text();
        assert!(
            log.contains(path.to_str().unwrap()),
            "the file is named: {log}"
        );
    }
}

#[test]
fn a_key_file_that_others_may_read_or_write_is_refused_by_name() {
    for mode in [0o644, 0o620] {
        let keys = tempfile::NamedTempFile::new().unwrap();
        keys.as_file().write_all(b"a-long-secret-key\n").unwrap();
        let open = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(keys.path(), open).unwrap();
        Worker::scripted(Script::behave())
            .arg("--api-key-file", keys.path().display())
            .ends_with(2, &[keys.path().to_str().unwrap(), "chmod 600"]);
    }
}

// === Settings ===

#[test]
fn an_occupied_port_is_named_and_ends_the_start() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let mut worker = Worker::scripted(Script::behave()).port(port).spawn();
    let status = worker.wait_exit();
    assert_eq!(status.code(), Some(86));
    let log = worker.log.text();
    assert!(log.contains(&port.to_string()), "the port is named: {log}");
    assert!(log.to_lowercase().contains("in use"), "{log}");
    assert!(log.contains("--port 0"), "what helps is said: {log}");
}

#[test]
fn all_wrong_settings_are_told_at_once() {
    let mut worker = Worker::scripted(Script::behave())
        .arg("--max-tokens-out", 0)
        .arg("--drain-timeout", "soon")
        .arg("--worker-id", "not-a-uuid")
        .spawn();
    let status = worker.wait_exit();
    assert!(!status.success());
    let log = worker.log.text();
    for name in ["max-tokens-out", "worker-id", "drain-timeout"] {
        assert!(log.contains(name), "{name} is named: {log}");
    }
}

#[test]
fn an_unknown_flag_or_value_is_refused() {
    for (name, value) in [
        ("--no-such-flag", "1"),
        ("--device", "tpu:0"),
        ("--on-fault", "shrug"),
    ] {
        let mut worker = Worker::scripted(Script::behave()).arg(name, value).spawn();
        assert!(!worker.wait_exit().success(), "{name}");
        assert!(worker.log.text().contains(value) || worker.log.text().contains(name));
    }
}
