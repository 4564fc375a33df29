//! Weights outlive the child that placed them: the next one maps the same memory, and nothing is left after the end of
//! all processes.

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use worker_orcd_tests::mappings::{held_by, mapped_by, weights_of};
use worker_orcd_tests::{Bystander, ModelCopy, process, wait};

fn body() -> Value {
    json!({"prompt": "Tell me of the sea.", "max_tokens": 150, "temperature": 0.7, "seed": 3,
           "ignore_eos": true})
}

#[test]
fn each_child_maps_the_memory_of_the_first_and_none_may_write_it() {
    let copy = ModelCopy::new();
    let worker = copy.worker();
    let health = worker.client().health();
    let bytes = health["vram"]["weights_bytes"].as_u64();
    assert!(bytes > Some(40 << 20), "{health}");
    assert_eq!(health["vram"]["custody_bytes"].as_u64(), bytes);
    assert_eq!(held_by(worker.pid()), 1);
    let first = weights_of(worker.child_pid().unwrap()).expect("the weights");
    assert_eq!(first.rights, "r--p");
    let bystander = Bystander::new(worker.client(), body());
    let alone = bystander.alone();
    let mut stream = bystander.begin();
    stream.more(5);
    for _ in 0..3 {
        worker.replace_child();
        assert_eq!(
            weights_of(worker.child_pid().unwrap()).as_ref(),
            Some(&first)
        );
        stream.more(5);
    }
    assert_eq!(held_by(worker.pid()), 1, "no duplicate is kept");
    assert_eq!(stream.end().0, alone);
    let after = &worker.client().health()["vram"];
    assert_eq!(after["custody_since"], health["vram"]["custody_since"]);
    let verified = after["custody_verified_age_ms"].as_u64();
    let placed = health["vram"]["custody_verified_age_ms"].as_u64();
    assert!(verified.is_some() && placed.is_some(), "{after}");
}

#[test]
fn a_supervisor_that_is_killed_leaves_no_memory_behind() {
    let copy = ModelCopy::new();
    let worker = copy.worker();
    let weights = weights_of(worker.child_pid().unwrap()).expect("the weights");
    assert_eq!(mapped_by(&weights.inode).len(), 1);
    process::signal(worker.pid(), Signal::SIGKILL);
    // The child dies with its parent, and with it the last mapping.
    wait::until("the memory to be nobody's", || {
        mapped_by(&weights.inode).is_empty().then_some(())
    });
}
