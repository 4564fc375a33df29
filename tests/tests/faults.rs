//! Real child with injected faults: every kind of fault in turn under one supervisor, and a query of death.

use serde_json::{Value, json};
use std::thread;
use worker_orcd_gpu::fault_injection::Kind;
use worker_orcd_lifecycle::DeathCause;
use worker_orcd_tests::client::Transcript;
use worker_orcd_tests::faults::{ANYWHERE, Expected, ON_A_GPU, WITH_STANDBY, expected};
use worker_orcd_tests::model_copy::edit_weights;
use worker_orcd_tests::worker::unique;
use worker_orcd_tests::{Bystander, Client, ModelCopy, Worker, WorkerBuilder, wait};

/// Worker with short deadlines, so that hangs are detected soon.
fn failing(faults: &str) -> WorkerBuilder {
    Worker::shallow()
        .faults(faults)
        .arg("--heartbeat-timeout", "1s")
        .arg("--step-timeout", "2s")
        .arg("--max-restart-delay", "50ms")
}

/// Prompt of exactly so many tokens of SmolLM2; rules select requests by it.
fn prompt(tokens: usize) -> String {
    "a".to_owned() + &" a".repeat(tokens - 1)
}

fn request(prompt_tokens: usize, max_tokens: u32) -> Value {
    json!({
        "job_id": format!("job-{}", unique()), "prompt": prompt(prompt_tokens),
        "max_tokens": max_tokens, "temperature": 0.8, "seed": 5, "ignore_eos": true,
    })
}

fn ask(client: &Client, prompt_tokens: usize, max_tokens: u32) -> Transcript {
    let transcript = client
        .execute(&request(prompt_tokens, max_tokens))
        .transcript();
    let end = transcript.end();
    assert_eq!(end["tokens_in"], prompt_tokens, "{end}");
    assert_eq!(end["tokens_out"], max_tokens, "{end}");
    transcript
}

#[test]
fn every_kind_has_a_row_and_every_row_a_label_that_exists() {
    for kind in Kind::ALL.into_iter().chain([Kind::FlippedPage]) {
        let rows: &[Expected] = match kind {
            Kind::FlippedPage => &WITH_STANDBY,
            _ if kind.of_device().is_some() => &ON_A_GPU,
            _ => &ANYWHERE,
        };
        let found: Vec<_> = rows.iter().filter(|it| it.kind == kind.name()).collect();
        assert_eq!(found.len(), 1, "{}", kind.name());
        let label = found[0].label;
        assert!(label.is_none_or(|label| DeathCause::labels().any(|it| it == label)));
    }
    assert_eq!(ANYWHERE.len() + ON_A_GPU.len(), Kind::ALL.len());
}

/// A fault that has no effect on the device must be refused, because it would look survived.
#[test]
fn a_fault_that_only_a_gpu_has_or_only_a_shared_kv_cache_is_refused_by_name() {
    for row in ON_A_GPU.iter().chain(&WITH_STANDBY) {
        let reason = format!("the fault {} cannot be injected on cpu", row.kind);
        // `SupervisorExit` of `device_unavailable`.
        failing(&format!("{}@step=1", row.kind)).ends_with(67, &[&reason]);
    }
}

#[test]
fn a_stream_outlives_every_kind_of_fault() {
    // The nth child fails only at the fourth token of the request with 10 + n prompt tokens.
    let rules: Vec<_> = ANYWHERE
        .iter()
        .enumerate()
        .map(|(n, row)| {
            let kind = row.kind;
            let (generation, tokens) = (n + 1, n + 10);
            format!(
                "{kind}@generation={generation},prompt-tokens={tokens},position={}",
                tokens + 3
            )
        })
        .collect();
    let worker = failing(&rules.join(";")).start();
    let client = worker.client();
    let interrupted: Vec<_> = ANYWHERE
        .iter()
        .enumerate()
        .map(|(n, row)| {
            let kind = row.kind;
            let transcript = ask(&client, n + 10, 12);
            assert_eq!(transcript.end()["recoveries"], 1, "{kind}");
            let faults = client.health()["faults"].clone();
            let last = &faults["last_death"]["label"];
            assert_eq!(last.as_str(), row.label, "{kind}: {faults}");
            transcript.text()
        })
        .collect();
    for (n, row) in ANYWHERE.iter().enumerate() {
        let undisturbed = ask(&client, n + 10, 12);
        assert_eq!(undisturbed.end()["recoveries"], 0);
        assert_eq!(undisturbed.text(), interrupted[n], "{}", row.kind);
    }
}

#[test]
fn a_step_that_never_ends_leaves_word_where_it_stands() {
    let worker = failing("hang@generation=1,prompt-tokens=12,position=15").start();
    let client = worker.client();
    assert_eq!(ask(&client, 12, 8).end()["recoveries"], 1);
    let id = client.get("/crashes").json()["crashes"][0]["id"].clone();
    let path = format!("/crashes/{}", id.as_str().expect("a report"));
    let report = client.get(&path).json();
    assert_eq!(report["cause"]["label"], "step_deadline", "{report}");
    let recorder = &report["flight_recorder"];
    let stands = &recorder["stands"];
    let text = stands["text"].as_str().unwrap_or_default();
    assert!(
        text.contains("the engine launches or computes a step"),
        "{recorder}"
    );
    let steps = recorder["last_steps"].as_array().expect("steps");
    let fatal = steps.last().expect("one that has not ended");
    assert_eq!(
        (&stands["step"], &fatal["ended"]),
        (&fatal["step"], &json!(false))
    );
}

/// The hanging child has half of them. Its deadlines are longer than the test.
#[test]
fn streams_leave_a_child_that_hangs_before_it_is_given_up() {
    let worker = Worker::shallow()
        .arg("--device", "cpu,cpu")
        .arg("--threads", 1)
        .arg("--kv-cache-size", "96MiB")
        .faults("hang@generation=2,step=60")
        .start();
    let client = worker.client();
    wait::until("both devices to serve", || {
        let states = [0, 1].map(|number| client.health()["devices"][number]["state"].clone());
        (states == ["serving", "serving"]).then_some(())
    });
    let bystander = Bystander::new(client.clone(), request(12, 100)).among(4);
    let hung: Vec<_> = bystander.begin_all();
    let ends: Vec<_> = hung.into_iter().map(|stream| stream.end()).collect();
    let recoveries = ends.iter().map(|(_, end)| end["recoveries"].as_u64());
    assert!(recoveries.sum::<Option<u64>>() > Some(0), "it had streams");
    let health = client.health();
    assert!(
        health["load"]["adopted_tokens"].as_u64() > Some(0),
        "{health}"
    );
    assert_eq!(worker.crash_reports().len(), 0, "nobody died by then");
    let again = bystander.begin_all().into_iter().map(|stream| stream.end());
    assert!(again.zip(&ends).all(|(again, (text, _))| again.0 == *text));
}

#[test]
fn a_query_of_death_is_refused_and_its_company_finishes() {
    let worker = failing("abort@prompt-tokens=23,position=25").start();
    let client = worker.client();
    let company: Vec<_> = [11, 12, 13]
        .map(|tokens| {
            let client = client.clone();
            thread::spawn(move || ask(&client, tokens, 150))
        })
        .into();
    worker.log.wait_for_many("execute_start", 3);
    let deadly = client.execute(&request(23, 50)).transcript();
    let error = deadly.error("QUARANTINED");
    assert_eq!(error["retriable"], false, "{error}");
    for (tokens, company) in [11, 12, 13].into_iter().zip(company) {
        let disturbed = company.join().expect("it has no reason to fail");
        assert!(disturbed.end()["recoveries"].as_u64() >= Some(1));
        assert_eq!(disturbed.text(), ask(&client, tokens, 150).text());
    }

    let deaths = client.health()["faults"]["deaths_by_cause"].clone();
    let again = client.post("/execute", &request(23, 50));
    assert_eq!(again.status, 422, "{}", again.text());
    assert_eq!(again.json()["code"], "QUARANTINED", "{}", again.text());
    let faults = client.health()["faults"].clone();
    assert_eq!(faults["deaths_by_cause"], deaths, "it was not tried again");
    assert_eq!(
        faults["quarantined"].as_array().map(Vec::len),
        Some(1),
        "{faults}"
    );
    assert_eq!(faults["on_probation"], 0, "{faults}");
    let metrics = client.get("/metrics").text();
    for line in [
        "worker_orcd_quarantined_fingerprints 1",
        "worker_orcd_requests_quarantined_total 1",
    ] {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }
    // A similar request is a different one.
    ask(&client, 24, 3);
}

/// Causes of all crash reports, by name.
fn labels(worker: &Worker) -> Vec<String> {
    let label = |report: &Value| report["cause"]["label"].as_str().map(str::to_owned);
    let mut labels: Vec<_> = worker.crash_reports().iter().filter_map(label).collect();
    labels.sort();
    labels
}

/// The first child's weights change after it has placed them. The second detects it before it serves, and the third
/// loads the file.
fn flipped(copy: &ModelCopy) -> WorkerBuilder {
    Worker::with_model(&copy.path).faults("flipped-bit@generation=1")
}

#[test]
fn a_bit_that_flipped_in_kept_weights_is_found_before_a_token_leaves() {
    let copy = ModelCopy::new();
    let worker = flipped(&copy).start();
    let client = worker.client();
    let health = client.health();
    let bystander = Bystander::new(client.clone(), request(12, 200));
    let mut stream = bystander.begin();
    stream.more(5);
    worker.kill_child();
    let (text, end) = stream.end();
    assert_eq!(end["recoveries"], 1, "the second child computed nothing");
    assert_eq!(labels(&worker), ["device", "signalled"]);
    let causes = worker
        .crash_reports()
        .into_iter()
        .map(|report| report["cause"].to_string());
    let mut found = causes.filter(|cause| cause.contains("WEIGHTS_CHANGED"));
    assert!(
        found
            .next_back()
            .is_some_and(|cause| cause.contains("token_embd.weight"))
    );
    let after = client.health();
    assert_eq!(after["child"]["generation"], 3);
    assert_eq!(after["model"]["identity"], health["model"]["identity"]);
    assert_ne!(
        after["vram"]["custody_since"],
        health["vram"]["custody_since"]
    );
    assert_eq!(bystander.alone(), text);
}

#[test]
fn a_bit_that_a_standby_finds_flipped_ends_the_child_that_computes_with_it() {
    let copy = ModelCopy::new();
    let worker = flipped(&copy).flag("--standby").start();
    let client = worker.client();
    let custody = client.health()["vram"]["custody_since"].clone();
    wait::until("another child to serve, with other memory", || {
        let health = client.health();
        let is_other = health["vram"]["custody_since"] != custody;
        (is_other && health["standby"]["state"] == "standing_by").then_some(())
    });
    assert_eq!(labels(&worker), ["device", "device"], "it, and the other");
    worker.assert_serves();
}

/// The first child dies of each kind when it has sealed pages. The fault changes all of them, so the next child can
/// adopt at most the pages that were copied before; the last one never was. After a death that makes memory suspect, no
/// page is adopted.
#[test]
fn only_pages_as_they_were_sealed_are_adopted_and_none_after_a_death_that_casts_doubt() {
    for (kind, adopted, changed) in [
        ("abort", 110..=110, 0..=0),
        ("flipped-page", 0..=96, 1..=4),
        ("nan", 0..=0, 0..=0),
        ("wrong-token", 0..=0, 0..=0),
    ] {
        let faults = format!("{kind}@generation=1,prompt-tokens=100,position=110");
        let worker = failing(&faults).flag("--standby").start();
        let client = worker.client();
        wait::until("a child to stand by", || {
            let standby = &client.health()["standby"];
            (standby["state"] == "standing_by").then_some(())
        });
        let stream = ask(&client, 100, 50);
        assert_eq!(stream.end()["recoveries"], 1, "{kind}");
        let health = client.health();
        let label = health["faults"]["last_death"]["label"].as_str();
        assert_eq!(label, expected(kind).and_then(|it| it.label), "{kind}");
        let load = &health["load"];
        let seen = |name: &str| load[name].as_u64().expect("a count");
        assert!(adopted.contains(&seen("adopted_tokens")), "{kind}: {load}");
        assert!(changed.contains(&seen("changed_pages")), "{kind}: {load}");
        assert_eq!(stream.text(), ask(&client, 100, 50).text());
    }
}

#[test]
fn where_kept_weights_are_lost_an_edited_file_ends_the_streams_before_a_wrong_byte() {
    let copy = ModelCopy::new();
    let mut worker = flipped(&copy).start();
    let mut stream = Bystander::new(worker.client(), request(12, 200)).begin();
    stream.more(5);
    edit_weights(&copy.path);
    worker.kill_child();
    let (_, last) = stream.rest();
    let error = last.json();
    assert_eq!(
        (last.name.as_str(), &error["code"]),
        ("error", &json!("WORKER_UNHEALTHY"))
    );
    let message = error["message"].as_str().expect("a sentence");
    assert!(message.contains("changed in place"), "{message}");
    // `SupervisorExit` of `model_changed`.
    assert_eq!(worker.wait_exit().code(), Some(90));
    assert_eq!(labels(&worker), ["device", "model_changed", "signalled"]);
}
