//! NVIDIA's driver as a source of evidence about the child: tested with a real worker, a scripted child, and a fake
//! `libnvidia-ml.so.1`.

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use std::path::Path;
use std::time::{Duration, Instant};
use worker_orcd_tests::nvml::PlayedNvml;
use worker_orcd_tests::worker::request;
use worker_orcd_tests::{Client, Script, Worker, process, wait};

const MIB: u64 = 1 << 20;
const BASELINE: u64 = 4 * MIB;

fn started(played: &PlayedNvml) -> Worker {
    let worker = played.seen_by(Worker::scripted(Script::behave())).start();
    wait::until("NVML to be watched", || {
        (nvml_state(&worker.client()) == "watching").then_some(())
    });
    worker
}

fn nvml_state(client: &Client) -> Value {
    client.health()["device"]["nvml"]["state"].clone()
}

/// GPU with its memory held by the worker's child.
fn held_by_child(played: &mut PlayedNvml, worker: &Worker) -> u32 {
    let child = worker.child_pid().expect("a child serves");
    played.plays(&format!("process {child} {}", 600 * MIB));
    wait::until("the driver's count of the child's memory", || {
        let bytes = &worker.client().health()["vram"]["driver_child_bytes"];
        (*bytes == 600 * MIB).then_some(())
    });
    child
}

fn report(client: &Client, is_wanted: impl Fn(&Value) -> bool) -> Value {
    wait::until("a crash report", || {
        let list = client.get("/crashes").json();
        let id = list["crashes"][0]["id"].as_str()?.to_owned();
        let report = client.get(&format!("/crashes/{id}")).json();
        is_wanted(&report).then_some(report)
    })
}

#[test]
fn without_the_library_a_cuda_worker_serves_and_says_what_it_does_not_know() {
    if Path::new("/proc/driver/nvidia/version").exists() {
        eprintln!("skipped: this machine has the real library");
        return;
    }
    let worker = Worker::scripted(Script::behave())
        .arg("--device", "cuda:0")
        .start();
    wait::until("the library to be missed", || {
        (nvml_state(&worker.client()) == "absent").then_some(())
    });
    let health = worker.client().health();
    assert_eq!(health["status"], "healthy");
    let reason = health["device"]["nvml"]["reason"]
        .as_str()
        .expect("a reason");
    assert!(reason.contains("libnvidia-ml.so.1"), "{reason}");
    for field in ["temperature_celsius", "ecc", "last_xid", "recovery_action"] {
        assert!(health["device"][field].is_null(), "{field}: {health}");
    }
    for field in ["driver_used_bytes", "baseline_bytes", "residual_bytes"] {
        assert!(health["vram"][field].is_null(), "{field}: {health}");
    }
    worker.kill_child();
    let report = report(&worker.client(), |report| {
        report["timeline"]["ready_ms"].is_f64()
    });
    assert_eq!(report["gpu"]["xids"], json!([]), "{report}");
    assert!(report["gpu"]["freed_after_ms"].is_null(), "{report}");
    worker.assert_serves();
}

#[test]
fn on_the_cpu_device_the_library_is_not_loaded() {
    let played = PlayedNvml::build();
    let worker = played
        .loadable_by(Worker::scripted(Script::behave()))
        .start();
    assert_eq!(nvml_state(&worker.client()), "off");
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", worker.pid())).expect("maps");
    assert!(!maps.contains("libnvidia-ml"), "it is mapped");
}

#[test]
fn a_death_on_a_gpu_is_told_with_its_xids_and_measured_until_its_memory_is_back() {
    let mut played = PlayedNvml::build();
    played.plays(&format!("base {BASELINE}"));
    played.plays("action 0");
    let worker = started(&played);
    let client = worker.client();
    let child = held_by_child(&mut played, &worker);

    let health = client.health();
    assert_eq!(health["vram"]["driver_used_bytes"], 604 * MIB, "{health}");
    assert_eq!(health["vram"]["baseline_bytes"], BASELINE);
    assert_eq!(health["device"]["temperature_celsius"], 41);
    assert_eq!(health["device"]["power_watts"], 112.5);
    assert_eq!(health["device"]["ecc"]["enabled"], true);
    assert_eq!(health["device"]["recovery_action"], "none");
    assert!(health["device"]["last_xid"].is_null());

    played.plays("xid 31");
    wait::until("the Xid", || {
        (client.health()["device"]["last_xid"]["xid"] == 31).then_some(())
    });
    process::signal(child, Signal::SIGKILL);
    let report = report(&client, |report| report["gpu"]["freed_after_ms"].is_f64());
    let gpu = &report["gpu"];
    assert_eq!(gpu["xids"][0]["xid"], 31, "{gpu}");
    assert_eq!(gpu["xids"][0]["remedy"], "restart_child");
    assert!(gpu["xids"][0]["ms"].as_f64() < Some(0.0), "{gpu}");
    assert!(gpu["xids"][0]["kernel_seconds"].as_f64() > Some(0.0));
    assert_eq!(gpu["memory_before"]["child_bytes"], 600 * MIB);
    assert_eq!(gpu["memory_before"]["used_bytes"], 604 * MIB);
    assert_eq!(gpu["baseline_bytes"], BASELINE);
    assert_eq!(gpu["residual_bytes"], 0);
    assert_eq!(gpu["recovery_action"], "none");
    worker.assert_serves();

    let health = client.health();
    assert_eq!(health["vram"]["residual_bytes"], 0, "{health}");
    assert!(health["vram"]["returned_after_ms"].is_f64(), "{health}");
    let metrics = client.get("/metrics").text();
    for line in [
        "worker_orcd_gpu_watched{uuid=\"GPU-0f0f0f0f-played\"} 1",
        "worker_orcd_gpu_memory_residual_bytes{uuid=\"GPU-0f0f0f0f-played\"} 0",
        "worker_orcd_gpu_xids_total{xid=\"31\"} 1",
    ] {
        assert!(metrics.contains(line), "{line} is not in\n{metrics}");
    }
}

#[test]
fn memory_that_does_not_come_back_is_a_residual() {
    let mut played = PlayedNvml::build();
    played.plays(&format!("base {BASELINE}"));
    let worker = started(&played);
    let child = held_by_child(&mut played, &worker);
    // The process ends, its memory stays.
    played.forgets("base");
    played.plays(&format!("base {}", 504 * MIB));
    process::signal(child, Signal::SIGKILL);
    let report = report(&worker.client(), |report| {
        report["gpu"]["residual_bytes"].is_u64()
    });
    assert_eq!(report["gpu"]["residual_bytes"], 500 * MIB);
    assert!(report["gpu"]["freed_after_ms"].is_null(), "{report}");
    assert!(report["gpu"]["recovery_action"].is_null(), "an old driver");
}

#[test]
fn an_uncontained_memory_error_ends_the_worker_with_a_number_of_its_own() {
    let mut played = PlayedNvml::build();
    let mut worker = started(&played);
    let mut stream = worker
        .client()
        .execute(&request("to the end of the device", 2000));
    stream.wait_for("token");
    played.plays("xid 95");
    let error = stream.wait_for("error").json();
    assert_eq!(error["code"], "WORKER_UNHEALTHY", "{error}");
    let message = error["message"].as_str().expect("a message");
    assert!(
        message.contains("needs a reset") && message.contains("Xid 95"),
        "{message}"
    );
    assert_eq!(worker.wait_exit().code(), Some(88));
    assert_eq!(
        worker.log.events("child_death")[0]["label"],
        "gpu_needs_reset"
    );
}

#[test]
fn what_the_driver_asks_for_after_a_death_ends_the_worker() {
    let mut played = PlayedNvml::build();
    played.plays("action 2");
    let mut worker = started(&played);
    worker.assert_serves();
    worker.kill_child();
    assert_eq!(worker.wait_exit().code(), Some(89));
}

#[test]
fn a_library_that_blocks_delays_nobody() {
    let mut played = PlayedNvml::build();
    let mut worker = started(&played);
    played.plays("wedged");
    wait::until("the silence to be noticed", || {
        (nvml_state(&worker.client()) == "silent").then_some(())
    });
    let health = worker.client().health();
    assert_eq!(health["status"], "healthy");
    assert!(
        health["device"]["temperature_celsius"].is_null(),
        "{health}"
    );
    worker.kill_child();
    wait::until("the next child", || {
        (worker.generation() == Some(2)).then_some(())
    });
    worker.wait_ready();
    worker.assert_serves();
    let told_at = Instant::now();
    worker.signal(Signal::SIGTERM);
    assert_eq!(worker.wait_exit().code(), Some(0));
    assert!(told_at.elapsed() < Duration::from_secs(10));
}
