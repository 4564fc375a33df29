//! Child in a memory control group that is smaller than the machine: it uses the group's memory, and reports the group
//! as the limit.

use serde_json::json;
use worker_orcd_tests::worker::unique;
use worker_orcd_tests::{ControlGroup, Worker};

const MIB: u64 = 1 << 20;
const INSUFFICIENT_MEMORY: i32 = 66;

#[test]
fn the_default_cache_takes_no_more_than_the_group_has() {
    let Some(group) = ControlGroup::limited_to(400 * MIB) else {
        return;
    };
    let worker = group.worker().start();
    let vram = worker.client().health()["vram"].clone();
    assert_eq!(vram["bound"], "control_group", "{vram}");
    assert_eq!(vram["total_bytes"], 400 * MIB);
    let capacity = vram["kv_capacity_bytes"].as_u64().unwrap();
    assert!((MIB..100 * MIB).contains(&capacity), "{vram}");
    // Memory of the cache is allocated on write: the kernel would kill the child if there were none.
    let request = |n: usize| {
        json!({
            "job_id": format!("group-{}", unique()), "max_tokens": 4, "temperature": 0.0,
            "prompt": format!("{n} ").repeat(400),
        })
    };
    let streams: Vec<_> = (0..2)
        .map(|n| worker.client().execute(&request(n)))
        .collect();
    for stream in streams {
        stream.transcript().end();
    }
    let faults = &worker.client().health()["faults"];
    assert_eq!(faults["deaths_by_cause"], json!({}), "{faults}");
    drop(worker);
}

#[test]
fn a_model_larger_than_the_group_is_refused_before_the_kernel_kills() {
    let Some(group) = ControlGroup::limited_to(60 * MIB) else {
        return;
    };
    let worker = group.worker();
    worker.ends_with(INSUFFICIENT_MEMORY, &["bytes required"]);
}

#[test]
fn without_a_limit_it_is_the_machines_memory_that_is_told() {
    let worker = Worker::shallow().start();
    let vram = worker.client().health()["vram"].clone();
    // Or that of a group that contains this test.
    let bound = vram["bound"].as_str().expect("a bound");
    assert!(["machine", "control_group"].contains(&bound), "{vram}");
}
