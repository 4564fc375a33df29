//! CUDA device through the released programs, on an emulated card: an interpreter of PTX runs the kernels. Results are
//! compared with the CPU device.

use serde_json::{Value, json};
use std::time::Duration;
use worker_orcd_tests::disturbed::goes_on_behind_a_death;
use worker_orcd_tests::families::{Family, some_written_to};
use worker_orcd_tests::played_cuda::PlayedCuda;
use worker_orcd_tests::{Bystander, Worker, wait};

const CHAT: &str = "/v1/chat/completions";

/// Families with unique features: gpt-oss's sinks, biases of experts and clamped unit; windows, post-norms and two rotations;
/// delta nets, gated attention and a shared expert.
const FAMILIES: [&str; 3] = ["gpt-oss", "gemma3", "qwen35moe"];

/// Further families, where [`LONG`] is set: a shared expert, and delta nets, without each other.
const MORE_FAMILIES: [&str; 2] = ["qwen2moe", "qwen35"];

/// Variable that adds what takes minutes; `cargo xtask test --deep` sets it.
const LONG: &str = "LONG_PLAYED_CARD";

fn is_long() -> bool {
    std::env::var_os(LONG).is_some()
}

/// Mean difference of log probabilities. Activations are F16 on a card, and F32 on the CPU; where two experts are
/// nearly equal for a token, the devices may choose differently.
const TOLERANCE: f64 = 0.03;

/// Log probabilities of each token of a prompt.
fn of_prompt(worker: &Worker) -> Vec<f64> {
    let body = json!({
        "prompt": "  Wie warm ist es in Köln, 12345 \u{1f321}? ".repeat(3),
        "echo": true, "logprobs": 1, "max_tokens": 1, "temperature": 0.0,
    });
    let answer = worker.client().post("/v1/completions", &body);
    assert_eq!(answer.status, 200, "{}", answer.text());
    let answer = answer.json();
    let all = answer["choices"][0]["logprobs"]["token_logprobs"].as_array();
    all.expect("a list")
        .iter()
        .filter_map(Value::as_f64)
        .collect()
}

fn agrees_with_the_cpu(card: &PlayedCuda, family: &Family) {
    let name = &family.name;
    let path = family.path.as_ref().expect("it was written");
    let worker = || Worker::with_model(path).arg("--kv-cache-size", "64MiB");
    let on_card = card.seen_by(worker()).start();
    let health = on_card.client().health();
    assert_eq!(health["device"]["id"], "cuda:0", "{health}");
    let found = of_prompt(&on_card);
    let expected = of_prompt(&worker().start());
    assert!(expected.len() > 40, "{name}: {} tokens", expected.len());
    assert_eq!(found.len(), expected.len(), "{name}");
    let apart = found.iter().zip(&expected).map(|(a, b)| (a - b).abs());
    let worst = apart.clone().fold(0.0, f64::max);
    let mean = apart.sum::<f64>() / expected.len() as f64;
    println!(
        "{name}: {} tokens, apart by {mean:.1e}, at most {worst:.1e}",
        expected.len()
    );
    assert!(mean < TOLERANCE, "{name}: {mean}");
    let stream = json!({
        "messages": [{"role": "user", "content": "Wie warm ist es?"}], "stream": true,
        "max_tokens": 16, "seed": 11, "temperature": 0.9, "ignore_eos": true,
    });
    goes_on_behind_a_death(name, &on_card, CHAT, &stream);
}

#[test]
fn models_compute_what_they_compute_on_the_cpu_and_go_on_behind_a_death() {
    let Some(card) = PlayedCuda::of_this_build() else {
        return;
    };
    let folder = tempfile::tempdir().expect("a temporary directory");
    let more = MORE_FAMILIES.into_iter().filter(|_| is_long());
    let names: Vec<_> = FAMILIES.into_iter().chain(more).collect();
    for family in some_written_to(folder.path(), &names) {
        agrees_with_the_cpu(&card, &family);
    }
}

/// Family with sinks, windows and experts, of which a page holds one of two groups of layers; where [`LONG`] is set also one with
/// recurrent states, which have pages of their own.
#[test]
fn a_child_that_stands_by_adopts_the_pages_that_a_dead_one_has_on_the_card() {
    adopts_from_the_dead("gpt-oss");
    if is_long() {
        adopts_from_the_dead("qwen35");
    }
}

fn adopts_from_the_dead(name: &str) {
    let Some(card) = PlayedCuda::of_this_build() else {
        return;
    };
    let folder = tempfile::tempdir().expect("a temporary directory");
    let families = some_written_to(folder.path(), &[name]);
    let path = families[0].path.as_ref().expect("it was written");
    // A standby computes a chunk before it is ready, which is interpreted.
    let worker = Worker::with_model(path)
        .arg("--kv-cache-size", "16MiB")
        .arg("--prefill-chunk", 128)
        .flag("--standby");
    let worker = card.seen_by(worker).start();
    let client = worker.client();
    let prompt = "Tell me of the sea and of the ships. ".repeat(10);
    let body = json!({
        "prompt": prompt, "max_tokens": 60, "temperature": 0.7, "seed": 3, "ignore_eos": true,
    });
    let bystander = Bystander::new(client.clone(), body);
    let alone = bystander.alone();
    wait::within(Duration::from_secs(180), "a child to stand by", || {
        let health = client.health();
        let standby = &health["standby"];
        let is_behind = standby["adopts_from"] == health["child"]["generation"];
        (standby["state"] == "standing_by" && is_behind).then_some(())
    });
    let mut stream = bystander.begin();
    stream.more(10);
    worker.kill_child();
    let (text, end) = stream.end();
    assert_eq!(end["recoveries"], 1, "{end}");
    assert_eq!(text, alone);
    let [adopted, changed] = wait::until("a word of what was adopted", || {
        let counted = client.try_metrics([
            "worker_orcd_kv_adopted_tokens_total",
            "worker_orcd_kv_changed_pages_total",
        ]);
        counted.ok().filter(|[adopted, _]| *adopted > 0)
    });
    println!("adopted {adopted} tokens");
    assert!(adopted > 64, "{adopted}");
    assert_eq!(changed, 0);
}

/// A model that drafts for itself, with windows: both executors compute on one card, and with the noise of the request each
/// draft is right.
#[test]
fn a_draft_model_on_the_card_changes_no_token() {
    let Some(card) = PlayedCuda::of_this_build() else {
        return;
    };
    let folder = tempfile::tempdir().expect("a temporary directory");
    let families = some_written_to(folder.path(), &["gemma3"]);
    let path = families[0].path.as_ref().expect("it was written");
    let worker = || {
        Worker::with_model(path)
            .arg("--kv-cache-size", "16MiB")
            .arg("--prefill-chunk", 128)
    };
    let plain = card.seen_by(worker()).start();
    let drafting = worker().arg("--draft-model", path.display());
    let drafting = card.seen_by(drafting).start();
    let completion = |worker: &Worker, temperature: f64| {
        let body = json!({
            "prompt": "Tell me of the sea and of the ships.", "max_tokens": 24, "seed": 3,
            "temperature": temperature, "ignore_eos": true,
        });
        let answer = worker.client().post("/v1/completions", &body);
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer.json()["choices"][0]["text"].clone()
    };
    for temperature in [0.8, 0.0] {
        let expected = completion(&plain, temperature);
        assert_eq!(completion(&drafting, temperature), expected);
    }
    let [offered, accepted] = wait::until("accepted drafts of the model", || {
        let names = [
            "worker_orcd_model_draft_tokens_total",
            "worker_orcd_accepted_model_draft_tokens_total",
        ];
        let counted = drafting.client().try_metrics(names).ok()?;
        (counted[1] > 0).then_some(counted)
    });
    assert_eq!(offered, accepted);
    let vram = &drafting.client().health()["vram"];
    assert!(vram["draft_bytes"].as_u64() > vram["weights_bytes"].as_u64());
}
