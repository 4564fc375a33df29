//! Fault injection. A child built with it is refused unless the worker accepts it, and rules that do not parse are refused at start.
//!
//! The ignored tests run with `cargo xtask test --deep`: every answer is equal and every worker survives under sixty
//! faults of every kind, with and without a standby, with upgrades and kills of supervisors, under siege, and with a
//! device that goes out of use. `cargo xtask test` ends with a minute of chaos in their place (`xtask/src/chaos.rs`).

use std::path::Path;
use std::process::{Command, Output};
use std::sync::Mutex;

/// `SupervisorExit::ChildIncompatible`.
const CHILD_INCOMPATIBLE: i32 = 80;

/// Output of a worker that is expected to end by itself.
fn serve(flags: &[&str], faults: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tested-worker-orcd"))
        .args([
            "--port",
            "0",
            "--device",
            "cpu",
            "--log-format",
            "json",
            "--model",
            "/dev/null",
        ])
        .arg("--child-binary")
        .arg(env!("CARGO_BIN_EXE_faulty-worker-orcd-gpu"))
        .args(flags)
        .env("WORKER_ORCD_FAULTS", faults)
        .output()
        .expect("the worker starts")
}

#[test]
fn a_child_that_fails_on_command_is_refused() {
    let output = serve(&[], "");
    let log = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(CHILD_INCOMPATIBLE), "{log}");
    assert!(
        log.contains("fault-injection"),
        "the reason names the feature: {log}"
    );
}

#[test]
fn rules_that_are_half_understood_are_a_usage_error() {
    let output = serve(&["--accept-fault-injection"], "boom@step=1");
    let log = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(CHILD_INCOMPATIBLE), "{log}");
    assert!(
        log.contains("boom"),
        "the log says what was not understood: {log}"
    );
}

/// Runs the chaos program for a minute, with additional flags. Its worker has default settings, except for short
/// deadlines.
fn a_minute(flags: &[&str]) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("tests/ has a parent");
    let status = Command::new(env!("CARGO_BIN_EXE_chaos"))
        .args(["--minutes", "1", "--seed", "20261121", "--streams", "12"])
        .args(["--requests", "1"])
        .args(flags)
        .current_dir(root)
        .status()
        .expect("the runner starts");
    assert!(status.success(), "{status}; what happened is above");
}

/// Flags of a run that ends after the number of faults in the next argument. Children inject most of the faults
/// themselves.
const FAULTS: [&str; 9] = [
    "--minutes",
    "5",
    "--streams",
    "16",
    "--signal-seconds",
    "4",
    "--fault-chance",
    "0.03",
    "--faults",
];

/// Lock of the machine: chaos runs alone.
static ALONE: Mutex<()> = Mutex::new(());

#[test]
#[ignore = "deep: takes minutes; `cargo xtask test --deep` runs it"]
fn sixty_faults_of_every_kind_cost_no_answer_a_byte() {
    let _alone = ALONE.lock();
    a_minute(&[&FAULTS[..], &["60"]].concat());
}

#[test]
#[ignore = "deep: takes minutes; `cargo xtask test --deep` runs it"]
fn sixty_faults_of_every_kind_beside_a_standby_cost_no_answer_a_byte() {
    let _alone = ALONE.lock();
    a_minute(&[&FAULTS[..], &["60", "--standby", "--mix", "execute"]].concat());
}

#[test]
#[ignore = "deep: takes minutes; `cargo xtask test --deep` runs it"]
fn supervisors_that_are_replaced_and_killed_under_every_kind_of_request_cost_no_answer_a_byte() {
    let _alone = ALONE.lock();
    a_minute(&[&FAULTS[..], &["20", "--successors"]].concat());
}

#[test]
#[ignore = "deep: takes minutes; `cargo xtask test --deep` runs it"]
fn a_minute_of_everything_at_once_costs_no_stream_a_byte() {
    let _alone = ALONE.lock();
    a_minute(&["--siege", "--steady"]);
}

#[test]
#[ignore = "deep: takes minutes; `cargo xtask test --deep` runs it"]
fn two_devices_of_which_one_is_drained_and_worn_out_under_faults_cost_no_answer_a_byte() {
    let _alone = ALONE.lock();
    a_minute(&[
        "--device",
        "cpu,cpu",
        "--worn-devices",
        "--minutes",
        "0.3",
        "--mix",
        "execute",
    ]);
}
