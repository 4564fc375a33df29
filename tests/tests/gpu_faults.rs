//! Real child with injected faults on a real card: faults of the device, one after the other, and the driver's reports
//! of each.
//!
//! Needs a card: `cargo xtask kernels`, then `cargo test --workspace --test end_to_end -- --ignored --test-threads 1
//! gpu_faults::`. The chaos runner has a hundred of them under 32 streams (`bench/gpu/run.py faults`).

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use std::thread;
use std::time::{Duration, Instant};
use worker_orcd_tests::client::Transcript;
use worker_orcd_tests::faults::{ANYWHERE, Expected, ON_A_GPU};
use worker_orcd_tests::mappings::ORDERS;
use worker_orcd_tests::worker::unique;
use worker_orcd_tests::{Client, Worker, WorkerBuilder, process, wait};

const INSUFFICIENT_MEMORY: i32 = 66;
/// 16 MiB: variation of the driver's own usage.
const TOLERANCE_BYTES: u64 = 16 << 20;
/// The supervisor waits 5 s for the memory of a dead child.
const MEASURED_WITHIN: Duration = Duration::from_secs(7);

fn on_the_card(faults: &str) -> WorkerBuilder {
    Worker::real()
        .arg("--device", "cuda:0")
        .arg("--kv-cache-size", "256MiB")
        .faults(faults)
        .arg("--heartbeat-timeout", "1s")
        .arg("--step-timeout", "2s")
        .arg("--max-restart-delay", "50ms")
}

fn request(prompt_tokens: usize, max_tokens: u32) -> Value {
    json!({
        "job_id": format!("job-{}", unique()), "prompt": "a".to_owned() + &" a".repeat(prompt_tokens - 1),
        "max_tokens": max_tokens, "temperature": 0.8, "seed": 5, "ignore_eos": true,
    })
}

fn ask(client: &Client, prompt_tokens: usize, max_tokens: u32) -> Transcript {
    client
        .execute(&request(prompt_tokens, max_tokens))
        .transcript()
}

/// Report of that child's death, once it has the driver's data.
fn report(client: &Client, generation: u64) -> Option<Value> {
    let began = Instant::now();
    loop {
        let list = client.get("/crashes").json()["crashes"].clone();
        let crashes = list.as_array().into_iter().flatten();
        let mut of_it = crashes.filter(|crash| crash["generation"] == generation);
        let report = of_it.next().map(|crash| {
            let id = crash["id"].as_str().expect("an id");
            client.get(&format!("/crashes/{id}")).json()
        });
        let is_told = |report: &Value| {
            // Without a waiting request no token ends the report.
            let over =
                report["requests"]["count"] == 0 || report["timeline"]["first_token_ms"].is_f64();
            over && report["gpu"]["residual_bytes"].is_u64()
        };
        if report.as_ref().is_some_and(is_told) || began.elapsed() > MEASURED_WITHIN {
            return report;
        }
        thread::sleep(Duration::from_millis(50));
    }
}

/// Defects of a report for this kind of death.
fn complaints(row: &Expected, report: &Value) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut must = |holds: bool, what: &str| {
        if !holds {
            wrong.push(format!("{}: {what}", row.kind));
        }
    };
    let (cause, gpu) = (&report["cause"], &report["gpu"]);
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    must(
        row.fits(&text(&cause["label"]), &text(&cause["text"])),
        "another name",
    );
    if row.kind == "endless-kernel" {
        let stands = text(&report["flight_recorder"]["stands"]["text"]);
        println!("{stands}");
        // The copy was done although the kernel never ends.
        let is_told = stands.contains("the engine waits for the device; the device has ")
            && stands.contains(" to end, ")
            && stands.contains("step ");
        must(is_told, "nobody says where it stands");
    }
    must(gpu["baseline_bytes"].is_u64(), "no baseline");
    let residual = gpu["residual_bytes"].as_u64();
    must(
        residual.is_some_and(|it| it <= TOLERANCE_BYTES),
        "memory is left",
    );
    must(gpu["freed_after_ms"].is_f64(), "memory did not come back");
    must(gpu["recovery_action"] == "none", "a recovery action");
    let xids: Vec<_> = gpu["xids"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|xid| xid["xid"].as_u64())
        .collect();
    match row.xid {
        Some(number) => must(xids.contains(&Some(number)), "its Xid is not in the report"),
        None => must(xids.is_empty(), "an Xid"),
    }
    wrong
}

/// A step that only decodes permits the launch of another behind it; here it is the first, and no other command comes.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn an_idle_worker_answers_a_prompt_that_needs_no_prefill() {
    let worker = on_the_card("").start();
    let client = worker.client();
    // One token; and twice the same prompt of one token more than a page.
    for prompt_tokens in [1, 1, 33, 33] {
        let answer = ask(&client, prompt_tokens, 8);
        let end = answer.end();
        assert_eq!(end["tokens_out"], 8, "{prompt_tokens}: {end}");
        assert_eq!(end["recoveries"], 0, "{prompt_tokens}: {end}");
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn a_stream_outlives_every_fault_of_the_device() {
    let rows: Vec<_> = ANYWHERE.iter().chain(&ON_A_GPU).collect();
    // The nth request has 10 + n prompt tokens; its fault strikes at the fourth token, once.
    let mut generation = 1;
    let mut rules = Vec::new();
    for (n, row) in rows.iter().enumerate() {
        let position = n + 13;
        rules.push(format!(
            "{}@generation={generation},prompt-tokens={},position={position}",
            row.kind,
            n + 10
        ));
        generation += u32::from(row.label.is_some());
    }
    let worker = on_the_card(&rules.join(";")).start();
    let client = worker.client();
    let mut wrong = Vec::new();
    let mut interrupted = Vec::new();
    let mut generation = 1;
    for (n, row) in rows.iter().enumerate() {
        let transcript = ask(&client, n + 10, 12);
        let deaths = u64::from(row.label.is_some());
        if transcript.end()["recoveries"] != deaths {
            wrong.push(format!("{}: {}", row.kind, transcript.end()));
        }
        interrupted.push(transcript.text());
        if deaths == 0 {
            continue;
        }
        let Some(report) = report(&client, generation) else {
            wrong.push(format!("{}: no report", row.kind));
            continue;
        };
        wrong.extend(complaints(row, &report));
        println!(
            "{}: {} {} {}",
            row.kind, report["cause"], report["timeline"], report["gpu"]
        );
        generation += 1;
    }
    for (n, row) in rows.iter().enumerate() {
        let undisturbed = ask(&client, n + 10, 12);
        if undisturbed.end()["recoveries"] != 0 || undisturbed.text() != interrupted[n] {
            wrong.push(format!("{}: another text", row.kind));
        }
    }
    let health = client.health();
    println!("{} {}", health["device"], health["vram"]);
    assert_eq!(health["device"]["nvml"]["state"], "watching", "{health}");
    let (own, driver) = (
        &health["device"]["uuid"],
        &health["vram"]["driver_child_bytes"],
    );
    assert!(own.is_string() && driver.as_u64() > Some(0), "{health}");
    let metrics = client.get("/metrics").text();
    let of_gpu = metrics.lines().filter(|line| line.contains("_gpu_"));
    println!("{}", of_gpu.collect::<Vec<_>>().join("\n"));
    assert!(
        metrics.contains("gpu_xids_total{xid=\"31\"} 1"),
        "{metrics}"
    );
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A job that outgrows the cache ends alone.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn out_of_memory_in_a_job_ends_that_job() {
    // Eleven pages of 32 tokens.
    let worker = on_the_card("").arg("--kv-cache-size", "8MiB").start();
    let client = worker.client();
    let generation = worker.generation();
    let large = {
        let client = client.clone();
        thread::spawn(move || ask(&client, 20, 600))
    };
    let company: Vec<_> = [11, 12, 13]
        .map(|tokens| {
            let client = client.clone();
            thread::spawn(move || ask(&client, tokens, 60))
        })
        .into();
    let large = large.join().expect("it has an end");
    let error = large.error("VRAM_OOM");
    assert_eq!(error["retriable"], false, "{error}");
    for (tokens, company) in [11, 12, 13].into_iter().zip(company) {
        let company = company.join().expect("it has no reason to fail");
        assert_eq!(company.end()["tokens_out"], 60);
        assert_eq!(company.text(), ask(&client, tokens, 60).text());
    }
    assert_eq!(worker.generation(), generation, "nobody died of it");
    wait::until("its pages to be free", || {
        (client.health()["vram"]["kv_used_bytes"] == 0).then_some(())
    });
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn a_cache_of_less_than_a_page_is_refused_at_the_start() {
    let mut worker = on_the_card("").arg("--kv-cache-size", "1KiB").spawn();
    let status = worker.wait_exit();
    let log = worker.log.text();
    assert_eq!(status.code(), Some(INSUFFICIENT_MEMORY), "{log}");
    assert!(log.contains("KV cache"), "{log}");
}

/// Kills in the prompt of one request, and at the fourth token of the other.
const KILLS: &str = "kill@generation=3,position=200;\
                     kill@generation=4,prompt-tokens=10,position=13";

/// Each of the three reports proves that the child was there.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn a_kill_in_load_prefill_and_decode_costs_nothing() {
    let worker = on_the_card(KILLS).start();
    let client = worker.client();
    let child = |state: &str, generation: u64| {
        wait::until("the next child", || {
            let health = client.health();
            let is_it = health["state"] == state && health["child"]["generation"] == generation;
            is_it.then(|| health["child"]["pid"].as_u64().expect("a pid") as u32)
        })
    };
    process::signal(child("serving", 1), Signal::SIGKILL);
    process::signal(child("loading", 2), Signal::SIGKILL);
    child("serving", 3);
    let texts = [(300, 3), (10, 4)].map(|(tokens, generation)| {
        let transcript = ask(&client, tokens, 12);
        assert_eq!(transcript.end()["recoveries"], 1, "{tokens}");
        child("serving", generation + 1);
        transcript.text()
    });
    let report = |generation| report(&client, generation).expect("a report");
    assert_eq!(report(2)["child"]["state"], "loading", "{}", report(2));
    for (generation, phase) in [(3, "prefill"), (4, "decode")] {
        let report = report(generation);
        let steps = report["flight_recorder"]["last_steps"]
            .as_array()
            .expect("steps");
        let last = steps.last().expect("a step");
        assert_eq!(last["ended"], false, "{last}");
        assert_eq!(last["phases"][0], phase, "{last}");
    }
    for generation in 1..=4 {
        let gpu = report(generation)["gpu"].clone();
        println!("{generation}: {gpu}");
        let residual = gpu["residual_bytes"].as_u64();
        assert!(residual.is_some_and(|it| it <= TOLERANCE_BYTES), "{gpu}");
        assert!(gpu["freed_after_ms"].is_f64(), "{gpu}");
    }
    for (tokens, text) in [300, 10].into_iter().zip(texts) {
        assert_eq!(ask(&client, tokens, 12).text(), text);
    }
}

/// The second child detects it before it serves, the third loads the file, and the fourth adopts the weights of the
/// third.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn a_bit_that_flipped_in_kept_weights_is_found_on_a_card() {
    let worker = on_the_card("flipped-bit@generation=1").start();
    let client = worker.client();
    let serving = |generation: u64| {
        wait::until("the next child", || {
            let health = client.health();
            let is_it = health["state"] == "serving" && health["child"]["generation"] == generation;
            is_it.then_some(health)
        })
    };
    let kill = || worker.kill_child();
    let vram = serving(1)["vram"].clone();
    assert_eq!(vram["custody_bytes"], vram["weights_bytes"], "{vram}");
    kill();
    let health = serving(3);
    let answer = ask(&client, 10, 40).text();
    kill();
    let after = serving(4);
    assert_eq!(
        after["vram"]["custody_since"],
        health["vram"]["custody_since"]
    );
    assert_eq!(after["model"]["identity"], health["model"]["identity"]);
    assert_eq!(ask(&client, 10, 40).text(), answer);
    for (generation, label, words) in [
        (1, "signalled", ""),
        (2, "device", "WEIGHTS_CHANGED"),
        (3, "signalled", ""),
    ] {
        let report = report(&client, generation).expect("a report");
        assert_eq!(report["cause"]["label"], label, "{generation}: {report}");
        assert!(report["cause"].to_string().contains(words), "{report}");
        println!("{generation}: {} {}", report["timeline"], report["gpu"]);
        let residual = report["gpu"]["residual_bytes"].as_u64();
        assert!(residual.is_some_and(|it| it <= TOLERANCE_BYTES), "{report}");
    }
}

/// Compares the card's memory at the start of the next worker with that at the start of an undisturbed one.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn supervisor_child_and_standby_killed_in_any_order_leave_no_process_and_no_device_memory() {
    let begin = || {
        let worker = on_the_card("").flag("--standby").start();
        let health = wait::until("a child to stand by", || {
            let health = worker.client().health();
            (health["standby"]["state"] == "standing_by").then_some(health)
        });
        let pid = |child: &Value| child["pid"].as_u64().expect("a process") as u32;
        let pids = [
            worker.pid(),
            pid(&health["child"]),
            pid(&health["standby"]["child"]),
        ];
        let baseline = health["vram"]["baseline_bytes"].as_u64();
        (worker, pids, baseline.expect("a baseline"))
    };
    let mut untouched = None;
    for order in ORDERS {
        let (worker, pids, baseline) = begin();
        let first = *untouched.get_or_insert(baseline);
        println!("{order:?}: {baseline} bytes before it, {first} before the first");
        assert!(baseline <= first + TOLERANCE_BYTES);
        for victim in order {
            process::signal(pids[victim], Signal::SIGKILL);
        }
        wait::until("nobody to be left", || {
            let is_gone = |pid: &u32| !process::is_alive(*pid);
            pids.iter().all(is_gone).then_some(())
        });
        drop(worker);
    }
    let (_worker, _, baseline) = begin();
    println!("{baseline} bytes behind the last");
    assert!(Some(baseline) <= untouched.map(|first| first + TOLERANCE_BYTES));
}
