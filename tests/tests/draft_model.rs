//! Speculative decoding with a draft model, through the real programs: answers are those without it, also when a child or a
//! supervisor is replaced in their middle, and its drafts are accepted.

use crate::speculation::{COMPLETIONS, content, details, requests, with};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use std::fs;
use worker_orcd_tests::client::Client;
use worker_orcd_tests::disturbed::Disturbance;
use worker_orcd_tests::model::{real_model, shallow_model};
use worker_orcd_tests::script::Script;
use worker_orcd_tests::twins::Twins;
use worker_orcd_tests::{Worker, wait};

/// A text that repeats nothing, so that its text makes no drafts.
fn story(extra: &Value) -> Value {
    let base = json!({
        "prompt": "The lighthouse keeper's daughter", "max_tokens": 80, "ignore_eos": true,
        "repetition_penalty": 1.3,
    });
    with(base, extra)
}

/// Verified and accepted drafts of the draft model, once some were accepted.
fn drafts_of_model(client: &Client) -> [u64; 2] {
    wait::until("accepted drafts of the model", || {
        let drafts = counted(client);
        (drafts[1] > 0).then_some(drafts)
    })
}

fn counted(client: &Client) -> [u64; 2] {
    let names = [
        "worker_orcd_model_draft_tokens_total",
        "worker_orcd_accepted_model_draft_tokens_total",
    ];
    client.try_metrics(names).expect("the metrics")
}

/// The draft model computes the logits of the served one, so with its noise every draft is right: greedy and sampled.
#[test]
fn drafts_of_an_equal_model_are_all_right_and_change_no_token() {
    let twins = Twins::new();
    let (off, on) = (twins.plain().start(), twins.drafting().start());
    for extra in [
        json!({"temperature": 0}),
        json!({"temperature": 1, "seed": 3}),
        json!({"temperature": 0.8, "top_p": 0.9, "top_k": 40, "seed": 4, "presence_penalty": 0.5}),
        json!({"temperature": 0.9, "seed": 5, "n": 2, "logprobs": 2}),
    ] {
        let body = story(&extra);
        let expected = content(&off.client(), COMPLETIONS, &body);
        assert_eq!(
            content(&on.client(), COMPLETIONS, &body),
            expected,
            "{body}"
        );
    }
    let [offered, accepted] = drafts_of_model(&on.client());
    assert_eq!(offered, accepted);
    assert_eq!(counted(&off.client()), [0, 0]);
    let health = on.client().health();
    assert!(
        health["vram"]["draft_bytes"].as_u64() > Some(1 << 20),
        "{health}"
    );
    assert!(health["model"]["draft_model"].is_string(), "{health}");
    let counters = &health["load"];
    // They are those of a later heartbeat.
    let of_model = ["model_draft_tokens", "accepted_model_draft_tokens"];
    let [offered_now, accepted_now] = of_model.map(|name| counters[name].as_u64());
    assert!(offered_now >= Some(offered), "{counters}");
    assert_eq!(offered_now, accepted_now, "{counters}");
    let off = off.client().health();
    assert_eq!(off["vram"]["draft_bytes"], 0);
    assert_eq!(off["model"]["draft_model"], Value::Null);
}

#[test]
fn requests_of_every_kind_have_the_answers_without_a_draft_model() {
    let off = Worker::shallow().start();
    let draft = shallow_model();
    let on = Worker::shallow()
        .arg("--draft-model", draft.display())
        .start();
    for (path, body) in requests() {
        let expected = content(&off.client(), path, &body);
        assert_eq!(
            content(&on.client(), path, &body),
            expected,
            "{path} {body}"
        );
    }
    drafts_of_model(&on.client());
    let declining = story(&json!({"speculation": false, "temperature": 0}));
    let answer = on.client().post(COMPLETIONS, &declining).json();
    assert_eq!(details(&answer["usage"]), [0, 0]);
}

/// The first layers of a model guess badly.
#[test]
fn drafts_of_another_model_change_no_token() {
    let draft = shallow_model();
    let (off, on) = (
        Worker::real().start(),
        Worker::real().arg("--draft-model", draft.display()).start(),
    );
    for extra in [
        json!({"temperature": 0}),
        json!({"temperature": 0.7, "seed": 2}),
    ] {
        let body = story(&extra);
        let expected = content(&off.client(), COMPLETIONS, &body);
        assert_eq!(content(&on.client(), COMPLETIONS, &body), expected);
    }
    let [offered, accepted] = wait::until("drafts of the model", || {
        let drafts = counted(&on.client());
        (drafts[0] > 0).then_some(drafts)
    });
    assert!(accepted < offered, "{accepted} of {offered}");
}

/// Sends requests until the draft model has right drafts in one. The present child makes them: counts of a dead one are
/// complete, and a supervisor's counts begin with it. A child that found its drafts too costly tries them again later.
fn drafts_in_further_requests(worker: &Worker, body: &Value) {
    let client = worker.client();
    let before = counted(&client);
    wait::until("drafts in further requests", || {
        content(&client, COMPLETIONS, body);
        (counted(&client)[1] > before[1]).then_some(())
    });
}

#[test]
fn a_replaced_child_or_supervisor_changes_no_token_and_drafts_go_on() {
    let twins = Twins::new();
    let off = twins.plain().start();
    let workers = [
        twins.drafting().start(),
        twins.drafting().flag("--standby").start(),
    ];
    for (worker, extra) in workers.iter().zip([
        json!({"temperature": 0}),
        json!({"temperature": 0.9, "seed": 8}),
    ]) {
        let body = story(&extra);
        let expected = off.client().post(COMPLETIONS, &body).json();
        let expected = expected["choices"][0]["text"].as_str().expect("a text");
        for disturbance in Disturbance::ALL {
            let (generation, programs) = (worker.generation(), worker.log.events("ready").len());
            let streamed = with(body.clone(), &json!({"stream": true}));
            let events = disturbance.of_stream(worker, COMPLETIONS, &streamed, 2);
            wait::until("the next supervisor", || {
                let is_next = worker.log.events("ready").len() > programs;
                (is_next || disturbance == Disturbance::Killed).then_some(())
            });
            let chunks: Vec<Value> = events
                .iter()
                .filter(|data| *data != "[DONE]")
                .map(|data| serde_json::from_str(data).expect("JSON"))
                .collect();
            let texts = chunks
                .iter()
                .filter_map(|it| it["choices"][0]["text"].as_str());
            assert_eq!(texts.collect::<String>(), expected, "{disturbance:?}");
            let survives = worker.generation() == generation;
            assert_eq!(survives, disturbance == Disturbance::Replaced);
            drafts_in_further_requests(worker, &body);
        }
    }
}

/// The step is that of the draft model, by the crash report, and of its request alone.
#[test]
fn a_fault_in_a_step_of_the_draft_model_is_a_death_like_any_other() {
    let twins = Twins::new();
    let body = story(&json!({"temperature": 0}));
    let expected = content(&twins.plain().start().client(), COMPLETIONS, &body);
    // The prompt, a first token without drafts, and the first turn of the model.
    let worker = twins.drafting().faults("panic@step=3,generation=1").start();
    assert_eq!(content(&worker.client(), COMPLETIONS, &body), expected);
    let report = &worker.crash_reports()[0];
    let steps = report["flight_recorder"]["last_steps"].as_array();
    let fatal = steps.and_then(|it| it.last()).expect("a step");
    assert_eq!(fatal["phases"], json!(["draft model"]), "{fatal}");
    assert_eq!(fatal["ended"], false);
    assert_eq!(fatal["sequences"], 1);
    assert!(worker.generation() > Some(1));
}

/// The reason for which a child serves without the draft model.
fn impairment(client: &Client) -> Option<String> {
    let impaired = client.health()["impaired"].clone();
    let mut impaired = impaired.as_array()?.iter();
    let found = impaired.find(|it| it["what"] == "draft_model")?;
    found["because"].as_str().map(str::to_owned)
}

fn wait_impaired(worker: &Worker) -> String {
    wait::until("the impairment", || impairment(&worker.client()))
}

/// A later child or a standby serves without a draft model that is not there any more, and says so.
#[test]
fn a_draft_model_that_is_gone_costs_no_stream() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let draft = dir.path().join("draft.gguf");
    let body = story(&json!({"temperature": 0, "stream": true}));
    let expected = streamed(&Worker::shallow().start(), &body, |_| ());
    for has_standby in [false, true] {
        fs::copy(shallow_model(), &draft).expect("there is room for a copy");
        let worker = Worker::shallow().arg("--draft-model", draft.display());
        let worker = match has_standby {
            true => worker.flag("--standby").start(),
            false => worker.start(),
        };
        if has_standby {
            wait::until("a standby", || {
                let health = worker.client().health();
                (health["standby"]["child"]["draft_model"].is_string()).then_some(())
            });
        }
        assert_eq!(impairment(&worker.client()), None);
        assert!(worker.client().health()["child"]["draft_model"].is_string());
        fs::remove_file(&draft).expect("it is ours");
        // The standby has loaded it before, and the next standby finds it gone.
        let text = streamed(&worker, &body, |worker| worker.kill_child());
        assert_eq!(text, expected);
        let reason = wait_impaired(&worker);
        assert!(reason.contains("draft.gguf: No such file"), "{reason}");
        let health = worker.client().health();
        assert_eq!(health["model"]["draft_model"].is_string(), has_standby);
        assert_eq!(health["status"], "healthy");
        assert_eq!(
            worker.crash_reports().len(),
            1,
            "one death, that was ordered"
        );
        assert_eq!(streamed(&worker, &body, |_| ()), expected);
        if has_standby {
            continue;
        }
        // The next supervisor of the same child knows it too, and needs the file itself.
        fs::copy(shallow_model(), &draft).expect("there is room for a copy");
        let programs = worker.log.events("ready").len();
        worker_orcd_tests::process::signal(worker.pid(), Signal::SIGUSR2);
        wait::until("the next supervisor", || {
            (worker.log.events("ready").len() > programs).then_some(())
        });
        let reason = wait_impaired(&worker);
        assert!(reason.contains("draft.gguf: No such file"), "{reason}");
    }
}

/// Text of a stream with an event in its middle.
fn streamed(worker: &Worker, body: &Value, happens: impl FnOnce(&Worker)) -> String {
    let client = worker.client();
    let mut events = client.stream(COMPLETIONS, body).map(|it| it.data);
    let mut all: Vec<String> = events.by_ref().take(2).collect();
    happens(worker);
    all.extend(events);
    let chunks = all.iter().filter(|data| *data != "[DONE]");
    let chunks = chunks.map(|data| serde_json::from_str::<Value>(data).expect("JSON"));
    let texts = chunks.filter_map(|it| it["choices"][0]["text"].as_str().map(str::to_owned));
    texts.collect()
}

/// Its last norm has no numbers. No child dies, and no request is suspected.
#[test]
fn a_draft_model_whose_logits_are_not_finite_is_given_up_and_named() {
    let twins = Twins::new();
    let body = story(&json!({"temperature": 0}));
    let expected = content(&twins.plain().start().client(), COMPLETIONS, &body);
    let mut bytes = fs::read(&twins.draft).expect("the file is ours");
    let header = worker_orcd_gpu::model::gguf::parse(&bytes).expect("it is a model");
    let norm = header.tensor("output_norm.weight").expect("a norm").data;
    let start = norm.as_ptr().addr() - bytes.as_ptr().addr();
    let norm = start..start + norm.len();
    let not_finite = f32::NAN.to_le_bytes();
    bytes[norm]
        .chunks_exact_mut(4)
        .for_each(|it| it.copy_from_slice(&not_finite));
    fs::write(&twins.draft, bytes).expect("the file is ours");
    let worker = twins.drafting().start();
    assert_eq!(content(&worker.client(), COMPLETIONS, &body), expected);
    let reason = wait_impaired(&worker);
    assert!(reason.contains("its logits are not finite"), "{reason}");
    assert_eq!(content(&worker.client(), COMPLETIONS, &body), expected);
    let health = worker.client().health();
    assert_eq!(health["model"]["draft_model"], Value::Null);
    assert_eq!(health["faults"]["deaths_by_cause"], json!({}));
    assert_eq!(health["faults"]["probations"], 0);
    assert_eq!(worker.generation(), Some(1));
}

#[test]
fn a_draft_model_that_cannot_draft_is_refused_by_name() {
    let refused = |worker: worker_orcd_tests::worker::WorkerBuilder, words: &[&str]| {
        let mut worker = worker.spawn();
        assert!(!worker.wait_exit().success());
        let log = worker.log.text();
        for word in words {
            assert!(log.contains(word), "{word} in {log}");
        }
    };
    let real = real_model();
    let draft = real.display().to_string();
    refused(
        Worker::scripted(Script::behave())
            .arg("--draft-model", &draft)
            .arg("--speculation", "text"),
        &["--draft-model", "auto"],
    );
    refused(
        Worker::scripted(Script::behave())
            .arg("--draft-model", &draft)
            .arg("--trace-logits", "/tmp/none"),
        &["--trace-logits", "--draft-model"],
    );
    refused(
        Worker::shallow().arg("--draft-model", "/dev/null/none.gguf"),
        &["--draft-model"],
    );
    let dir = tempfile::tempdir().expect("a temporary directory");
    let other = dir.path().join("other.gguf");
    let tiny =
        worker_orcd_gpu::model::tiny_model::tiny_model(worker_orcd_gpu::model::Architecture::Llama);
    fs::write(&other, tiny.build()).expect("written");
    refused(
        Worker::shallow().arg("--draft-model", other.display()),
        &["other.gguf", "token 0 is"],
    );
}
