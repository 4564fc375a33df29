//! Bundle for a GPU machine, tested without one: its Python has tests of its own, and the CPU device serves the random
//! models that it makes, with measurements and checks.

use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;
use worker_orcd_tests::model::repository_root;
use worker_orcd_tests::worker::request;
use worker_orcd_tests::{Client, Worker};

fn python(script: &str, arguments: &[&str]) -> Output {
    let mut command = Command::new("python3");
    command
        .arg("-B")
        .arg(repository_root().join("bench/gpu").join(script))
        .args(arguments);
    let output = command.output().expect("python3 is there");
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{script} {arguments:?}: {told}");
    output
}

fn model(kind: &str) -> (TempDir, PathBuf) {
    model_of("0.5b", kind, &[])
}

/// Model with two layers and a short vocabulary; its widths are real.
fn model_of(shape: &str, kind: &str, flags: &[&str]) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let path = folder.path().join(format!("{shape}-{kind}.gguf"));
    let name = path.to_str().expect("an ordinary path");
    let shallow = ["--layers", "2", "--vocabulary", "3000"];
    python(
        "models.py",
        &[&[shape, kind, name], &shallow[..], flags].concat(),
    );
    (folder, path)
}

#[test]
fn the_bundle_keeps_its_own_tests() {
    python("test_bundle.py", &[]);
}

#[test]
fn models_with_random_weights_answer_with_text() {
    for kind in ["F16", "Q8_0", "Q4_K_M"] {
        let (_folder, path) = model(kind);
        let worker = Worker::with_model(path).start();
        let answers = ["Q W E R T Y", "Z X C V B N"].map(|prompt| ask(&worker.client(), prompt));
        assert_ne!(answers[0], answers[1], "{kind}: the prompt decides nothing");
        let again = ask(&worker.client(), "Q W E R T Y");
        assert_eq!(answers[0], again, "{kind}");
    }
}

/// llama.cpp draws the same tokens from such files (`tests/oracle/random_models.py`).
#[test]
fn every_shape_answers_a_chat_in_its_own_template() {
    for (shape, kind, experts) in [
        ("0.5b", "Q4_K_M", None),
        ("7b", "Q4_K_M", None),
        ("8b", "Q4_K_M", None),
        ("30b-a3b", "Q4_K_M", Some("16")),
        ("30b-a3b", "MXFP4_MOE", Some("16")),
        ("gpt-oss-20b", "MXFP4_MOE", Some("8")),
    ] {
        let experts = experts.into_iter().flat_map(|it| ["--experts", it]);
        let flags: Vec<_> = ["--layers", "1"].into_iter().chain(experts).collect();
        let (_folder, path) = model_of(shape, kind, &flags);
        let worker = Worker::with_model(path)
            .arg("--kv-cache-size", "64MiB")
            .start();
        let client = worker.client();
        let chat = |words: &str| {
            let messages = json!([{"role": "user", "content": words}]);
            let shown = client.post("/apply-template", &json!({"messages": messages}));
            let prompt = format!("<|im_start|>user\n{words}<|im_end|>\n<|im_start|>assistant\n");
            assert_eq!(shown.json()["prompt"], prompt, "{shape}");
            let body = json!({"messages": messages, "max_tokens": 12, "temperature": 0, "ignore_eos": true});
            let answer = client.post("/v1/chat/completions", &body);
            assert_eq!(answer.status, 200, "{shape}-{kind}: {}", answer.text());
            let answer = answer.json();
            assert_eq!(answer["usage"]["completion_tokens"], 12, "{answer}");
            let said = answer["choices"][0]["message"]["content"].as_str();
            said.expect("a text").to_owned()
        };
        let said = chat("Q W E R T Y");
        assert!(
            said.len() >= 12,
            "{shape}-{kind}: each token is a text: {said:?}"
        );
        assert_ne!(said, chat("Z X C V B N"), "{shape}-{kind}");
    }
}

/// Answer with a text for every token.
fn ask(client: &Client, prompt: &str) -> String {
    let mut body = request(prompt, 40);
    body["temperature"] = json!(0.0);
    body["ignore_eos"] = json!(true);
    let transcript = client.execute(&body).transcript();
    let end = transcript.end();
    assert_eq!(end["tokens_in"], 6, "a capital letter is a token: {end}");
    let tokens = transcript
        .names()
        .iter()
        .filter(|name| **name == "token")
        .count();
    assert_eq!(tokens, 40, "{end}");
    transcript.text()
}

#[test]
fn both_sides_are_checked_and_measured() {
    let (_folder, path) = model("Q8_0");
    for side in ["bare", "served"] {
        let findings = findings(side, &path, &[]);
        let of = |what: &str| -> Vec<&Value> {
            findings
                .iter()
                .filter(|found| found["what"] == what)
                .collect()
        };
        assert!(of("check").iter().all(|check| check["equal"] == true));
        assert_eq!(of("check").len(), 1, "{findings:?}");
        let decoded: Vec<_> = of("decode").iter().map(|it| &it["batch"]).collect();
        assert_eq!(decoded, [1, 3], "{findings:?}");
        let rates = of("decode").into_iter().map(|it| &it["tokens_per_second"]);
        assert!(
            rates.into_iter().all(|rate| rate.as_f64() > Some(0.0)),
            "{findings:?}"
        );
        let prompts: Vec<_> = of("prompt").iter().map(|it| &it["tokens"]).collect();
        assert_eq!(prompts, [32, 96], "{findings:?}");
        for found in &findings {
            assert_eq!(found["side"], side, "{found}");
        }
    }
}

#[test]
fn long_contexts_and_arriving_prompts_are_measured() {
    let (_folder, path) = model("F16");
    let long = ["--measure", "long,mixed", "--long", "1x96,2x48"];
    let mixed = ["--mixed-streams", "2", "--arriving-tokens", "48"];
    let short = [
        "--every-ms",
        "20",
        "--mixed-tokens",
        "32",
        "--kv-cache",
        "16",
    ];
    let findings = findings("served", &path, &[&long[..], &mixed, &short].concat());
    let crowds: Vec<_> = findings
        .iter()
        .filter(|found| found["what"] == "long")
        .inspect(|found| assert!(found["tokens_per_second"].as_f64() > Some(0.0), "{found}"))
        .map(|found| (found["streams"].as_u64(), found["positions"].as_u64()))
        .collect();
    assert_eq!(crowds, [(Some(1), Some(96)), (Some(2), Some(48))]);
    let mixed = findings.last().expect("findings");
    assert_eq!(mixed["what"], "mixed", "{findings:?}");
    assert_eq!(mixed["first_tokens"]["count"], mixed["answered"]);
    for name in ["answered", "p99_over_p50_alone"] {
        assert!(mixed[name].as_f64() > Some(0.0), "{name}: {mixed}");
    }
    let measured: Vec<_> = findings.iter().map(|found| &found["what"]).collect();
    assert_eq!(measured, ["ready", "check", "long", "long", "mixed"]);
}

#[test]
fn a_batch_without_room_is_not_measured_and_says_so() {
    let (_folder, path) = model("F16");
    // 176 positions of two layers take 176 KiB or more: nine of them do not fit into 1 MiB.
    let findings = findings("bare", &path, &["--kv-cache", "1", "--batches", "9"]);
    let last = findings.iter().rfind(|found| found["what"] == "decode");
    assert!(
        last.is_some_and(|found| found["not_run"].is_string()),
        "{findings:?}"
    );
}

fn findings(side: &str, model: &Path, flags: &[&str]) -> Vec<Value> {
    let output = Command::new(env!("CARGO_BIN_EXE_bench-gpu"))
        .arg(side)
        .arg("--model")
        .arg(model)
        .args(["--device", "cpu", "--batches", "1,3", "--prompts", "32,96"])
        .args(["--prompt-tokens", "16", "--tokens", "16", "--rounds", "1"])
        .args(["--check-tokens", "6", "--chunk", "64"])
        .args(if flags.is_empty() {
            &["--kv-cache", "16"]
        } else {
            flags
        })
        .output()
        .expect("bench-gpu starts");
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{side}: {told}");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect()
}
