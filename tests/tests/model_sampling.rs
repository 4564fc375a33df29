//! Sampling defaults of a model file (`general.sampling.*`), through real binaries.

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use tempfile::TempDir;
use worker_orcd_gpu::model::tiny_model::tiny_model;
use worker_orcd_gpu::model::{Architecture, GgufBuilder, Meta};
use worker_orcd_tests::worker::unique;
use worker_orcd_tests::{Client, Worker, process, wait};

const ROUTES: [&str; 3] = ["/execute", "/v1/completions", "/v1/chat/completions"];
const TEMPERATURE: &str = "general.sampling.temp";

/// Small model with these keys.
struct Model {
    _dir: TempDir,
    path: PathBuf,
}

impl Model {
    fn with(keys: &[(&str, Meta)]) -> Self {
        let add = |file: GgufBuilder, (key, value): &(&str, Meta)| file.meta(key, value.clone());
        let file = keys.iter().fold(tiny_model(Architecture::Llama), add);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tiny.gguf");
        fs::write(&path, file.build()).unwrap();
        Self { _dir: dir, path }
    }

    fn worker(&self) -> Worker {
        Worker::with_model(&self.path).start()
    }
}

/// Complete response of a route, with `extra` in the request.
fn answer(client: &Client, route: &str, extra: &Value) -> String {
    let mut body = json!({ "max_tokens": 24, "ignore_eos": true });
    match route {
        "/v1/chat/completions" => body["messages"] = json!([{ "role": "user", "content": "ab" }]),
        _ => body["prompt"] = json!("Once upon a time"),
    }
    let members = body.as_object_mut().unwrap();
    members.extend(extra.as_object().unwrap().clone());
    if route == "/execute" {
        body["job_id"] = json!(format!("sampling-{}", unique()));
        let transcript = client.execute(&body).transcript();
        assert_eq!(transcript.end()["tokens_out"], 24);
        return transcript.text();
    }
    let response = client.post(route, &body);
    assert_eq!(response.status, 200, "{}", response.text());
    let choice = &response.json()["choices"][0];
    let text = choice["text"]
        .as_str()
        .or(choice["message"]["content"].as_str());
    text.expect("a text").to_owned()
}

fn defaults(client: &Client) -> Value {
    client.health()["model"]["sampling_defaults"].clone()
}

/// Log record of this name, which may still be in transit.
fn logged(worker: &Worker, name: &str) -> Value {
    let records = wait::until(name, || {
        let records = worker.log.events(name);
        (!records.is_empty()).then_some(records)
    });
    assert_eq!(records.len(), 1, "{records:?}");
    records[0].clone()
}

#[test]
fn what_a_request_omits_is_as_the_file_says_on_every_route_and_what_it_gives_wins() {
    let plain = Model::with(&[]).worker();
    let greedy = Model::with(&[(TEMPERATURE, Meta::F32(0.0))]).worker();
    let (plain_client, client) = (plain.client(), greedy.client());
    for route in ROUTES {
        let expected = answer(&plain_client, route, &json!({ "temperature": 0 }));
        for seed in [1, 2] {
            let found = answer(&client, route, &json!({ "seed": seed }));
            assert_eq!(found, expected, "{route}");
        }
        // 1 is the default without any setting.
        let drawn = answer(&plain_client, route, &json!({ "seed": 7 }));
        assert_ne!(drawn, expected, "{route}");
        let given = json!({ "seed": 7, "temperature": 1 });
        assert_eq!(answer(&client, route, &given), drawn, "{route}");
    }
    let own = json!({
        "temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0,
        "frequency_penalty": 0.0, "presence_penalty": 0.0, "from_file": [],
    });
    assert_eq!(defaults(&plain_client), own);
    let mut of_file = own;
    of_file["temperature"] = json!(0.0);
    of_file["from_file"] = json!(["temperature"]);
    assert_eq!(defaults(&client), of_file);
    assert_eq!(logged(&greedy, "model_sampling")["temperature"], 0.0);
}

#[test]
fn every_key_reaches_the_sampler() {
    let plain = Model::with(&[]).worker();
    let seeded = |client: &Client, mut extra: Value| {
        extra["seed"] = json!(5);
        answer(client, "/execute", &extra)
    };
    let nothing = seeded(&plain.client(), json!({}));
    for (key, name, value) in [
        ("temp", "temperature", Meta::F32(0.25)),
        ("top_k", "top_k", Meta::I32(2)),
        ("top_p", "top_p", Meta::F32(0.25)),
        ("min_p", "min_p", Meta::F32(0.75)),
        ("penalty_repeat", "repetition_penalty", Meta::F32(2.0)),
    ] {
        let given = match value {
            Meta::F32(value) => json!(value),
            Meta::I32(value) => json!(value),
            _ => unreachable!(),
        };
        let worker = Model::with(&[(&format!("general.sampling.{key}"), value)]).worker();
        let client = worker.client();
        let expected = seeded(&client, json!({ name: given }));
        assert_eq!(seeded(&client, json!({})), expected, "{name}");
        assert_ne!(expected, nothing, "{name}");
        assert_eq!(defaults(&client)[name], given);
        assert_eq!(defaults(&client)["from_file"], json!([name]));
    }
}

#[test]
fn what_cannot_be_followed_is_named_and_costs_nothing() {
    let model = Model::with(&[
        (TEMPERATURE, Meta::F32(7.5)),
        ("general.sampling.top_k", Meta::Str("many".to_owned())),
        ("general.sampling.top_p", Meta::F32(f32::NAN)),
        ("general.sampling.min_p", Meta::F32(0.9)),
        ("general.sampling.mirostat", Meta::I32(2)),
        ("general.sampling.sequence", Meta::Str("top_k".to_owned())),
    ]);
    let worker = model.worker();
    let client = worker.client();
    let keys = |name: &str| logged(&worker, name)["keys"].to_string();
    let refused = keys("model_sampling_out_of_range");
    for key in ["temp", "top_k", "top_p"] {
        assert!(refused.contains(&format!("general.sampling.{key}")));
    }
    assert!(!refused.contains("min_p"), "{refused}");
    let unsupported = keys("model_sampling_unsupported");
    assert!(unsupported.contains("general.sampling.mirostat"));
    assert!(unsupported.contains("general.sampling.sequence"));
    assert_eq!(defaults(&client)["from_file"], json!(["min_p"]));
    let given = json!({ "temperature": 1, "top_k": 0, "top_p": 1, "min_p": 0.9, "seed": 3 });
    let expected = answer(&client, "/execute", &given);
    assert_eq!(answer(&client, "/execute", &json!({ "seed": 3 })), expected);
}

#[test]
fn a_flag_keeps_the_documented_defaults() {
    let model = Model::with(&[(TEMPERATURE, Meta::F32(0.0))]);
    let worker = Worker::with_model(&model.path)
        .flag("--no-model-sampling")
        .start();
    let client = worker.client();
    let seeded = |extra: Value| answer(&client, "/v1/completions", &extra);
    let drawn = seeded(json!({ "seed": 7 }));
    assert_eq!(drawn, seeded(json!({ "seed": 7, "temperature": 1 })));
    assert_ne!(drawn, seeded(json!({ "temperature": 0 })));
    assert_eq!(defaults(&client)["temperature"], 1.0);
    assert_eq!(defaults(&client)["from_file"], json!([]));
}

#[test]
fn the_defaults_of_a_running_worker_outlive_an_edit_of_its_file_and_a_death() {
    let model = Model::with(&[(TEMPERATURE, Meta::F32(0.0))]);
    let worker = model.worker();
    let client = worker.client();
    let (before, told) = (
        answer(&client, "/execute", &json!({ "seed": 1 })),
        defaults(&client),
    );
    edit_float(&model.path, TEMPERATURE, 2.0);
    let child = worker.child_pid().expect("a child serves");
    process::signal(child, Signal::SIGKILL);
    let again = || answer(&client, "/execute", &json!({ "seed": 1 }));
    assert_eq!(again(), before, "admitted before the next child was there");
    wait::until("the next child", || {
        let serves = worker.log.events("child_ready").len() > 1;
        (serves && worker.child_pid() != Some(child)).then_some(())
    });
    assert_eq!(again(), before);
    assert_eq!(defaults(&client), told);
    assert_eq!(worker.log.events("model_sampling").len(), 1);
}

/// Changes a float value of the header; the key is followed by a type, then the value.
fn edit_float(path: &Path, key: &str, value: f32) {
    let bytes = fs::read(path).unwrap();
    let mut windows = bytes.windows(key.len());
    let at = windows.position(|window| window == key.as_bytes());
    let at = at.expect("the file has the key") + key.len() + 4;
    let file = OpenOptions::new().write(true).open(path).unwrap();
    file.write_all_at(&value.to_le_bytes(), at as u64).unwrap();
}
