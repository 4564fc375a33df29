//! Recurrent states outlive the child and the supervisor, and are found by the next turn of a conversation, like keys and
//! values.

use serde_json::{Value, json};
use std::fs;
use worker_orcd_gpu::model::Architecture;
use worker_orcd_gpu::model::tiny_model::tiny_model;
use worker_orcd_tests::{Bystander, Worker, wait};

/// Bytes of the prompt: a token each.
const PROMPT: usize = 1000;
const CONTEXT: u32 = 16_384;

fn body(prompt: &str, max_tokens: u32) -> Value {
    json!({
        "prompt": prompt, "max_tokens": max_tokens, "temperature": 0.7, "seed": 3, "ignore_eos": true,
    })
}

#[test]
fn a_recurrent_state_is_adopted_upgraded_and_shared_by_the_next_turn() {
    for architecture in [
        Architecture::Qwen35,
        Architecture::Lfm2,
        Architecture::GraniteHybrid,
        Architecture::NemotronHMoe,
    ] {
        is_adopted_upgraded_and_shared(architecture);
    }
}

fn is_adopted_upgraded_and_shared(architecture: Architecture) {
    let folder = tempfile::tempdir().expect("a directory");
    let path = folder.path().join("m.gguf");
    let key = format!("{}.context_length", architecture.name());
    let model = tiny_model(architecture).meta(&key, CONTEXT);
    fs::write(&path, model.build()).expect("the directory is ours");
    let worker = Worker::with_model(&path).flag("--standby").start();
    let client = worker.client();
    let prompt = "0123456789".repeat(PROMPT / 10);
    let bystander = Bystander::new(client.clone(), body(&prompt, 600));
    let alone = bystander.alone();
    let stands_by = || {
        let health = client.health();
        let standby = &health["standby"];
        let is_behind = standby["adopts_from"] == health["child"]["generation"];
        (standby["state"] == "standing_by" && is_behind).then_some(())
    };
    wait::until("a child to stand by", stands_by);

    let mut stream = bystander.begin();
    stream.more(10);
    worker.kill_child();
    stream.more(5);
    let adopted = wait::until("pages to be adopted", || {
        let names = [
            "worker_orcd_kv_changed_pages_total",
            "worker_orcd_kv_adopted_tokens_total",
        ];
        let [changed, adopted] = client.try_metrics(names).expect("the metrics");
        assert_eq!(changed, 0);
        Some(adopted as usize).filter(|adopted| *adopted > 0)
    });
    assert!(adopted >= PROMPT, "{adopted}");
    worker.upgrade();
    let (text, end) = stream.end();
    assert_eq!(text, alone);
    assert_eq!(end["recoveries"], 1);

    let ask = |prompt: &str| client.post("/v1/completions", &body(prompt, 16)).json();
    ask(&prompt);
    let answer = ask(&format!("{prompt} And then?"));
    let cached = &answer["usage"]["prompt_tokens_details"]["cached_tokens"];
    // The last whole block of the prompt.
    assert_eq!(cached.as_u64(), Some(PROMPT as u64 / 32 * 32), "{answer}");
}
