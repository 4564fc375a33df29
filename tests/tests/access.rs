//! Access control by keys, host names and origins; and responses to unknown paths and methods.

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use std::fs::{File, Permissions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use worker_orcd_tests::script::scripted_text;
use worker_orcd_tests::worker::request;
use worker_orcd_tests::{Bystander, Client, Response, Script, Worker, WorkerBuilder, on_the_beat};

fn scripted() -> WorkerBuilder {
    Worker::scripted(Script::behave().token_interval_ms(5))
}

fn key_file(text: &str) -> tempfile::NamedTempFile {
    let keys = tempfile::NamedTempFile::new().unwrap();
    keys.as_file().write_all(text.as_bytes()).unwrap();
    keys
}

fn with_keys(keys: &tempfile::NamedTempFile) -> WorkerBuilder {
    scripted().arg("--api-key-file", keys.path().display())
}

fn status(client: &Client, path: &str) -> u16 {
    client.get(path).status
}

/// Sends `head`, lines without their ends, and reads the response.
fn raw(client: &Client, head: &[&str]) -> Response {
    let mut connection = client.connect().unwrap();
    let bytes = format!("{}\r\nConnection: close\r\n\r\n", head.join("\r\n"));
    connection.send(bytes.as_bytes()).unwrap();
    connection.read_response().unwrap()
}

// === Keys ===

#[test]
fn only_lines_that_are_keys_are_keys() {
    let keys = key_file("\u{feff}first-key\r\n# a comment\r\n\r\n  second-key  \r\n");
    let worker = with_keys(&keys).start();
    let client = worker.client();
    for key in ["first-key", "second-key"] {
        assert_eq!(status(&client.with_key(key), "/v1/models"), 200, "{key}");
    }
    for key in ["# a comment", "a comment", "#", "", "\u{feff}first-key"] {
        assert_eq!(status(&client.with_key(key), "/v1/models"), 401, "{key}");
    }
}

#[test]
fn sighup_reads_the_keys_again_and_a_bad_file_changes_nothing() {
    let keys = key_file("old-key\n");
    let worker = with_keys(&keys).start();
    let (old, new) = (
        worker.client().with_key("old-key"),
        worker.client().with_key("new-key"),
    );
    let stream = Bystander::new(old.clone(), request("abc", 200)).begin();
    let reload = |event: &str, times: usize| {
        worker.signal(Signal::SIGHUP);
        worker.log.wait_for_many(event, times);
    };

    let rewrite = |text: &str| {
        File::create(keys.path())
            .unwrap()
            .write_all(text.as_bytes())
            .unwrap()
    };
    rewrite("new-key\n");
    reload("reload", 1);
    assert_eq!(
        (status(&old, "/v1/models"), status(&new, "/v1/models")),
        (401, 200)
    );

    rewrite("# nothing\n");
    reload("reload_failed", 1);
    rewrite("other-key\n");
    std::fs::set_permissions(keys.path(), Permissions::from_mode(0o644)).unwrap();
    reload("reload_failed", 2);
    std::fs::remove_file(keys.path()).unwrap();
    reload("reload_failed", 3);
    assert_eq!(
        status(&new, "/v1/models"),
        200,
        "the keys stay as they were"
    );
    assert_eq!(status(&worker.client(), "/v1/models"), 401);
    let (text, _) = stream.end();
    assert_eq!(text, scripted_text("abc", 200), "who is in stays in");
    assert!(!worker.log_until_now().contains("new-key"));
}

#[test]
fn sighup_without_a_key_file_leaves_the_keys_and_the_level() {
    let keys = key_file("key\n");
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("worker.toml");
    let named = format!("api-key-file = {:?}\n", keys.path());
    let quiet = "log-level = \"info,worker_orcd::http=warn\"\n";
    let write = |text: &str| std::fs::write(&config, text).unwrap();
    write(&format!("{named}{quiet}"));
    let worker = Worker::scripted(Script::behave())
        .arg("--config", config.display())
        .start();
    write("log-level = \"info\"\n");
    worker.signal(Signal::SIGHUP);
    worker.log.wait_for("reload_failed");
    assert_eq!(status(&worker.client(), "/v1/models"), 401);
    let client = worker.client().with_key("key");
    let _ = client.execute(&request("x", 2)).transcript();
    write(&format!("{named}{quiet}"));
    worker.signal(Signal::SIGHUP);
    worker.log.wait_for("reload");
    assert!(worker.log.events("execute_end").is_empty());
}

#[test]
fn a_job_is_cancelled_by_its_own_key_alone() {
    let keys = key_file("first-key\nsecond-key\n");
    let worker = with_keys(&keys).start();
    let [first, second] = ["first-key", "second-key"].map(|key| worker.client().with_key(key));
    let body = request("abc", 200);
    let stream = first.execute(&body);
    let endless = request("abc", 2000);
    let mut long = first.execute(&endless);
    long.wait_for("token");
    let job = |id: &Value| json!({ "job_id": id });
    let of_nobody = second.post("/cancel", &job(&json!("no-such-job")));
    let of_another = second.post("/cancel", &job(&body["job_id"]));
    assert_eq!(
        (of_another.status, of_another.text()),
        (202, of_nobody.text())
    );
    assert_eq!(stream.transcript().text(), scripted_text("abc", 200));
    let own = first.post("/cancel", &job(&endless["job_id"]));
    assert_eq!(own.status, 202);
    assert_eq!(long.last().expect("an end").json()["code"], "CANCELLED");
}

#[test]
fn without_a_key_health_tells_of_no_file_process_or_request() {
    let keys = key_file("a-key\n");
    let worker = with_keys(&keys).start();
    let outline = worker.client().health();
    let told: Vec<_> = outline
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect();
    assert_eq!(
        told,
        ["status", "state", "since", "uptime_seconds", "version"]
    );
    assert_eq!(outline["status"], "healthy");
    assert!(worker.client().with_key("a-key").health()["child"]["pid"].is_u64());
}

#[test]
fn beyond_loopback_there_are_keys_or_insecure() {
    let beyond = || scripted().any_host().arg("--host", "0.0.0.0");
    beyond().ends_with(2, &["--insecure", "--api-key-file"]);
    assert_eq!(
        status(&beyond().flag("--insecure").start().client(), "/health"),
        200
    );
    let keys = key_file("a-key\n");
    let keyed = beyond()
        .arg("--api-key-file", keys.path().display())
        .start();
    assert_eq!(status(&keyed.client(), "/v1/models"), 401);
}

// === Hosts and origins ===

#[test]
fn only_the_first_key_shuts_the_worker_down() {
    let keys = key_file("the-operator\na-client\n");
    let mut worker = with_keys(&keys).start();
    let shutdown = |key: &str| worker.client().with_key(key).post("/shutdown", &json!({}));
    let answer = shutdown("a-client");
    assert_eq!(answer.status, 403, "{}", answer.text());
    assert!(answer.text().contains("first key"), "{}", answer.text());
    let restart = worker.client().with_key("a-client");
    assert_eq!(restart.post("/restart", &json!({})).status, 403);
    assert_eq!(status(&restart, "/crashes"), 403);
    let body = json!({"prompt": "still here", "max_tokens": 1});
    let served = worker
        .client()
        .with_key("a-client")
        .post("/v1/completions", &body);
    assert_eq!(served.status, 200, "{}", served.text());
    assert_eq!(shutdown("the-operator").status, 202);
    assert_eq!(worker.wait_exit().code(), Some(0));
}

#[test]
fn a_foreign_host_is_refused_on_loopback_unless_it_is_named() {
    let worker = scripted().start();
    let client = worker.client();
    for path in ["/health", "/livez", "/v1/models", "/"] {
        let get = format!("GET {path} HTTP/1.1");
        for ours in [
            "localhost",
            "localhost:1",
            "127.0.0.1",
            "[::1]:80",
            "LOCALHOST",
        ] {
            let host = format!("Host: {ours}");
            assert_eq!(raw(&client, &[&get, &host]).status, 200, "{path} {host}");
        }
        for theirs in [
            "evil.example",
            "evil.example:8080",
            "127.0.0.1.evil.example",
        ] {
            let host = format!("Host: {theirs}");
            let answer = raw(&client, &[&get, &host]);
            assert_eq!(answer.status, 403, "{path} {host}");
            assert!(
                answer.text().contains("--allowed-hosts"),
                "{}",
                answer.text()
            );
        }
        let twice = raw(&client, &[&get, "Host: localhost", "Host: localhost"]);
        assert_eq!(twice.status, 400, "{path}");
    }
    let named = scripted()
        .arg("--allowed-hosts", "box.lan,other.lan")
        .start();
    for (host, expected) in [
        ("box.lan", 200),
        ("other.lan:80", 200),
        ("evil.example", 403),
    ] {
        let host = format!("Host: {host}");
        let answer = raw(&named.client(), &["GET /health HTTP/1.1", &host]);
        assert_eq!(answer.status, expected, "{host}");
    }
}

#[test]
fn pages_may_ask_from_where_cors_origins_say() {
    let preflight = |client: &Client, origin: &str| {
        raw(
            client,
            &[
                "OPTIONS /v1/chat/completions HTTP/1.1",
                "Host: localhost",
                &format!("Origin: {origin}"),
                "Access-Control-Request-Method: POST",
                "Access-Control-Request-Headers: authorization,content-type,x-stainless-os",
            ],
        )
    };
    let allowed = |answer: &Response| {
        answer
            .header("access-control-allow-origin")
            .map(str::to_owned)
    };
    let off = scripted().start();
    let answer = preflight(&off.client(), "https://app.example");
    assert_eq!((answer.status, allowed(&answer)), (405, None));

    let keys = key_file("a-key\n");
    let worker = with_keys(&keys)
        .arg("--cors-origins", "https://app.example,http://b:1")
        .start();
    let client = worker.client();
    let answer = preflight(&client, "https://app.example");
    assert_eq!(
        (answer.status, allowed(&answer).as_deref()),
        (200, Some("https://app.example"))
    );
    let headers = answer.header("access-control-allow-headers").unwrap();
    assert!(
        headers.contains("authorization") && headers.contains("x-stainless-os"),
        "{headers}"
    );
    assert_eq!(allowed(&preflight(&client, "https://evil.example")), None);
    let page = [("Origin", "http://b:1")];
    // Also on a refusal, or the page could not read its cause.
    let refused = client.try_request("GET", "/v1/models", &page, b"").unwrap();
    assert_eq!(
        (refused.status, allowed(&refused).as_deref()),
        (401, Some("http://b:1"))
    );
    let answer = client
        .with_key("a-key")
        .try_request("GET", "/v1/models", &page, b"")
        .unwrap();
    assert_eq!(
        (answer.status, allowed(&answer).as_deref()),
        (200, Some("http://b:1"))
    );

    let any = scripted().arg("--cors-origins", "*").start();
    assert_eq!(
        allowed(&preflight(&any.client(), "https://x.example")).as_deref(),
        Some("*")
    );
    let simple = [
        ("Origin", "https://x.example"),
        ("Content-Type", "text/plain"),
    ];
    let answer = any
        .client()
        .try_request("POST", "/shutdown", &simple, b"")
        .unwrap();
    assert_eq!(
        answer.status, 403,
        "every page may use it, and none may end it"
    );
}

// === Unknown paths and methods ===

#[test]
fn what_is_not_there_is_answered_with_what_is() {
    let worker = scripted().start();
    let client = worker.client();
    let answer = client.get("/v1/moderations");
    assert_eq!(answer.status, 404);
    let message = answer.json()["error"]["message"]
        .as_str()
        .unwrap()
        .to_owned();
    assert!(message.contains("POST /v1/chat/completions"), "{message}");
    let answer = client.post("/chat/completions", &json!({}));
    assert_eq!(answer.status, 404);
    assert!(
        answer.text().contains("did you mean /v1/chat/completions?"),
        "{}",
        answer.text()
    );
    let root = client.get("/").json();
    assert_eq!(root["name"], "worker-orcd");
    for route in root["routes"].as_array().unwrap() {
        let (method, path) = route.as_str().unwrap().split_once(' ').unwrap();
        if path.contains('{') || path == "/shutdown" {
            continue;
        }
        let answer = client.try_request(method, path, &[], b"{}").unwrap();
        assert!(
            ![404, 405].contains(&answer.status),
            "{route}: {}",
            answer.status
        );
    }
    for path in ["/v1/models/", "//v1//models", "/health/"] {
        assert_eq!(status(&client, path), 200, "{path}");
    }
    for path in ["/crashes/%ff", "/v1/models/%ff"] {
        let answer = client.get(path);
        assert_eq!(answer.status, 400, "{path}");
        assert_eq!(
            answer.header("content-type"),
            Some("application/json"),
            "{path}"
        );
        let _: Value = answer.json();
    }
    let zipped = [("Content-Encoding", "gzip")];
    let answer = client
        .try_request("POST", "/execute", &zipped, b"\x1f\x8b\x08")
        .unwrap();
    assert_eq!(answer.status, 415);
    assert!(
        answer.text().contains("Content-Encoding"),
        "{}",
        answer.text()
    );
}

#[test]
fn a_model_answers_to_every_name_that_it_was_given() {
    let worker = scripted()
        .arg("--served-model-name", "gpt-4o-mini, tiny")
        .start();
    let client = worker.client();
    let list = client.get("/v1/models").json();
    let ids: Vec<_> = list["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|model| &model["id"])
        .collect();
    assert_eq!(ids, ["gpt-4o-mini", "tiny"]);
    for name in ["gpt-4o-mini", "tiny"] {
        let body = json!({ "model": name, "prompt": "abc", "max_tokens": 2 });
        let answer = client.post("/v1/completions", &body);
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert_eq!(client.get(&format!("/v1/models/{name}")).json()["id"], name);
    }
    let other = json!({ "model": "gpt-4", "prompt": "abc", "max_tokens": 2 });
    let answer = client.post("/v1/completions", &other);
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.json()["model"], "gpt-4o-mini");
    assert_eq!(client.get("/v1/models/gpt-4").status, 404);
}

#[test]
fn a_strict_worker_refuses_other_names() {
    let worker = scripted().flag("--strict-model-name").start();
    let client = worker.client();
    let other = json!({ "model": "gpt-4", "prompt": "abc" });
    let answer = client.post("/v1/completions", &other);
    assert_eq!(answer.status, 404, "{}", answer.text());
    let own = client.get("/v1/models").json()["data"][0]["id"].clone();
    let named = answer.json()["error"]["message"].to_string();
    assert!(named.contains(own.as_str().unwrap()), "{named}");
    let right = json!({ "model": own, "prompt": "abc", "max_tokens": 2 });
    assert_eq!(client.post("/v1/completions", &right).status, 200);
}

#[test]
fn a_name_loses_its_ending_and_no_version() {
    let dir = tempfile::tempdir().unwrap();
    for (file, name) in [("Qwen3-0.6B", "Qwen3-0.6B"), ("a.Q4_1.gguf", "a.Q4_1")] {
        let path = dir.path().join(file);
        std::fs::write(&path, "scripted children read nothing").unwrap();
        let worker = scripted().arg("--model", path.display()).start();
        assert_eq!(
            worker.client().get("/v1/models").json()["data"][0]["id"],
            name
        );
    }
}

/// Runs alone on the machine.
mod pace {
    use super::*;

    #[test]
    fn a_page_of_another_site_cannot_shut_the_worker_down() {
        let mut worker = Worker::scripted(on_the_beat()).start();
        let client = worker.client();
        let host = client.address.to_string();
        Bystander::of_a_script(worker.client()).keeps_pace_beside(|| {
            for headers in [
                &[
                    ("Origin", "https://evil.example"),
                    ("Content-Type", "text/plain"),
                    ("Sec-Fetch-Site", "cross-site"),
                ][..],
                &[("Origin", "https://evil.example")],
                &[("Origin", "null")],
                &[("Sec-Fetch-Site", "same-site")],
            ] {
                for (method, path) in [
                    ("POST", "/shutdown"),
                    ("POST", "/restart"),
                    ("GET", "/crashes"),
                ] {
                    let answer = client.try_request(method, path, headers, b"").unwrap();
                    assert_eq!(answer.status, 403, "{path} {headers:?}");
                    assert_eq!(answer.json()["code"], "FORBIDDEN");
                }
            }
        });
        let own = format!("http://{host}");
        let headers = [("Origin", own.as_str()), ("Sec-Fetch-Site", "same-origin")];
        let answer = client
            .try_request("POST", "/shutdown", &headers, b"")
            .unwrap();
        assert_eq!(answer.status, 202);
        assert_eq!(worker.wait_exit().code(), Some(0));
    }
}
