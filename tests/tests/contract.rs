//! Guarantees of the contract besides bad input: text, addresses, registration, ids, deadlines.

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use worker_orcd_tests::script::scripted_text;
use worker_orcd_tests::worker::request;
use worker_orcd_tests::{Client, Script, Worker, process, wait};

/// Every character is several tokens here: none may be cut, at any read boundary.
#[test]
fn no_character_is_ever_cut_in_two() {
    let worker = Worker::scripted(Script::behave().token_interval_ms(1)).start();
    let prompt = "ß🦀語é";
    let bytes = prompt.len();
    let transcript = worker
        .client()
        .execute(&request(prompt, 3 * bytes as u32))
        .transcript();
    assert_eq!(transcript.end()["tokens_out"], 3 * bytes);
    assert_eq!(transcript.text(), prompt.repeat(3));
    let tokens = transcript
        .events
        .iter()
        .filter(|event| event.name == "token");
    for token in tokens {
        let text = token.json()["t"].as_str().unwrap().to_owned();
        assert_eq!(
            text.chars().count(),
            1,
            "one whole character an event: {text:?}"
        );
    }
}

/// The last character's bytes never come: the incomplete bytes are rendered, not lost.
#[test]
fn an_unfinished_character_at_the_end_becomes_a_replacement() {
    let worker = Worker::scripted(Script::behave()).start();
    let transcript = worker.client().execute(&request("ab🦀", 4)).transcript();
    assert_eq!(transcript.end()["tokens_out"], 4);
    assert_eq!(transcript.text(), "ab\u{fffd}");
}

#[test]
fn a_stop_string_across_tokens_is_matched_and_never_leaked() {
    let worker = Worker::scripted(Script::behave().token_interval_ms(1)).start();
    let mut body = request("one two three ", 100);
    body["stop"] = json!(["never", "two th"]);
    let transcript = worker.client().execute(&body).transcript();
    let end = transcript.end();
    assert_eq!(transcript.text(), "one ");
    assert_eq!(end["stop_reason"], "STOP_SEQUENCE");
    assert_eq!(end["stop_sequence_matched"], "two th");
    // A partial match of a stop string is text.
    body["job_id"] = json!("almost");
    body["stop"] = json!(["two x"]);
    let transcript = worker.client().execute(&body).transcript();
    assert_eq!(transcript.text(), scripted_text("one two three ", 100));
    assert_eq!(transcript.end()["stop_reason"], "MAX_TOKENS");
}

#[test]
fn localhost_works_whichever_address_it_is() {
    let worker = Worker::scripted(Script::behave()).any_host().start();
    let port = worker.client().address.port();
    for address in [format!("127.0.0.1:{port}"), format!("[::1]:{port}")] {
        let client = Client::new(address.parse::<SocketAddr>().unwrap());
        let transcript = client.execute(&request("both", 2)).transcript();
        assert_eq!(transcript.end()["tokens_out"], 2, "{address}");
    }
}

#[test]
fn a_correlation_id_is_echoed_and_logged_or_made() {
    let worker = Worker::scripted(Script::behave()).start();
    let body = request("x", 1).to_string();
    let given = worker
        .client()
        .try_request(
            "POST",
            "/execute",
            &[("X-Correlation-Id", "trace-me-17")],
            body.as_bytes(),
        )
        .unwrap();
    assert_eq!(given.header("x-correlation-id"), Some("trace-me-17"));
    wait::until("the id in the log", || {
        worker.log.text().contains("trace-me-17").then_some(())
    });
    let made = worker.client().get("/health");
    assert!(
        made.header("x-correlation-id")
            .is_some_and(|id| !id.is_empty())
    );
}

#[test]
fn a_job_that_takes_too_long_ends_with_its_code() {
    let script = Script::behave().token_interval_ms(50).max_running(1);
    let worker = Worker::scripted(script)
        .arg("--inference-timeout", "500ms")
        .start();
    let transcript = worker.client().execute(&request("slow", 2000)).transcript();
    assert_eq!(transcript.error("INFERENCE_TIMEOUT")["retriable"], true);
    worker.assert_serves();
}

#[test]
fn refusals_are_counted_by_their_code_and_logged_with_their_correlation_id() {
    let worker = Worker::scripted(Script::behave()).start();
    let client = worker.client();
    let headers = [("X-Correlation-Id", "find-me")];
    let wrong = client.try_request("POST", "/execute", &headers, b"{\"prompt\":1}");
    assert_eq!(wrong.unwrap().status, 400);
    assert_eq!(client.get("/v1/moderations").status, 404);
    let text = client.get("/metrics").text();
    for line in [
        "worker_orcd_requests_refused_total{code=\"INVALID_REQUEST\"} 1",
        "worker_orcd_requests_refused_total{code=\"NOT_FOUND\"} 1",
        "worker_orcd_requests_refused_total{code=\"QUEUE_FULL\"} 0",
        "worker_orcd_requests_started_total 0",
    ] {
        assert!(text.lines().any(|it| it == line), "{line}:\n{text}");
    }
    let line = wait::until("the refusal in the log", || {
        let lines = worker.log.events("request_refused");
        lines.into_iter().find(|it| it["code"] == "INVALID_REQUEST")
    });
    assert_eq!(line["correlation_id"], "find-me");
    assert_eq!(line["path"], "/execute");
    let _ = client.try_request("POST", "/cancel", &headers, b"{\"job_id\":\"x\"}");
    let cancel = worker.log.wait_for("cancel");
    assert_eq!(cancel["correlation_id"], "find-me");
    let _ = client.try_request("POST", "/shutdown", &headers, b"");
    let shutdown = worker.log.wait_for("shutdown");
    assert_eq!(shutdown["correlation_id"], "find-me");
}

/// The log of many workers distinguishes devices, models and children.
#[test]
fn events_name_their_device_model_and_generation() {
    let script = Script::behave().token_interval_ms(10);
    let worker = Worker::scripted(script).start();
    let mut stream = worker.client().execute(&request("abc", 100));
    stream.wait_for("token");
    process::signal(worker.child_pid().unwrap(), Signal::SIGKILL);
    assert_eq!(stream.last().expect("a terminal event").name, "end");
    for (name, generation) in [
        ("model_load_start", 1),
        ("model_load_complete", 1),
        ("child_ready", 1),
        ("ready", 1),
        ("execute_start", 1),
        ("child_death", 1),
        ("execute_end", 2),
    ] {
        let event = worker.log.wait_for(name);
        assert_eq!(event["device"], "cpu", "{event}");
        assert_eq!(event["model"], "null", "the file's name: {event}");
        assert_eq!(event["generation"], generation, "{event}");
    }
    let loaded = worker.log.wait_for("model_load_complete");
    assert_eq!(loaded["gguf_name"], "scripted", "{loaded}");
}

#[test]
fn prometheus_gets_the_text_that_it_asks_for() {
    let worker = Worker::scripted(Script::behave()).start();
    let client = worker.client();
    let _ = client.execute(&request("abc", 5)).transcript().end();
    let ask = |accept: &str| {
        let answer = client.try_request("GET", "/metrics", &[("Accept", accept)], &[]);
        let answer = answer.unwrap();
        let kind = answer.header("content-type").unwrap().to_owned();
        (kind, answer.text())
    };
    let (kind, text) = ask("application/openmetrics-text;version=1.0.0,*/*;q=0.1");
    assert!(kind.starts_with("application/openmetrics-text"), "{kind}");
    assert!(text.contains("# TYPE worker_orcd_requests_started counter"));
    assert!(text.ends_with("# EOF\n"));
    let (kind, text) = ask("*/*");
    assert_eq!(kind, "text/plain; version=0.0.4; charset=utf-8");
    assert!(text.contains("# TYPE worker_orcd_requests_started_total counter"));
    // Four gaps between five tokens.
    let gaps = "worker_orcd_inter_token_latency_seconds_count 4";
    wait::until("the gaps", || {
        let text = client.get("/metrics").text();
        text.lines().any(|it| it == gaps).then_some(())
    });
    for part in [
        "worker_orcd_request_generation_tokens_sum 5",
        "process_resident_memory_bytes ",
        "process_cpu_seconds_total ",
        "worker_orcd_child_resident_memory_bytes ",
        "worker_orcd_build_info{version=",
    ] {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
}

#[test]
fn waiting_for_a_place_is_told_from_being_worked_on() {
    let worker = Worker::null()
        .env("NULL_CHILD_STEP_MICROS", "100000")
        .arg("--max-running", 1)
        .start();
    let client = worker.client();
    // Sums of the queue and first-token times, after so many counted answers.
    let seconds = |answers: u32| {
        wait::until("the answers to be counted", || {
            let text = client.get("/metrics").text();
            let value = |name: &str| -> Option<f64> {
                let line = text.lines().find_map(|line| line.strip_prefix(name))?;
                line.trim().parse().ok()
            };
            let counted = value("worker_orcd_request_queue_time_seconds_count ");
            (counted == Some(answers.into())).then_some((
                value("worker_orcd_request_queue_time_seconds_sum ")?,
                value("worker_orcd_time_to_first_token_seconds_sum ")?,
            ))
        })
    };
    let _ = client.execute(&request("alone", 1)).transcript().end();
    let (queued, first_token) = seconds(1);
    // The report of the start precedes its token by a step.
    assert!(queued < first_token, "{queued} of {first_token}");

    let mut before = client.execute(&request("before", 5));
    before.wait_for("token");
    let _ = client.execute(&request("behind", 1)).transcript().end();
    let _ = before.transcript();
    let (both, _) = seconds(3);
    assert!(
        both - queued > 0.1,
        "steps of 100 ms were waited for: {both}"
    );
}

#[test]
fn metrics_count_what_happened() {
    let worker = Worker::scripted(Script::behave()).start();
    for _ in 0..3 {
        worker
            .client()
            .execute(&request("abc", 5))
            .transcript()
            .end();
    }
    let value = |name: &str| -> f64 {
        let text = worker.client().get("/metrics").text();
        let line = text.lines().find(|line| line.starts_with(name));
        let line = line.unwrap_or_else(|| panic!("no {name} in {text}"));
        line.rsplit(' ').next().unwrap().parse().unwrap()
    };
    assert_eq!(value("worker_orcd_requests_started_total"), 3.0);
    assert_eq!(value("worker_orcd_prompt_tokens_total"), 9.0);
    // Figures from the child's heartbeat come a little later.
    for (name, expected) in [
        ("worker_orcd_generated_tokens_total", 15.0),
        (
            "worker_orcd_requests_ended_total{outcome=\"MAX_TOKENS\"}",
            3.0,
        ),
        ("vllm:num_requests_running", 0.0),
        ("vllm:num_requests_waiting", 0.0),
    ] {
        wait::until(name, || (value(name) == expected).then_some(()));
    }
}

/// Answers one POST and returns its body.
fn answer_one(listener: &TcpListener, status: &str) -> Value {
    let (stream, _) = listener.accept().unwrap();
    let mut reader = BufReader::new(stream);
    let mut length = 0;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        let line = line.trim().to_ascii_lowercase();
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
        if line.is_empty() {
            break;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    let answer = format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    reader.get_mut().write_all(answer.as_bytes()).unwrap();
    serde_json::from_slice(&body).unwrap()
}

#[test]
fn a_worker_registers_once_it_serves_and_tries_again_when_refused() {
    let orchestrator = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/workers", orchestrator.local_addr().unwrap());
    let worker_id = "7f0c5c8e-94a0-4c4e-9c39-5d2b1d0d8a11";
    let callback = || Worker::scripted(Script::behave()).arg("--callback-url", &url);
    let worker = callback().arg("--worker-id", worker_id).listening();
    answer_one(&orchestrator, "503 Service Unavailable");
    let registration = answer_one(&orchestrator, "200 OK");
    assert_eq!(registration["worker_id"], worker_id);
    for key in [
        "model_ref",
        "memory_bytes",
        "memory_architecture",
        "worker_type",
        "capabilities",
    ] {
        assert!(
            registration.get(key).is_some_and(|value| !value.is_null()),
            "{key}"
        );
    }
    // The callback's receiver can connect at once.
    let uri = registration["uri"].as_str().unwrap();
    let address: SocketAddr = uri.strip_prefix("http://").unwrap().parse().unwrap();
    let transcript = Client::new(address)
        .execute(&request("called", 2))
        .transcript();
    assert_eq!(transcript.end()["tokens_out"], 2);
    drop(worker);

    let behind_a_proxy = callback()
        .arg("--advertise-url", "https://gpu-1.example/w/")
        .listening();
    let registration = answer_one(&orchestrator, "200 OK");
    assert_eq!(registration["uri"], "https://gpu-1.example/w");
    drop(behind_a_proxy);
}

#[test]
fn a_worker_that_nobody_wants_to_know_ends() {
    // Bound and dropped: the port refuses connections.
    let nobody = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let mut worker = Worker::scripted(Script::behave())
        .arg("--callback-url", format!("http://{nobody}/"))
        .spawn();
    let status = worker.wait_exit_within(std::time::Duration::from_secs(60));
    assert_eq!(status.code(), Some(87), "{}", worker.log.text());
    assert!(worker.log.text().contains("callback was not delivered"));
}

#[test]
fn one_connection_serves_many_requests() {
    let worker = Worker::scripted(Script::behave()).start();
    let mut stream = TcpStream::connect(worker.client().address).unwrap();
    for _ in 0..3 {
        stream
            .write_all(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
            .unwrap();
        let mut bytes = [0; 1024];
        let read = stream.read(&mut bytes).unwrap();
        assert!(
            bytes[..read].starts_with(b"HTTP/1.1 200"),
            "{:?}",
            &bytes[..read]
        );
    }
}
