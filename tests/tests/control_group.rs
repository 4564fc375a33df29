//! A child in a memory control group that has less than the machine: it takes what the group has,
//! and says whose limit that was.

use serde_json::json;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use tempfile::TempDir;
use worker_orcd_tests::model::real_model;
use worker_orcd_tests::worker::{binary, unique};
use worker_orcd_tests::{Worker, WorkerBuilder};

const MIB: u64 = 1 << 20;
const INSUFFICIENT_MEMORY: i32 = 66;

/// A group of our own, removed when dropped. The child joins it before it becomes one.
struct Group {
    folder: PathBuf,
    wrapper: TempDir,
}

impl Group {
    /// `None`, and a word about it, where this machine lets us make none.
    fn limited_to(bytes: u64) -> Option<Self> {
        let name = format!("worker-orcd-test-{}-{}", std::process::id(), unique());
        let versions = [
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
            ("/sys/fs/cgroup", "memory.max"),
        ];
        let made = versions.into_iter().find_map(|(mount, limit)| {
            let folder = Path::new(mount).join(&name);
            fs::create_dir(&folder).ok()?;
            match fs::write(folder.join(limit), bytes.to_string()) {
                Ok(()) => Some(folder),
                Err(_) => {
                    let _ = fs::remove_dir(&folder);
                    None
                }
            }
        });
        let Some(folder) = made else {
            eprintln!("skipped: no memory control group can be made here");
            return None;
        };
        let wrapper = tempfile::tempdir().unwrap();
        Some(Self { folder, wrapper })
    }

    fn worker(&self) -> WorkerBuilder {
        let path = self.wrapper.path().join("child");
        let text = format!(
            "#!/bin/sh\necho $$ > '{}/cgroup.procs' && exec '{}' \"$@\"\n",
            self.folder.display(),
            binary("tested-worker-orcd-gpu").display()
        );
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        Worker::with_child_program(path).model(real_model())
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The kernel takes a moment to forget who was in it.
        let gone = (0..100).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(20));
            fs::remove_dir(&self.folder).is_ok()
        });
        assert!(
            gone || std::thread::panicking(),
            "{} stays",
            self.folder.display()
        );
    }
}

#[test]
fn the_default_cache_takes_no_more_than_the_group_has() {
    let Some(group) = Group::limited_to(400 * MIB) else {
        return;
    };
    let worker = group.worker().start();
    let vram = worker.client().health()["vram"].clone();
    assert_eq!(vram["bound"], "control_group", "{vram}");
    assert_eq!(vram["total_bytes"], 400 * MIB);
    let capacity = vram["kv_capacity_bytes"].as_u64().unwrap();
    assert!((MIB..100 * MIB).contains(&capacity), "{vram}");
    // What is written into the cache takes memory only now: the kernel would kill if it were none.
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
    let Some(group) = Group::limited_to(60 * MIB) else {
        return;
    };
    let worker = group.worker();
    worker.ends_with(INSUFFICIENT_MEMORY, &["bytes required"]);
}

#[test]
fn without_a_limit_it_is_the_machines_memory_that_is_told() {
    let worker = Worker::real().start();
    let vram = worker.client().health()["vram"].clone();
    // Or that of a group that this test itself runs in.
    let bound = vram["bound"].as_str().expect("a bound");
    assert!(["machine", "control_group"].contains(&bound), "{vram}");
}
