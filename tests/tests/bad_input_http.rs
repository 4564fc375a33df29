//! Invalid requests. Each test sends one, reads the refusal, and checks that the next request is served normally.

use serde_json::{Value, json};
use worker_orcd_tests::worker::request;
use worker_orcd_tests::{Response, Script, Worker, wait};

fn worker() -> Worker {
    Worker::scripted(Script::behave().token_interval_ms(0)).start()
}

/// `field`s of a 400, after a check of its shape.
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

/// Valid request with some fields replaced; `null` removes one.
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
        ("stop", json!(vec!["1"; 33])),
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
        json!({ "stop": vec!["1"; 32] }),
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
    for field in ["suffix", "tools", "n", "no_such_field"] {
        let value = match field {
            "n" => json!(9),
            "tools" => json!([{ "type": "function", "function": { "name": "f" } }]),
            _ => json!("more"),
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
        "POST /execute HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Content-Length: {announced}\r\n\r\n"
    );
    connection.send(head.as_bytes()).unwrap();
    let response = connection.read_response().unwrap();
    assert_eq!(response.status, 413, "{}", response.text());
    worker.assert_serves();
}

/// A client that is still writing when it is refused would have its connection reset, and miss the reason: npm's
/// `fetch` reports such a refusal as a network failure.
#[test]
fn who_sends_a_large_body_to_its_end_reads_the_refusal() {
    let worker = worker();
    let large = with(json!({ "prompt": "x".repeat(16 << 20) })).to_string();
    for kind in ["application/json", "text/plain"] {
        let headers = [("Content-Type", kind)];
        let response = worker
            .client()
            .try_request("POST", "/execute", &headers, large.as_bytes())
            .expect("the connection holds until the body was sent");
        let expected = if kind == "text/plain" { 415 } else { 413 };
        assert_eq!(response.status, expected, "{}", response.text());
    }
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
    // After its end the name is free again.
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
