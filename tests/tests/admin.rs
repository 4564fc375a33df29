//! Operator's routes: on a Unix socket, or with a key that clients do not have.

use nix::sys::signal::Signal;
use serde_json::json;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;
use worker_orcd_tests::worker::request;
use worker_orcd_tests::{Bystander, Client, Script, Worker, WorkerBuilder, on_the_beat, wait};

const OPERATORS: [(&str, &str); 4] = [
    ("POST", "/shutdown"),
    ("POST", "/restart"),
    ("GET", "/crashes"),
    ("GET", "/crashes/none"),
];

fn scripted() -> WorkerBuilder {
    Worker::scripted(Script::behave().token_interval_ms(5))
}

fn key_file(text: &str) -> tempfile::NamedTempFile {
    let keys = tempfile::NamedTempFile::new().unwrap();
    keys.as_file().write_all(text.as_bytes()).unwrap();
    keys
}

/// Status and body.
fn ask(socket: &Path, method: &str, path: &str) -> (u16, String) {
    let mut stream = UnixStream::connect(socket).expect("somebody listens");
    stream
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    let head = format!("{method} {path} HTTP/1.1\r\nHost: operator\r\n\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let status = answer.get(9..12).and_then(|code| code.parse().ok());
    (status.unwrap_or_else(|| panic!("{answer:?}")), answer)
}

/// Asserts that every operator's route is refused with these words.
fn assert_refused(client: &Client, word: &str) {
    for (method, path) in OPERATORS {
        let answer = client.try_request(method, path, &[], b"").unwrap();
        assert_eq!(answer.status, 403, "{path}: {}", answer.text());
        assert!(answer.text().contains(word), "{path}: {}", answer.text());
    }
}

#[test]
fn where_there_is_an_admin_socket_the_operators_routes_are_nowhere_else() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("admin");
    let keys = key_file("the-first\n");
    let mut worker = scripted()
        .arg("--api-key-file", keys.path().display())
        .arg("--admin-socket", socket.display())
        .start();
    let mode = fs::metadata(&socket).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode, 0o600, "{mode:o}");
    let first = worker.client().with_key("the-first");
    assert_refused(&first, "--admin-socket");
    assert_eq!(worker.client().get("/crashes").status, 401);
    assert_eq!(first.get("/v1/models").status, 200);

    let (status, health) = ask(&socket, "GET", "/health");
    assert!(status == 200 && health.contains("\"pid\""), "{health}");
    for (path, expected) in [
        ("/", 200),
        ("/metrics", 200),
        ("/readyz", 200),
        ("//crashes/", 200),
        ("/crashes/none", 404),
        ("/v1/models", 404),
    ] {
        let (status, answer) = ask(&socket, "GET", path);
        assert_eq!(status, expected, "{path}: {answer}");
    }
    let (status, answer) = ask(&socket, "POST", "/execute");
    assert!(status == 404 && answer.contains("TCP"), "{answer}");

    let stream = Bystander::new(first.clone(), request("abc", 200)).begin();
    assert_eq!(ask(&socket, "POST", "/restart").0, 202);
    assert_eq!(ask(&socket, "POST", "/shutdown").0, 202);
    let (_, end) = stream.end();
    assert_eq!(end["tokens_out"], 200, "{end}");
    assert_eq!(worker.wait_exit().code(), Some(0));
    assert!(!socket.exists(), "it is removed at the end");
}

#[test]
fn an_admin_key_opens_what_no_key_of_a_client_does() {
    let (clients, admins) = (key_file("the-first\nthe-second\n"), key_file("the-boss\n"));
    let mut worker = scripted()
        .arg("--api-key-file", clients.path().display())
        .arg("--admin-key-file", admins.path().display())
        .start();
    let with = |key: &str| worker.client().with_key(key);
    for key in ["the-first", "the-second"] {
        assert_refused(&with(key), "--admin-key-file");
    }
    for path in ["/crashes", "/v1/models", "/metrics"] {
        assert_eq!(with("the-boss").get(path).status, 200, "{path}");
    }
    fs::write(admins.path(), "the-next-boss\n").unwrap();
    worker.signal(Signal::SIGHUP);
    worker.log.wait_for("reload");
    assert_eq!(with("the-boss").get("/crashes").status, 401);
    fs::write(admins.path(), "the-first\n").unwrap();
    worker.signal(Signal::SIGHUP);
    worker.log.wait_for("reload_failed");
    assert_refused(&with("the-first"), "--admin-key-file");
    let shutdown = with("the-next-boss").post("/shutdown", &json!({}));
    assert_eq!(shutdown.status, 202, "{}", shutdown.text());
    assert_eq!(worker.wait_exit().code(), Some(0));
    assert!(!worker.log.text().contains("boss\\n"));
}

#[test]
fn an_admin_key_beside_no_keys_of_clients_guards_the_operators_routes_alone() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("admin");
    let admins = key_file("the-boss\n");
    let worker = scripted()
        .arg("--admin-key-file", admins.path().display())
        .arg("--admin-socket", socket.display())
        .start();
    worker.assert_serves();
    assert_refused(&worker.client(), "--admin-socket");
    assert_refused(&worker.client().with_key("anything"), "--admin-key-file");
    assert_eq!(
        worker.client().with_key("the-boss").get("/crashes").status,
        200
    );
    assert_eq!(ask(&socket, "GET", "/crashes").0, 200);
}

#[test]
fn a_socket_that_nobody_listens_on_is_replaced_and_one_in_use_is_not() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("admin");
    let worker = || scripted().arg("--admin-socket", socket.display());
    let mut killed = worker().start();
    worker().ends_with(86, &[socket.to_str().unwrap(), "in use"]);
    assert_eq!(
        ask(&socket, "GET", "/livez").0,
        200,
        "the first one's still"
    );
    killed.signal(Signal::SIGKILL);
    let _ = killed.wait_exit();
    assert!(socket.exists(), "nobody was left to remove it");
    let _next = worker().start();
    assert_eq!(ask(&socket, "GET", "/livez").0, 200);
    let absent = directory.path().join("absent/admin");
    let lost = scripted().arg("--admin-socket", absent.display());
    lost.ends_with(2, &["--admin-socket", "absent is no directory"]);
}

#[test]
fn an_upgrade_has_the_socket_too() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("admin");
    let mut worker = scripted().arg("--admin-socket", socket.display()).start();
    worker.signal(Signal::SIGUSR2);
    wait::until("the next supervisor to be ready", || {
        (worker.log.events("ready").len() == 2).then_some(())
    });
    assert_eq!(ask(&socket, "POST", "/shutdown").0, 202);
    assert_eq!(worker.wait_exit().code(), Some(0));
    assert!(!socket.exists(), "it is removed at the end");
}

/// Runs alone on the machine.
mod pace {
    use super::*;

    #[test]
    fn idle_and_slow_peers_of_the_admin_socket_keep_neither_operator_nor_clients_out() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("admin");
        let worker = Worker::scripted(on_the_beat())
            .arg("--admin-socket", socket.display())
            .arg("--read-timeout", "1s")
            .start();
        let bystander = Bystander::of_a_script(worker.client());
        bystander.keeps_pace_beside(|| {
            for _ in 0..3 {
                let mut crowd: Vec<_> = (0..10)
                    .map(|_| UnixStream::connect(&socket).unwrap())
                    .collect();
                for half in &mut crowd[..5] {
                    // A closed connection cannot be written to.
                    let _ = half.write_all(b"GET /health HT");
                }
                assert_eq!(ask(&socket, "GET", "/health").0, 200);
            }
        });
        let mut alone = UnixStream::connect(&socket).unwrap();
        alone.write_all(b"GET /health HT").unwrap();
        let mut rest = Vec::new();
        wait::until("a half request to be given up", || {
            alone.read_to_end(&mut rest).ok()
        });
        worker.assert_serves();
    }
}
