//! Mappings and descriptors of memory that outlives a child.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt as _;

/// Every order in which supervisor, child and standby may die.
pub const ORDERS: [[usize; 3]; 6] = [
    [0, 1, 2],
    [0, 2, 1],
    [1, 0, 2],
    [1, 2, 0],
    [2, 0, 1],
    [2, 1, 0],
];

/// Mapping of the weights in `/proc/PID/maps`.
#[derive(Debug, PartialEq, Eq)]
pub struct Mapping {
    pub rights: String,
    pub inode: String,
}

/// Mapping in that process, if there is one.
#[must_use]
pub fn weights_of(pid: u32) -> Option<Mapping> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).ok()?;
    let line = maps
        .lines()
        .find(|line| line.contains("worker-orcd-weights"))?;
    let mut fields = line.split_whitespace();
    let rights = fields.nth(1)?.to_owned();
    let inode = fields.nth(2)?.to_owned();
    Some(Mapping { rights, inode })
}

/// Descriptors of the weights in a process.
#[must_use]
pub fn held_by(pid: u32) -> usize {
    files_of(pid, "worker-orcd-weights").len()
}

/// KV caches of a process's descriptors, by inode.
#[must_use]
pub fn kv_caches_of(pid: u32) -> BTreeSet<u64> {
    files_of(pid, "worker-orcd-kv").into_iter().collect()
}

/// Processes with a descriptor of one of these KV caches.
#[must_use]
pub fn holders_of(caches: &BTreeSet<u64>) -> Vec<u32> {
    let holds = |pid: &u32| !kv_caches_of(*pid).is_disjoint(caches);
    processes().filter(holds).collect()
}

/// Inodes of the process's memfds of that name. Empty for a process that is gone.
fn files_of(pid: u32, name: &str) -> Vec<u64> {
    let open = fs::read_dir(format!("/proc/{pid}/fd"));
    let paths = open
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path());
    let named = paths.filter(|path| {
        let target = fs::read_link(path).ok();
        target.is_some_and(|target| target.to_string_lossy().contains(name))
    });
    named
        .filter_map(|path| Some(fs::metadata(path).ok()?.ino()))
        .collect()
}

/// Processes that map this memory.
#[must_use]
pub fn mapped_by(inode: &str) -> Vec<u32> {
    processes()
        .filter(|&pid| weights_of(pid).is_some_and(|it| it.inode == inode))
        .collect()
}

fn processes() -> impl Iterator<Item = u32> {
    let processes = fs::read_dir("/proc").expect("/proc").flatten();
    processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}
