//! Unusable model files: the worker ends with a message and an exit code.

use serde_json::json;
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;
use worker_orcd_gpu::model::gguf_builder::GgufBuilder;
use worker_orcd_gpu::model::tiny_model::{VOCAB, tiny_model};
use worker_orcd_gpu::model::{Architecture, Meta};
use worker_orcd_tests::hostile_gguf::headers;
use worker_orcd_tests::model::real_model;
use worker_orcd_tests::worker::request;
use worker_orcd_tests::{Worker, process};

const USAGE: i32 = 2;
const MODEL_LOAD: i32 = 65;
const INSUFFICIENT_MEMORY: i32 = 66;
const DEVICE_UNAVAILABLE: i32 = 67;

/// Writes the file to the directory.
fn written(directory: &TempDir, file: &GgufBuilder) -> PathBuf {
    let path = directory.path().join("m.gguf");
    fs::write(&path, file.build()).unwrap();
    path
}

fn is_refused_as(file: &GgufBuilder, words: &str) {
    let directory = tempfile::tempdir().unwrap();
    is_refused(&written(&directory, file), words);
}

fn is_refused(path: &Path, words: &str) {
    let log = Worker::with_model(path).ends_with(MODEL_LOAD, &[words]);
    // At the death, and at the end of the worker.
    let told = log.matches("the model cannot be loaded").count();
    assert!(told <= 2, "told {told} times: {log}");
}

#[test]
fn lying_headers_end_the_start_with_what_is_wrong() {
    let dir = tempfile::tempdir().unwrap();
    for lie in headers() {
        let path = dir.path().join(lie.name).with_extension("gguf");
        fs::write(&path, &lie.bytes).unwrap();
        is_refused(&path, lie.says);
    }
}

#[test]
fn a_real_model_cut_short_ends_the_start() {
    let whole = fs::read(real_model()).unwrap();
    let dir = tempfile::tempdir().unwrap();
    for (name, keep) in [("half", whole.len() / 2), ("nearly", whole.len() - 1)] {
        let path = dir.path().join(name).with_extension("gguf");
        fs::write(&path, &whole[..keep]).unwrap();
        is_refused(&path, "past");
    }
}

#[test]
fn an_unknown_architecture_is_named() {
    let file = tiny_model(Architecture::Llama).meta("general.architecture", "mamba");
    let needs = "architecture mamba is not supported: it needs state-space layers";
    is_refused_as(&file, needs);
}

#[test]
fn an_unknown_tensor_type_is_named() {
    let file = tiny_model(Architecture::Llama)
        .without_tensor("output_norm.weight")
        .push_tensor("output_norm.weight", 19, &[256], vec![0; 64]);
    is_refused_as(&file, "IQ1_S");
}

#[test]
fn an_unknown_tokenizer_is_named() {
    let file = tiny_model(Architecture::Llama).meta("tokenizer.ggml.pre", "viking-9000");
    is_refused_as(&file, "viking-9000");
}

#[test]
fn a_template_that_cannot_be_compiled_ends_chat_and_nothing_else() {
    let directory = tempfile::tempdir().unwrap();
    let file =
        tiny_model(Architecture::Llama).meta("tokenizer.chat_template", "{% for message in %}");
    let worker = Worker::with_model(written(&directory, &file)).start();
    let body = json!({ "messages": [{ "role": "user", "content": "hello" }] });
    let refusal = worker.client().post("/v1/chat/completions", &body);
    assert_eq!(refusal.status, 400, "{}", refusal.text());
    assert!(
        refusal.text().contains("template cannot be compiled"),
        "{}",
        refusal.text()
    );
    worker.assert_serves();
}

#[test]
fn a_template_or_token_beyond_all_measure_is_named() {
    let template = "x".repeat(50 << 20);
    let mut tokens = vec![String::new(); VOCAB as usize];
    tokens[7] = "t".repeat(100 << 20);
    let many = Meta::Strings(vec![String::new(); 4 << 20]);
    for (key, value) in [
        ("tokenizer.chat_template", Meta::Str(template.clone())),
        ("tokenizer.ggml.tokens", Meta::Strings(tokens)),
        ("tokenizer.ggml.merges", many),
        ("tokenizer.ggml.model", Meta::Str(template.clone())),
        ("general.architecture", Meta::Str(template.clone())),
        ("general.name", Meta::Str(template)),
    ] {
        let file = tiny_model(Architecture::Llama).meta(key, value);
        let named = match key {
            // The limit is on the sum of both lists.
            "tokenizer.ggml.merges" => "a vocabulary of",
            key => key,
        };
        is_refused_as(&file, named);
    }
}

#[test]
fn a_missing_tensor_and_a_missing_key_are_named() {
    let tensor = "blk.1.ffn_down.weight";
    is_refused_as(
        &tiny_model(Architecture::Llama).without_tensor(tensor),
        tensor,
    );
    let key = "llama.block_count";
    is_refused_as(&tiny_model(Architecture::Llama).without_meta(key), key);
}

#[test]
fn a_model_that_is_not_there_is_named() {
    let path = "/no/such/model.gguf";
    Worker::with_model(path).ends_with(USAGE, &[path]);
}

#[test]
fn a_model_larger_than_memory_names_required_and_available() {
    // Sparse: its feed-forward tensors have 256 GiB each, which the file system does not allocate.
    const N_FF: u64 = 1 << 30;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("huge.gguf");
    let mut file = tiny_model(Architecture::Llama).meta("llama.feed_forward_length", N_FF as u32);
    for layer in 0..2 {
        for (part, shape) in [
            ("gate", [64, N_FF]),
            ("up", [64, N_FF]),
            ("down", [N_FF, 64]),
        ] {
            let name = format!("blk.{layer}.ffn_{part}.weight");
            file = file.without_tensor(&name);
            file = file.push_tensor(&name, 0, &shape, vec![]);
        }
    }
    let bytes = file.build();
    fs::write(&path, &bytes).unwrap();
    let grown = fs::OpenOptions::new().write(true).open(&path).unwrap();
    grown
        .set_len(bytes.len() as u64 + (2 << 40))
        .expect("a sparse file");
    let words = ["required", "available", "cpu", "huge.gguf"];
    Worker::with_model(&path).ends_with(INSUFFICIENT_MEMORY, &words);
}

#[test]
fn a_cache_larger_than_memory_names_required_and_available() {
    let worker = Worker::shallow().arg("--kv-cache-size", "65536GiB");
    worker.ends_with(INSUFFICIENT_MEMORY, &["required", "available", "cpu"]);
}

#[test]
fn a_cache_smaller_than_a_page_is_told_from_too_little_memory() {
    let worker = Worker::shallow().arg("--kv-cache-size", "1KiB");
    let words = ["the KV cache ordered on cpu", "1024 available"];
    worker.ends_with(INSUFFICIENT_MEMORY, &words);
}

/// The first obstacle is reported: kernels are useless without a driver.
#[test]
fn a_device_that_is_not_there_is_a_clear_sentence_and_a_number() {
    let worker = Worker::shallow().arg("--device", "cuda:99");
    let log = worker.ends_with(DEVICE_UNAVAILABLE, &["no such device", "cuda:99"]);
    let has_driver = Path::new("/proc/driver/nvidia/version").exists();
    assert!(has_driver || log.contains("no CUDA driver"), "{log}");
}

#[test]
fn every_architecture_is_served_and_a_request_too_long_for_its_context_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    for architecture in Architecture::ALL {
        let path = dir.path().join(architecture.name()).with_extension("gguf");
        fs::write(&path, tiny_model(architecture).build()).unwrap();
        let worker = Worker::with_model(&path).start();
        let health = worker.client().health();
        assert_eq!(
            health["model"]["architecture"],
            architecture.name(),
            "{health}"
        );
        worker.assert_serves();
        // The context holds 256 tokens of a byte each.
        let refusal = worker
            .client()
            .post("/execute", &request(&"x".repeat(300), 1));
        let text = refusal.text();
        assert!(
            refusal.status == 400 || text.contains("INVALID_REQUEST"),
            "{text}"
        );
        worker.assert_serves();
        assert!(process::is_alive(worker.child_pid().unwrap()));
    }
}

#[test]
fn a_job_that_never_fits_the_cache_ends_alone() {
    let directory = tempfile::tempdir().unwrap();
    let path = written(&directory, &tiny_model(Architecture::Llama));
    let worker = Worker::with_model(path)
        .arg("--kv-cache-size", 16 << 10)
        .start();
    let generation = worker.generation();
    let mut body = request(&"x".repeat(200), 50);
    body["temperature"] = json!(0.0);
    let transcript = worker.client().execute(&body).transcript();
    let error = transcript.error("VRAM_OOM");
    assert_eq!(error["retriable"], false, "{error}");
    let message = error["message"].as_str().unwrap();
    let numbers = message
        .split_whitespace()
        .filter_map(|word| word.parse().ok());
    let [needed, available]: [u64; 2] = numbers.collect::<Vec<_>>().try_into().unwrap();
    assert!(available <= 16 << 10 && needed > available, "{message}");
    worker.assert_serves();
    assert_eq!(worker.generation(), generation, "nobody died of it");
}
