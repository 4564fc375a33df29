//! Cancel and disconnect: decoding stops, the stream ends, other requests are unaffected.

use serde_json::json;
use worker_orcd_tests::worker::request;
use worker_orcd_tests::{Script, Worker, wait};

fn slow_worker() -> Worker {
    Worker::scripted(Script::behave().max_running(1).token_interval_ms(20)).start()
}

fn cancel(worker: &Worker, job: &str) {
    let response = worker.client().post("/cancel", &json!({ "job_id": job }));
    assert_eq!(response.status, 202, "{}", response.text());
}

fn running(worker: &Worker) -> u64 {
    let health = worker.client().health();
    health["load"]["running"]
        .as_u64()
        .unwrap_or_else(|| panic!("no load.running: {health}"))
}

#[test]
fn a_running_job_ends_with_cancelled_and_its_slot_is_free() {
    let worker = slow_worker();
    let mut body = request("to be cancelled", 2000);
    body["job_id"] = json!("victim");
    let mut stream = worker.client().execute(&body);
    stream.wait_for("token");
    cancel(&worker, "victim");
    let last = stream.last().expect("a terminal event");
    assert_eq!(last.name, "error");
    assert_eq!(last.json()["code"], "CANCELLED");
    assert_eq!(last.json()["retriable"], false);
    // The only slot is free again; otherwise this waits for two thousand tokens.
    worker.assert_serves();
    // Idempotent: finished jobs may be cancelled for ever.
    cancel(&worker, "victim");
    cancel(&worker, "victim");
}

#[test]
fn a_waiting_job_ends_with_cancelled_and_the_running_one_goes_on() {
    let worker = slow_worker();
    let mut running = worker.client().execute(&request("runs", 60));
    running.wait_for("token");
    let mut body = request("waits", 10);
    body["job_id"] = json!("waiting");
    let waiting = {
        let client = worker.client();
        std::thread::spawn(move || client.execute(&body).last())
    };
    // Cancel is idempotent, so it is repeated until the job is known.
    wait::until("the waiting job's end", || {
        cancel(&worker, "waiting");
        waiting.is_finished().then_some(())
    });
    let last = waiting.join().unwrap().expect("a terminal event");
    assert_eq!(last.json()["code"], "CANCELLED");
    let end = running.last().unwrap();
    assert_eq!(
        (end.name.as_str(), &end.json()["tokens_out"]),
        ("end", &json!(60))
    );
}

#[test]
fn a_client_that_vanishes_frees_its_slot() {
    let worker = slow_worker();
    let mut stream = worker.client().execute(&request("leaves", 2000));
    stream.wait_for("token");
    stream.disconnect();
    worker.assert_serves();
    wait::until("nothing to run", || (running(&worker) == 0).then_some(()));
}

#[test]
fn a_client_that_vanishes_while_it_waits_is_forgotten() {
    let worker = slow_worker();
    let mut running_stream = worker.client().execute(&request("runs", 2000));
    running_stream.wait_for("token");
    for _ in 0..3 {
        let mut connection = worker.client().connect().unwrap();
        let body = request("leaves", 2000).to_string();
        let bytes = worker
            .client()
            .request("POST", "/execute", &[], body.as_bytes());
        connection.send(&bytes).unwrap();
        drop(connection);
    }
    running_stream.disconnect();
    // Without the four the one slot serves at once; with one of them left it would take 40 s.
    worker.assert_serves();
}

#[test]
fn a_client_that_vanishes_from_a_chat_without_streaming_frees_its_slot() {
    let worker = slow_worker();
    let body = json!({
        "model": worker.client().get("/v1/models").json()["data"][0]["id"],
        "messages": [{ "role": "user", "content": "hi" }],
        "max_tokens": 2000,
    })
    .to_string();
    let bytes = worker
        .client()
        .request("POST", "/v1/chat/completions", &[], body.as_bytes());
    let mut connection = worker.client().connect().unwrap();
    connection.send(&bytes).unwrap();
    wait::until("the request to run", || {
        (running(&worker) == 1).then_some(())
    });
    drop(connection);
    worker.assert_serves();
}
