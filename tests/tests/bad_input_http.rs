//! What clients can send wrong. Each test sends it, reads the refusal, and sees that the next
//! request is served as if nothing had happened.

use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};
use worker_orcd_tests::client::Connection;
use worker_orcd_tests::worker::request;
use worker_orcd_tests::{Client, Response, Script, Worker, wait};

fn worker() -> Worker {
    Worker::scripted(Script::behave().token_interval_ms(0)).start()
}

/// The `field`s of a 400, after checking the rest of its shape.
fn refused_fields(response: &Response) -> Vec<String> {
    assert_eq!(response.status, 400, "{}", response.text());
    let body = response.json();
    let errors = body["errors"]
        .as_array()
        .unwrap_or_else(|| panic!("no errors list: {body}"));
    assert!(!errors.is_empty());
    for error in errors {
        for key in ["field", "constraint", "message"] {
            assert!(
                error[key].as_str().is_some_and(|text| !text.is_empty()),
                "{key} in {error}"
            );
        }
    }
    errors
        .iter()
        .map(|error| error["field"].as_str().unwrap().to_owned())
        .collect()
}

/// A valid request with some fields replaced; `null` removes one.
fn with(changes: Value) -> Value {
    let mut body = request("a prompt that must not be echoed", 4);
    for (key, value) in changes.as_object().unwrap() {
        match value {
            Value::Null => drop(body.as_object_mut().unwrap().remove(key)),
            value => body[key] = value.clone(),
        }
    }
    body
}

// === Bodies ===

#[test]
fn what_is_no_json_is_refused() {
    let worker = worker();
    for body in [
        b"".as_slice(),
        b"{",
        b"{\"job_id\": \"a\", ",
        b"not json at all",
        b"[1, 2, 3]",
        b"\"text\"",
        b"null",
        b"{\"job_id\":\"a\",\"prompt\":\"\xff\xfe\"}",
        b"{\"job_id\":\"a\",\"prompt\":\"b\"} trailing",
        b"\0\0\0\0",
    ] {
        let response = worker.client().post_bytes("/execute", body);
        refused_fields(&response);
    }
    worker.assert_serves();
}

#[test]
fn json_nested_without_end_is_refused_and_overflows_no_stack() {
    let worker = worker();
    let deep = "[".repeat(100_000);
    for body in [
        deep.clone(),
        format!("{{\"job_id\":\"a\",\"prompt\":{deep}"),
    ] {
        refused_fields(&worker.client().post_bytes("/execute", body.as_bytes()));
    }
    worker.assert_serves();
}

#[test]
fn a_field_of_the_wrong_type_is_named() {
    let worker = worker();
    for (field, value) in [
        ("job_id", json!(7)),
        ("prompt", json!(["text"])),
        ("max_tokens", json!("12")),
        ("max_tokens", json!(1.5)),
        ("max_tokens", json!(-1)),
        ("temperature", json!("hot")),
        ("top_k", json!(true)),
        ("stop", json!(5)),
        ("stop", json!([1])),
        ("seed", json!(-3)),
        ("seed", json!(1e30)),
    ] {
        let response = worker
            .client()
            .post("/execute", &with(json!({ field: value })));
        let fields = refused_fields(&response);
        assert!(
            fields.iter().any(|name| name.starts_with(field)),
            "{field} = {value}: {}",
            response.text()
        );
        assert!(
            !response.text().contains("must not be echoed"),
            "{}",
            response.text()
        );
    }
    worker.assert_serves();
}

#[test]
fn a_value_out_of_its_range_is_named() {
    let worker = worker();
    let long_id = "x".repeat(129);
    let long_prompt = "x".repeat(32_769);
    for (field, value) in [
        ("job_id", json!("")),
        ("job_id", json!(long_id)),
        ("prompt", json!("")),
        ("prompt", json!(long_prompt)),
        ("max_tokens", json!(0)),
        ("max_tokens", json!(2049)),
        ("temperature", json!(-0.1)),
        ("temperature", json!(2.1)),
        ("top_p", json!(1.01)),
        ("top_p", json!(-0.01)),
        ("min_p", json!(1.01)),
        ("top_k", json!(258)),
        ("repetition_penalty", json!(0.0)),
        ("repetition_penalty", json!(2.01)),
        ("stop", json!(["1", "2", "3", "4", "5"])),
    ] {
        let response = worker
            .client()
            .post("/execute", &with(json!({ field: value })));
        let fields = refused_fields(&response);
        assert!(
            fields.iter().any(|name| name.starts_with(field)),
            "{field}: {}",
            response.text()
        );
    }
    worker.assert_serves();
}

#[test]
fn the_edges_of_every_range_are_accepted() {
    let worker = worker();
    for changes in [
        json!({ "prompt": "x".repeat(32_768) }),
        json!({ "prompt": "ß".repeat(32_768) }),
        json!({ "prompt": "🦀".repeat(32_767) }),
        json!({ "job_id": "x".repeat(128) }),
        json!({ "temperature": 0.0, "top_p": 0.0, "min_p": 0.0, "top_k": 0 }),
        json!({ "temperature": 2.0, "top_p": 1.0, "min_p": 1.0, "top_k": 257 }),
        json!({ "repetition_penalty": 2.0, "seed": u64::MAX }),
        json!({ "stop": ["1", "2", "3", "4"] }),
    ] {
        worker.client().execute(&with(changes)).transcript().end();
    }
}

#[test]
fn all_failures_are_told_at_once() {
    let worker = worker();
    let changes = json!({ "max_tokens": 0, "temperature": 9.0, "top_p": 2.0, "job_id": "" });
    let response = worker.client().post("/execute", &with(changes));
    let mut fields = refused_fields(&response);
    fields.sort();
    assert_eq!(fields, ["job_id", "max_tokens", "temperature", "top_p"]);
}

#[test]
fn missing_and_unknown_fields_are_named() {
    let worker = worker();
    for missing in ["job_id", "prompt"] {
        let response = worker
            .client()
            .post("/execute", &with(json!({ missing: null })));
        let fields = refused_fields(&response);
        assert!(
            fields.iter().any(|name| name == missing),
            "{missing}: {}",
            response.text()
        );
    }
    let response = worker
        .client()
        .post("/execute", &with(json!({ "temprature": 0.5 })));
    assert!(
        refused_fields(&response).contains(&"temprature".to_owned()),
        "{}",
        response.text()
    );
    let both = with(json!({ "messages": [{ "role": "user", "content": "hi" }] }));
    refused_fields(&worker.client().post("/execute", &both));
    worker.assert_serves();
}

#[test]
fn openai_fields_that_are_not_implemented_are_refused_by_name() {
    let worker = worker();
    let model = worker.client().get("/v1/models").json()["data"][0]["id"].clone();
    for field in ["logit_bias", "tools", "n", "no_such_field"] {
        let value = match field {
            "n" => json!(2),
            "tools" => json!([{ "type": "function", "function": { "name": "f" } }]),
            _ => json!({ "50": 1 }),
        };
        let body = json!({
            "model": model, "messages": [{ "role": "user", "content": "hi" }], field: value,
        });
        let response = worker.client().post("/v1/chat/completions", &body);
        assert_eq!(response.status, 400, "{field}: {}", response.text());
        assert!(
            response.text().contains(field),
            "{field}: {}",
            response.text()
        );
        assert!(
            response.json()["error"]["message"].is_string(),
            "{}",
            response.text()
        );
    }
    worker.assert_serves();
}

#[test]
fn a_body_beyond_the_limit_is_refused_and_not_read_into_memory() {
    let worker = worker();
    let announced = 8_u64 << 30;
    let mut connection = worker.client().connect().unwrap();
    let head = format!(
        "POST /execute HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n\
         Content-Length: {announced}\r\n\r\n"
    );
    connection.send(head.as_bytes()).unwrap();
    let response = connection.read_response().unwrap();
    assert_eq!(response.status, 413, "{}", response.text());
    let large = with(json!({ "prompt": "x".repeat(16 << 20) }));
    // The server may answer and close before it has read everything: both are a refusal.
    if let Ok(response) =
        worker
            .client()
            .try_request("POST", "/execute", &[], large.to_string().as_bytes())
    {
        assert_eq!(response.status, 413, "{}", response.text());
    }
    worker.assert_serves();
}

// === Requests that are not whole, or late ===

#[test]
fn half_sent_requests_hold_nobody_up_and_are_closed() {
    let worker = Worker::scripted(Script::behave())
        .arg("--read-timeout", "2s")
        .start();
    let whole = worker
        .client()
        .request("POST", "/execute", &[], b"{\"job_id\":\"half\"}");
    let cuts = [3, 20, whole.len() - 5];
    let mut halves: Vec<Connection> = cuts
        .iter()
        .map(|cut| {
            let mut connection = worker.client().connect().unwrap();
            connection.send(&whole[..*cut]).unwrap();
            connection
        })
        .collect();
    worker.assert_serves();
    for (half, cut) in halves.iter_mut().zip(cuts) {
        let start = Instant::now();
        let said = half
            .read_to_close()
            .unwrap_or_else(|error| panic!("cut at {cut}: {error}"));
        assert!(start.elapsed() < Duration::from_secs(20), "cut at {cut}");
        let text = String::from_utf8_lossy(&said);
        assert!(
            said.is_empty() || text.starts_with("HTTP/1.1 4"),
            "cut at {cut}: {text}"
        );
    }
    worker.assert_serves();
}

#[test]
fn a_client_that_leaves_in_the_middle_of_its_request_is_no_trouble() {
    let worker = worker();
    let whole = worker
        .client()
        .request("POST", "/execute", &[], &[b' '; 1000]);
    for cut in [1, 40, whole.len() - 1] {
        let mut connection = worker.client().connect().unwrap();
        connection.send(&whole[..cut]).unwrap();
        connection.socket().shutdown(Shutdown::Both).unwrap();
    }
    worker.assert_serves();
}

#[test]
fn a_request_that_drips_in_is_served_or_refused_while_others_are_served() {
    let worker = worker();
    let body = request("drip", 2).to_string();
    let bytes = worker
        .client()
        .request("POST", "/execute", &[], body.as_bytes());
    let mut slow = worker.client().connect().unwrap();
    for (sent, byte) in bytes.iter().enumerate() {
        slow.send(&[*byte]).unwrap();
        std::thread::sleep(Duration::from_millis(10));
        if sent == bytes.len() / 2 {
            worker.assert_serves();
        }
    }
    let response = slow.read_response().unwrap();
    assert_eq!(response.status, 200, "{}", response.text());
    assert!(
        response.text().contains("event: end"),
        "{}",
        response.text()
    );
}

#[test]
fn a_body_that_never_ends_is_given_up_after_the_read_timeout() {
    let worker = Worker::scripted(Script::behave())
        .arg("--read-timeout", "2s")
        .start();
    let bytes = worker
        .client()
        .request("POST", "/execute", &[], &[b' '; 10_000]);
    let mut slow = worker.client().connect().unwrap();
    let start = Instant::now();
    // One byte at a time keeps a timeout between bytes from ever firing.
    let sent = bytes
        .iter()
        .take_while(|byte| {
            std::thread::sleep(Duration::from_millis(20));
            slow.send(&[**byte]).is_ok() && start.elapsed() < Duration::from_secs(30)
        })
        .count();
    assert!(
        start.elapsed() < Duration::from_secs(30),
        "{sent} bytes dripped in unhindered"
    );
    worker.assert_serves();
}

#[test]
fn what_is_no_http_is_closed() {
    let worker = worker();
    for noise in [
        b"\x16\x03\x01\x02\x00\x01\x00".as_slice(),
        b"HELO there\r\n\r\n",
        &[0; 64],
    ] {
        let mut connection = worker.client().connect().unwrap();
        connection.send(noise).unwrap();
        let said = connection.read_to_close().unwrap();
        let text = String::from_utf8_lossy(&said);
        assert!(said.is_empty() || text.starts_with("HTTP/1.1 4"), "{text}");
    }
    worker.assert_serves();
}

#[test]
fn headers_without_end_are_refused() {
    let worker = worker();
    let mut connection = worker.client().connect().unwrap();
    connection.send(b"GET /health HTTP/1.1\r\n").unwrap();
    let header = format!("X-Padding: {}\r\n", "x".repeat(8000));
    // The server may close before it has read all of it.
    let sent = (0..1000)
        .take_while(|_| connection.send(header.as_bytes()).is_ok())
        .count();
    let said = connection.read_to_close().unwrap_or_default();
    let text = String::from_utf8_lossy(&said);
    assert!(text.starts_with("HTTP/1.1 4") || sent < 1000, "{text}");
    worker.assert_serves();
}

// === Too many ===

#[test]
fn more_connections_than_allowed_do_not_keep_the_worker_from_serving() {
    let worker = Worker::scripted(Script::behave())
        .arg("--max-connections", 200)
        .start();
    let open_before = worker_orcd_tests::process::open_files(worker.pid());
    let mut idle: Vec<TcpStream> = Vec::new();
    for _ in 0..600 {
        // Past its limit the server may refuse, or let them wait in the kernel's queue.
        let attempt =
            TcpStream::connect_timeout(&worker.client().address, Duration::from_millis(200));
        match attempt {
            Ok(stream) => idle.push(stream),
            Err(_) => break,
        }
    }
    assert!(idle.len() >= 100, "only {} connections", idle.len());
    let open = worker_orcd_tests::process::open_files(worker.pid());
    assert!(
        open < open_before + 300,
        "{open} open files: connections are not bounded"
    );
    drop(idle);
    wait::until("the worker to serve again", || {
        worker
            .client()
            .try_request("GET", "/readyz", &[], &[])
            .is_ok_and(|response| response.status == 200)
            .then_some(())
    });
    worker.assert_serves();
}

#[test]
fn a_full_queue_says_when_to_come_back() {
    let script = Script::behave().max_running(1).token_interval_ms(20);
    let worker = Worker::scripted(script).arg("--max-queue", 2).start();
    let client = worker.client();
    let mut streams = Vec::new();
    let refusal = loop {
        let answer = client.open("/execute", &request("long", 2048)).unwrap();
        if answer.status != 200 {
            break answer.into_response().unwrap();
        }
        streams.push(answer);
        assert!(streams.len() <= 19, "a queue of 2 is never full");
    };
    assert_eq!(refusal.status, 429, "{}", refusal.text());
    let seconds = refusal
        .header("retry-after")
        .expect("Retry-After")
        .parse::<u64>()
        .unwrap();
    assert!(seconds >= 1);
    assert!(refusal.text().contains("QUEUE_FULL"), "{}", refusal.text());
    drop(streams);
    wait::until("room in the queue", || {
        let answer = client.open("/execute", &request("after", 1)).unwrap();
        (answer.status == 200).then_some(())
    });
    worker.assert_serves();
}

// === Names ===

#[test]
fn an_unknown_job_is_cancelled_without_a_word() {
    let worker = worker();
    for _ in 0..2 {
        let response = worker
            .client()
            .post("/cancel", &json!({ "job_id": "never seen" }));
        assert_eq!(response.status, 202, "{}", response.text());
    }
    for body in [
        json!({}),
        json!({ "job_id": 5 }),
        json!({ "job_id": "a", "x": 1 }),
    ] {
        refused_fields(&worker.client().post("/cancel", &body));
    }
    worker.assert_serves();
}

#[test]
fn a_live_duplicate_is_refused_and_the_first_goes_on() {
    let worker = Worker::scripted(Script::behave().token_interval_ms(20)).start();
    let mut body = request("first", 50);
    body["job_id"] = json!("twice");
    let mut first = worker.client().execute(&body);
    first.wait_for("token");
    let second = worker.client().post("/execute", &body);
    assert_eq!(second.status, 409, "{}", second.text());
    assert!(second.text().contains("DUPLICATE_JOB"), "{}", second.text());
    assert_eq!(first.transcript().events.last().unwrap().name, "end");
    // Once it is over, the name is free again.
    wait::until("the name to be free", || {
        (worker.client().post("/execute", &body).status == 200).then_some(())
    });
}

#[test]
fn unknown_routes_and_methods_are_refused() {
    let worker = worker();
    let client = worker.client();
    assert_eq!(client.get("/no/such/route").status, 404);
    assert_eq!(client.get("/execute").status, 405);
    assert_eq!(client.post("/health", &json!({})).status, 405);
    assert_eq!(client.get("/../../etc/passwd").status, 404);
    worker.assert_serves();
}

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
        // Probes of an orchestrator carry no key.
        assert_eq!(client.get("/readyz").status, 200);
    }
    assert_eq!(
        keyed.execute(&request("x", 2)).transcript().end()["tokens_out"],
        2
    );
    assert!(!worker.log.text().contains("a-long-secret-key"));
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
fn a_key_file_that_others_may_read_is_said_so() {
    let keys = tempfile::NamedTempFile::new().unwrap();
    keys.as_file().write_all(b"a-long-secret-key\n").unwrap();
    let open = std::fs::Permissions::from_mode(0o644);
    std::fs::set_permissions(keys.path(), open).unwrap();
    let worker = Worker::scripted(Script::behave())
        .arg("--api-key-file", keys.path().display())
        .listening();
    assert!(Client::new(worker.client().address).get("/livez").status < 500);
}

// === Starting ===

#[test]
fn an_occupied_port_is_named_and_ends_the_start() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let mut worker = Worker::scripted(Script::behave()).port(port).spawn();
    let status = worker.wait_exit();
    assert!(!status.success());
    let log = worker.log.text();
    assert!(log.contains(&port.to_string()), "the port is named: {log}");
    assert!(log.to_lowercase().contains("in use"), "{log}");
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

/// Reads a stream to its end without the client, to see the bytes on the wire.
#[test]
fn the_stream_is_plain_sse_on_the_wire() {
    let worker = worker();
    let mut stream = TcpStream::connect(worker.client().address).unwrap();
    let body = request("wire", 2).to_string();
    let head = worker
        .client()
        .request("POST", "/execute", &[("Connection", "close")], &[]);
    let head = String::from_utf8(head).unwrap();
    let head = head.replace(
        "Content-Length: 0",
        &format!("Content-Length: {}", body.len()),
    );
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(body.as_bytes()).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let lower = text.to_lowercase();
    assert!(lower.contains("content-type: text/event-stream"), "{text}");
    assert!(lower.contains("cache-control: no-cache"), "{text}");
    assert!(
        text.contains("event: started\n") || text.contains("event:started\n"),
        "{text}"
    );
}
