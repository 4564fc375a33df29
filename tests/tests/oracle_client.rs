//! Checks by independent programs: the `openai` package holds a conversation, Prometheus' own client parses the
//! metrics, and every streamed token can be derived again from the logits trace.

use serde_json::{Value, json};
use std::fs;
use worker_orcd_tests::model::shallow_model;
use worker_orcd_tests::oracle;
use worker_orcd_tests::worker::request;
use worker_orcd_tests::{Script, Worker, wait};

#[test]
fn the_openai_package_holds_a_streamed_chat() {
    let worker = Worker::shallow().start();
    let url = format!("http://{}", worker.client().address);
    oracle::run("openai_client.py", &[url.as_ref()]);
}

#[test]
fn the_openai_package_calls_a_tool_and_sends_back_its_result() {
    asks_a_model_that_calls("openai_tools.py");
}

#[test]
fn the_openai_package_speaks_responses() {
    asks_a_model_that_calls("openai_responses.py");
}

/// Runs a script. The scripted model repeats its prompt, so a message determines its output: here reasoning, a text and
/// a call.
fn asks_a_model_that_calls(script: &str) {
    let template = "{% if tools and false %}<tool_call><think>{% endif %}{% for message in messages %}\
                    {{ message.content }}{{ message.tool_calls }}{% endfor %}<|end|>";
    let model = Script::behave().chat_template(template.to_owned());
    let worker = Worker::scripted(model).start();
    let url = format!("http://{}", worker.client().address);
    let answer = "<think>\nTwo numbers.\n</think>\n\nI look.\n<tool_call>\n{\"name\": \"add\", \"arguments\": \
                  {\"a\": 1, \"b\": 2}}\n</tool_call>";
    oracle::run(script, &[url.as_ref(), answer.as_ref()]);
}

#[test]
fn prometheus_own_client_reads_both_forms_of_the_metrics() {
    let worker = Worker::scripted(Script::behave()).start();
    let client = worker.client();
    let _ = client.execute(&request("abc", 5)).transcript().end();
    // The answer is counted shortly after its end.
    wait::until("the answer to be counted", || {
        let counted = "worker_orcd_request_generation_tokens_sum 5.0";
        let text = client.get("/metrics").text();
        text.lines().any(|line| line == counted).then_some(())
    });
    let url = format!("http://{}", client.address);
    oracle::run("metrics.py", &[url.as_ref(), "5".as_ref()]);
}

/// The check of `cargo xtask haiku`: a stub without the model cannot pass, because this sampler is an independent one,
/// in another language.
#[test]
fn every_streamed_token_is_derived_again_from_the_trace() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let trace = folder.path().join("trace.jsonl");
    let worker = Worker::shallow()
        .arg("--trace-logits", trace.display())
        .arg("--trace-values", 1_000_000)
        .start();
    let transcripts: Vec<Value> = parameters()
        .into_iter()
        .enumerate()
        .map(|(n, p)| transcript(&worker, n, p))
        .collect();
    drop(worker);

    let path = folder.path().join("transcripts.json");
    fs::write(&path, Value::from(transcripts).to_string()).expect("the directory is ours");
    oracle::run(
        "rederive.py",
        &[
            shallow_model().as_os_str(),
            trace.as_os_str(),
            path.as_os_str(),
        ],
    );
}

/// Every step of the sampler alone, then all of them at once.
fn parameters() -> Vec<Value> {
    vec![
        json!({"temperature": 0.0}),
        json!({"temperature": 0.0, "repetition_penalty": 1.3, "frequency_penalty": 0.4}),
        json!({"temperature": 1.0}),
        json!({"temperature": 0.8, "top_k": 40}),
        json!({"temperature": 0.8, "top_p": 0.9}),
        json!({"temperature": 1.2, "min_p": 0.05}),
        json!({
            "temperature": 0.7, "top_k": 50, "top_p": 0.95, "min_p": 0.02,
            "repetition_penalty": 1.1, "presence_penalty": 0.3,
        }),
    ]
}

/// One request, and the events that a client received.
fn transcript(worker: &Worker, number: usize, parameters: Value) -> Value {
    const PROMPT: &str = "Once upon a time, in a village by the sea, there lived";
    let mut parameters = parameters;
    parameters["seed"] = json!(0x5eed_0000 + number as u64);
    let mut request = parameters.clone();
    request["job_id"] = json!(format!("derive-{number}"));
    request["prompt"] = json!(PROMPT);
    request["max_tokens"] = json!(32);
    let streamed = worker.client().execute(&request).transcript();
    let end = streamed.end();
    json!({
        "prompt": PROMPT,
        "text": streamed.text(),
        "tokens_in": end["tokens_in"],
        "tokens_out": end["tokens_out"],
        "stop_reason": end["stop_reason"],
        "parameters": parameters,
    })
}
