//! Figures of each device of a worker: /health, metrics, crash reports and `top`, while one device dies, is drained and
//! returns.

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use std::process::Command;
use worker_orcd_tests::worker::binary;
use worker_orcd_tests::{Script, Worker, process, wait};

/// Worker of two CPU devices, both serving.
fn of_two() -> Worker {
    let script = Worker::scripted(Script::behave());
    let worker = script.arg("--device", "cpu,cpu").start();
    wait_until_both_serve(&worker);
    worker
}

fn wait_until_both_serve(worker: &Worker) {
    wait::until("both devices to serve", || {
        let health = worker.client().health();
        let mut devices = health["devices"].as_array()?.iter();
        devices.all(|it| it["serving"] == true).then_some(())
    });
}

/// Report on one device, once its status is `standing`.
fn standing(worker: &Worker, number: usize, standing: &str) -> Value {
    wait::until(standing, || {
        let health = worker.client().health();
        let device = health["devices"][number].clone();
        (device["standing"] == standing).then_some(device)
    })
}

fn samples(worker: &Worker) -> Vec<String> {
    let text = worker.client().get("/metrics").text();
    text.lines().map(str::to_owned).collect()
}

fn assert_told(samples: &[String], lines: &[&str]) {
    for line in lines {
        let is_there = samples.iter().any(|it| it == line);
        assert!(is_there, "{line} is not in\n{}", samples.join("\n"));
    }
}

/// Output of `top --once`, and whether it exits as healthy.
fn top(worker: &Worker) -> (bool, String) {
    let url = format!("http://{}", worker.client().address);
    let mut command = Command::new(binary("tested-worker-orcd"));
    command.args(["top", "--once", "--url", &url]);
    let output = command.env_remove("OPENAI_API_KEY").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    (output.status.success(), text)
}

#[test]
fn a_device_that_is_drained_is_told_everywhere_until_it_is_readmitted() {
    let worker = of_two();
    let client = worker.client();
    let drained = client.post("/devices/1/drain", &json!({}));
    assert_eq!(drained.status, 202, "{}", drained.text());
    let device = standing(&worker, 1, "drained");
    assert_eq!(device["in_use"], false, "{device}");
    assert_eq!(device["may_readmit"], true, "{device}");
    assert!(device["reason"].as_str().unwrap().contains("operator"));
    assert!(device["out_since"].is_string(), "{device}");

    let health = client.health();
    assert_eq!(health["status"], "degraded", "{health}");
    assert_eq!(health["devices"][0]["in_use"], true, "{health}");
    assert_eq!(client.get("/readyz").status, 200);
    assert_told(
        &samples(&worker),
        &[
            "worker_orcd_status{status=\"degraded\"} 1",
            "worker_orcd_up 1",
            "worker_orcd_device_in_use{device=\"cpu\",number=\"0\"} 1",
            "worker_orcd_device_in_use{device=\"cpu\",number=\"1\"} 0",
            "worker_orcd_device_serving{device=\"cpu\",number=\"0\"} 1",
            "worker_orcd_device_serving{device=\"cpu\",number=\"1\"} 0",
            "worker_orcd_device_standing{device=\"cpu\",number=\"1\",standing=\"drained\"} 1",
            "worker_orcd_device_may_readmit{device=\"cpu\",number=\"1\"} 1",
        ],
    );
    let (is_healthy, text) = top(&worker);
    assert!(!is_healthy && text.contains("1 of 2 in use"), "{text}");
    assert!(text.contains("1 cpu  drained since"), "{text}");
    worker.assert_serves();

    let readmitted = client.post("/devices/1/readmit", &json!({}));
    assert_eq!(readmitted.status, 202, "{}", readmitted.text());
    wait_until_both_serve(&worker);
    assert_eq!(client.health()["status"], "healthy");
    assert!(top(&worker).0);
}

#[test]
fn a_death_is_told_with_the_device_on_which_it_was() {
    let worker = of_two();
    let client = worker.client();
    let pid = client.health()["devices"][1]["child"]["pid"].as_u64();
    let pid = u32::try_from(pid.expect("a child")).unwrap();
    process::signal(pid, Signal::SIGKILL);
    let last = wait::until("the death", || {
        let last = client.health()["faults"]["last_death"].clone();
        (!last.is_null()).then_some(last)
    });
    assert_eq!(last["device"], "cpu", "{last}");
    assert_eq!(last["device_number"], 1, "{last}");
    let id = last["crash_id"].as_str().expect("a report");
    let report = wait::until("the report", || {
        let answer = client.get(&format!("/crashes/{id}"));
        (answer.status == 200).then(|| answer.json())
    });
    assert_eq!(report["device"], json!({"number": 1, "id": "cpu"}));
    let listed = client.get("/crashes").json()["crashes"][0].clone();
    assert_eq!(listed["device_number"], 1, "{listed}");
    wait_until_both_serve(&worker);
    assert_told(
        &samples(&worker),
        &[
            "worker_orcd_device_deaths_in_window{device=\"cpu\",number=\"0\"} 0",
            "worker_orcd_device_deaths_in_window{device=\"cpu\",number=\"1\"} 1",
        ],
    );
    let (_, text) = top(&worker);
    assert!(
        text.contains("generation") && text.contains(" on 1 cpu, with 0 requests"),
        "{text}"
    );
}
