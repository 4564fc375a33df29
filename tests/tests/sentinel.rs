//! Thread that reports a death by its end before the process is dead (`gpu-child/src/sentinel.rs`).

use std::fs;
use std::path::{Path, PathBuf};
use worker_orcd_tests::Worker;

fn entries(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("a process that is there");
    entries
        .map(|entry| entry.expect("an entry").path())
        .collect()
}

/// Targets of the descriptors of a process or thread.
fn descriptors(of: &Path) -> Vec<PathBuf> {
    let links = entries(&of.join("fd")).into_iter();
    links.filter_map(|link| fs::read_link(link).ok()).collect()
}

#[test]
fn a_thread_of_the_child_has_a_socket_to_itself_and_nothing_else() {
    let worker = Worker::shallow().start();
    let child = worker.child_pid().expect("a child serves");
    let process = PathBuf::from(format!("/proc/{child}"));
    let threads = entries(&process.join("task")).into_iter();
    let is_sentinel = |thread: &PathBuf| {
        fs::read_to_string(thread.join("comm")).is_ok_and(|name| name.trim() == "sentinel")
    };
    let sentinels: Vec<_> = threads.filter(is_sentinel).collect();
    let [sentinel] = &sentinels[..] else {
        panic!("one sentinel, not {}", sentinels.len());
    };
    let its = descriptors(sentinel);
    let [line] = &its[..] else {
        panic!("one descriptor, not {its:?}");
    };
    assert!(line.to_string_lossy().starts_with("socket:"), "{line:?}");
    assert!(!descriptors(&process).contains(line), "others have it too");
}
