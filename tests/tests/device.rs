//! Result of `--device auto`, and that it is decided once.

use nix::sys::signal::Signal;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use worker_orcd_tests::{Act, Moment, Script, Worker, process, wait};

/// Exit code of a child without its device.
const DEVICE_UNAVAILABLE: i32 = 67;

fn auto(script: Script) -> worker_orcd_tests::WorkerBuilder {
    Worker::scripted(script).arg("--device", "auto")
}

#[test]
fn auto_is_the_cpu_where_no_cuda_device_can_be_used_and_says_why() {
    let worker = auto(Script::behave()).start();
    let device = &worker.client().health()["device"];
    assert_eq!(device["id"], "cpu");
    let why = "auto: a script has no CUDA device";
    assert_eq!(device["chosen_because"], why);
    let startup = worker.log.wait_for("startup");
    assert_eq!(startup["device_chosen_because"], why, "{startup}");
}

#[test]
fn auto_is_the_first_cuda_device_that_can_be_used_for_every_child() {
    let worker = auto(Script::behave().could_use("a card")).start();
    let client = worker.client();
    let device = &client.health()["device"];
    assert_eq!(device["id"], "cuda:0");
    assert_eq!(device["chosen_because"], "auto: a card can be used");
    process::signal(worker.child_pid().expect("a child"), Signal::SIGKILL);
    wait::until("the next child", || {
        (worker.generation() == Some(2)).then_some(())
    });
    let loads = worker.log.wait_for_many("model_load_complete", 2);
    assert!(
        loads.iter().all(|load| load["device"] == "cuda:0"),
        "{loads:?}"
    );
    assert_eq!(worker.log.events("startup").len(), 1);
}

#[test]
fn an_option_of_the_device_that_auto_did_not_choose_is_named() {
    for (could_use, given, unused) in [
        (true, ["--threads", "2"], Some("--threads")),
        (false, ["--threads", "2"], None),
        (
            false,
            ["--gpu-memory-utilization", "0.5"],
            Some("--gpu-memory-utilization"),
        ),
        (true, ["--gpu-memory-utilization", "0.5"], None),
    ] {
        let script = Script::behave();
        let script = if could_use {
            script.could_use("a card")
        } else {
            script
        };
        let worker = auto(script).arg(given[0], given[1]).start();
        let _ = worker.log_until_now();
        let said = worker.log.events("option_without_use");
        let options: Vec<_> = said.iter().map(|event| event["option"].as_str()).collect();
        assert_eq!(options, unused.map(Some).into_iter().collect::<Vec<_>>());
    }
}

/// The CPU device computes other bits, so it must not replace a lost card.
#[test]
fn a_device_that_auto_chose_and_that_is_gone_is_not_replaced_by_the_cpu() {
    let vanishes = Script::always(Moment::Loading, Act::Exit(DEVICE_UNAVAILABLE));
    let worker = auto(vanishes.could_use("a card that vanishes"));
    let log = worker.ends_with(DEVICE_UNAVAILABLE, &[]);
    assert!(!log.contains("model_load_complete"), "{log}");
}

/// NVIDIA's driver creates them on request of a process that may execute programs; a confined child may not.
#[test]
fn a_device_without_its_nodes_is_asked_for_before_a_child_is_begun() {
    let directory = tempfile::tempdir().unwrap();
    let [program, asked] = ["child", "asked"].map(|name| directory.path().join(name));
    let script = format!(
        "#!/bin/sh\necho \"$1 $2\" >> {}\nexit 67\n",
        asked.display()
    );
    fs::write(&program, script).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o700)).unwrap();
    let mut worker = Worker::with_child_program(&program)
        .arg("--device", "cuda:3")
        .spawn();
    worker.wait_exit();
    let asked = fs::read_to_string(&asked).unwrap();
    let nodes = ["/dev/nvidiactl", "/dev/nvidia-uvm"];
    let are_there = nodes.iter().all(|node| Path::new(node).exists());
    assert_eq!(
        asked.lines().next() == Some("--probe 3"),
        !are_there,
        "{asked}"
    );
    assert!(asked.contains("--fd-socket"), "a child was begun: {asked}");
}

/// The answer of the real program depends on the machine; it must always give one.
#[test]
fn the_real_program_answers_whether_it_can_compute_on_a_device() {
    let real = worker_orcd_tests::worker::binary("tested-worker-orcd-gpu");
    let output = std::process::Command::new(&real)
        .args([worker_orcd_ipc::PROBE_FLAG, "99"])
        .output()
        .expect("it starts");
    let line = String::from_utf8(output.stdout).expect("text");
    assert_eq!(output.status.code(), Some(DEVICE_UNAVAILABLE), "{line}");
    assert!(line.starts_with("cuda:99 cannot be used: "), "{line}");
    assert_eq!(line.lines().count(), 1, "{line}");
}
