//! Crash reports: cause of a death, work in progress, waiting requests, and durations. No prompt and no answer.

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;
use worker_orcd_tests::{Client, Worker, process, wait};

const SECRET: &str = "the rain in Spain stays mainly in the plain";

/// Newest report that `is_complete`.
fn report(client: &Client, is_complete: impl Fn(&Value) -> bool) -> Value {
    wait::until("a crash report", || {
        let list = client.get("/crashes").json();
        let id = list["crashes"][0]["id"].as_str()?.to_owned();
        let report = client.get(&format!("/crashes/{id}")).json();
        is_complete(&report).then_some(report)
    })
}

/// Kills the child in the middle of a stream, which completes, and returns its pid.
fn kill_mid_stream(worker: &Worker) -> u32 {
    let request = json!({
        "job_id": "interrupted", "prompt": SECRET, "max_tokens": 60, "temperature": 0.0,
        "on_fault": "resume",
    });
    let mut stream = worker.client().execute(&request);
    stream.wait_for("token");
    stream.wait_for("token");
    let child = worker.child_pid().expect("a child serves");
    process::signal(child, Signal::SIGKILL);
    let end = stream.wait_for("end").json();
    assert_eq!(end["tokens_out"], 60);
    assert_eq!(end["recoveries"], 1);
    child
}

#[test]
fn a_killed_child_leaves_a_report_that_tells_what_it_was_doing() {
    let directory = TempDir::new().expect("a temporary directory");
    let worker = Worker::shallow()
        .arg("--crash-dir", directory.path().display())
        .start();
    let client = worker.client();
    assert_eq!(client.get("/crashes").json(), json!({"crashes": []}));
    let child = kill_mid_stream(&worker);
    let report = report(&client, |report| {
        report["timeline"]["first_token_ms"].is_f64()
    });

    assert_eq!(report["cause"]["label"], "signalled", "{report}");
    assert_eq!(report["cause"]["signal"], 9);
    assert_eq!(report["cause"]["killed_by_supervisor"], false);
    assert_eq!(report["child"]["pid"], child);
    assert_eq!(report["child"]["generation"], 1);
    assert_eq!(report["child"]["state"], "serving");

    let requests = &report["requests"];
    assert_eq!(requests["count"], 1);
    assert_eq!(requests["first"][0]["job_id"], "interrupted");
    assert!(
        requests["first"][0]["tokens_in"].as_u64() > Some(5),
        "{requests}"
    );
    assert!(
        requests["first"][0]["tokens_out"].as_u64() >= Some(2),
        "{requests}"
    );

    let steps = report["flight_recorder"]["last_steps"]
        .as_array()
        .expect("steps")
        .clone();
    let fatal = steps.last().expect("at least one step");
    assert!(fatal["step"].as_u64() >= Some(2), "{fatal}");
    assert_eq!(fatal["requests"], json!([requests["first"][0]["request"]]));
    assert!(
        steps
            .iter()
            .any(|step| step["ended"] == true && step["phases"] == json!(["decode", "sample"]))
    );
    assert!(report["memory"]["before"]["weights_bytes"].as_u64() > Some(1 << 20));
    assert!(report["memory"]["after"]["weights_bytes"].as_u64() > Some(1 << 20));
    assert!(report["memory"]["host_available_bytes"].as_u64() > Some(1 << 20));

    let at = |name: &str| {
        report["timeline"][name]
            .as_f64()
            .unwrap_or_else(|| panic!("{name}"))
    };
    assert!(at("last_sign_of_life_ms") <= 1.0, "{report}");
    let names = ["noticed_ms", "respawned_ms", "ready_ms", "first_token_ms"];
    assert!(names.map(at).is_sorted(), "{}", report["timeline"]);

    let log = worker.log_until_now();
    let place = |event: &str| log.find(event).unwrap_or_else(|| panic!("{event}"));
    let (ordered, reaped) = (place("failover"), place("child_death"));
    assert!(ordered < reaped, "the next child waits for the dead one");
    let text = report.to_string() + &log;
    for word in ["Spain", "mainly"] {
        assert!(!text.contains(word), "{word} was told");
    }
}

#[test]
fn health_and_metrics_point_at_the_last_report() {
    let directory = TempDir::new().expect("a temporary directory");
    let worker = Worker::shallow()
        .arg("--crash-dir", directory.path().display())
        .start();
    kill_mid_stream(&worker);
    let client = worker.client();
    let report = report(&client, |report| {
        report["timeline"]["first_token_ms"].is_f64()
    });
    let last = wait::until("the pause of its streams", || {
        let last = client.health()["faults"]["last_death"].clone();
        last["stream_pause_ms"].is_u64().then_some(last)
    });
    assert_eq!(last["crash_id"], report["id"]);
    assert_eq!(last["cause"], report["cause"]["text"]);
    let pause = report["timeline"]["first_token_ms"]
        .as_f64()
        .expect("a complete timeline");
    let told = last["stream_pause_ms"].as_f64().expect("a pause");
    assert!(
        (pause - told).abs() < 50.0,
        "{told} in /health, {pause} in the report"
    );
    let metrics = client.get("/metrics").text();
    assert!(
        metrics.contains("worker_orcd_crash_reports_total 1"),
        "{metrics}"
    );
}

#[test]
fn reports_survive_the_supervisor_within_their_bound() {
    let directory = TempDir::new().expect("a temporary directory");
    let start = || {
        Worker::shallow()
            .arg("--crash-dir", directory.path().display())
            .arg("--max-crash-reports", 2)
            .start()
    };
    let worker = start();
    for deaths in 1..=3 {
        process::signal(worker.child_pid().expect("a child serves"), Signal::SIGKILL);
        wait::until("the next child", || {
            let health = worker.client().health();
            let serves =
                health["state"] == "serving" && health["faults"]["crash_reports"] == deaths;
            serves.then_some(())
        });
    }
    let before = wait::until("complete reports", || {
        let list = worker.client().get("/crashes").json()["crashes"].clone();
        let all = list.as_array().expect("a list").clone();
        all.iter()
            .all(|crash| crash["ready_ms"].is_f64())
            .then_some(list)
    });
    let generations: Vec<_> = (0..2).map(|at| before[at]["generation"].clone()).collect();
    assert_eq!(generations, [3, 2], "newest first, the oldest made room");
    drop(worker);
    assert_eq!(start().client().get("/crashes").json()["crashes"], before);
}

#[test]
fn a_dismissed_child_leaves_none() {
    let directory = TempDir::new().expect("a temporary directory");
    let mut worker = Worker::shallow()
        .arg("--crash-dir", directory.path().display())
        .start();
    worker.signal(Signal::SIGTERM);
    assert_eq!(worker.wait_exit().code(), Some(0));
    let left = std::fs::read_dir(directory.path())
        .expect("it is ours")
        .count();
    assert_eq!(left, 0);
}
