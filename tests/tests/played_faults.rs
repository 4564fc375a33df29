//! Real child with injected faults on an emulated card: faults of the device come from kernels that fault in the
//! interpreter, and through the driver's sticky errors.
//!
//! `gpu_faults` has the features of a real card, such as its management library.

use serde_json::{Value, json};
use worker_orcd_tests::Worker;
use worker_orcd_tests::families::some_written_to;
use worker_orcd_tests::faults::{Expected, ON_A_GPU};
use worker_orcd_tests::played_cuda::PlayedCuda;
use worker_orcd_tests::worker::unique;

/// Family with a mixture of experts, sinks and windows.
const FAMILY: &str = "gpt-oss";

/// The nth request has this many prompt tokens and n more.
const PROMPT_TOKENS: usize = 10;

fn request(prompt_tokens: usize) -> Value {
    json!({
        "job_id": format!("job-{}", unique()), "prompt": "a".to_owned() + &" a".repeat(prompt_tokens - 1),
        "max_tokens": 12, "temperature": 0.8, "seed": 5, "ignore_eos": true,
    })
}

/// Rules with one fault of each kind, at the fourth token of its request, once.
fn rules(rows: &[Expected]) -> String {
    let mut generation = 1;
    let mut rules = Vec::new();
    for (n, row) in rows.iter().enumerate() {
        let prompt_tokens = n + PROMPT_TOKENS;
        let position = prompt_tokens + 3;
        let kind = row.kind;
        rules.push(format!(
            "{kind}@generation={generation},prompt-tokens={prompt_tokens},position={position}"
        ));
        generation += u32::from(row.label.is_some());
    }
    rules.join(";")
}

#[test]
fn a_stream_outlives_every_fault_of_the_device() {
    let Some(card) = PlayedCuda::of_this_build() else {
        return;
    };
    let folder = tempfile::tempdir().expect("a temporary directory");
    let families = some_written_to(folder.path(), &[FAMILY]);
    let path = families[0].path.as_ref().expect("its file");
    let worker = Worker::with_model(path)
        .arg("--kv-cache-size", "16MiB")
        .faults(&rules(&ON_A_GPU))
        .arg("--step-timeout", "15s")
        .arg("--max-restart-delay", "50ms");
    let worker = card.seen_by(worker).start();
    let client = worker.client();
    let ask = |n: usize| client.execute(&request(n + PROMPT_TOKENS)).transcript();
    let mut interrupted = Vec::new();
    for (n, row) in ON_A_GPU.iter().enumerate() {
        let transcript = ask(n);
        let deaths = u64::from(row.label.is_some());
        assert_eq!(transcript.end()["recoveries"], deaths, "{}", row.kind);
        interrupted.push(transcript.text());
    }
    let reports = worker.crash_reports();
    let rows: Vec<_> = ON_A_GPU.iter().filter(|row| row.label.is_some()).collect();
    assert_eq!(reports.len(), rows.len());
    for row in rows {
        let is_its = |report: &&Value| {
            let word = |name: &str| report["cause"][name].as_str().unwrap_or_default();
            row.fits(word("label"), word("text"))
        };
        assert!(
            reports.iter().any(|it| is_its(&it)),
            "{}: {reports:?}",
            row.kind
        );
    }
    for (n, row) in ON_A_GPU.iter().enumerate() {
        let undisturbed = ask(n);
        assert_eq!(undisturbed.end()["recoveries"], 0, "{}", row.kind);
        assert_eq!(undisturbed.text(), interrupted[n], "{}", row.kind);
    }
}
