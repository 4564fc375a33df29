//! Who maps the weights that outlive a child, and who holds them.

use std::fs;

/// A mapping of the weights, as `/proc/PID/maps` tells it.
#[derive(Debug, PartialEq, Eq)]
pub struct Mapping {
    pub rights: String,
    pub inode: String,
}

/// The mapping in that process, if there is one.
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

/// Descriptors of the weights that a process holds.
///
/// # Panics
/// When there is no such process.
#[must_use]
pub fn held_by(pid: u32) -> usize {
    let open = fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let targets = open
        .flatten()
        .filter_map(|entry| fs::read_link(entry.path()).ok());
    targets
        .filter(|target| target.to_string_lossy().contains("worker-orcd-weights"))
        .count()
}

/// Processes that map this memory.
///
/// # Panics
/// Where there is no `/proc`.
#[must_use]
pub fn mapped_by(inode: &str) -> Vec<u32> {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|&pid| weights_of(pid).is_some_and(|it| it.inode == inode))
        .collect()
}
