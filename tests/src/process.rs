//! Process information from `/proc`.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs;
use std::time::Duration;

/// `USER_HZ`: 100 on every supported Linux architecture.
const TICKS_PER_SECOND: u64 = 100;

/// Field 19 of `/proc/PID/stat`; the first here is field 3.
const NICENESS_FIELD: usize = 16;

/// State letter of `/proc/PID/stat` (`R`, `S`, `T`, `Z`, …); `None` when there is no such process.
#[must_use]
pub fn state(pid: u32) -> Option<char> {
    stat_fields(pid)?.first()?.chars().next()
}

/// True if the process runs, sleeps or is stopped; false if it is gone or a zombie.
#[must_use]
pub fn is_alive(pid: u32) -> bool {
    state(pid).is_some_and(|state| !matches!(state, 'Z' | 'X'))
}

/// Child processes, zombies included.
#[must_use]
pub fn children(pid: u32) -> Vec<u32> {
    let entries = fs::read_dir("/proc").expect("/proc").flatten();
    entries
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|child| parent(*child) == Some(pid))
        .collect()
}

/// Child processes that serve the model; interpreters of templates are excluded.
#[must_use]
pub fn model_children(pid: u32) -> Vec<u32> {
    let interprets = |child: &u32| interpreters(pid).contains(child);
    let mut found = children(pid);
    found.retain(|child| !interprets(child));
    found
}

/// Interpreters of templates of this worker.
#[must_use]
pub fn interpreters(pid: u32) -> Vec<u32> {
    let mut found = children(pid);
    found.retain(|child| {
        let line = fs::read(format!("/proc/{child}/cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0).nth(1) == Some(b"interpret")
    });
    found
}

/// OOM score adjustment.
#[must_use]
pub fn oom_score_adj(pid: u32) -> Option<i32> {
    let score = fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).ok()?;
    score.trim().parse().ok()
}

#[must_use]
pub fn parent(pid: u32) -> Option<u32> {
    stat_fields(pid)?.get(1)?.parse().ok()
}

/// Private resident memory in bytes (heap and stacks, no mapped files).
#[must_use]
pub fn anonymous_rss_bytes(pid: u32) -> Option<u64> {
    status_bytes(pid, "RssAnon:")
}

/// Resident memory in bytes, mapped files included.
#[must_use]
pub fn rss_bytes(pid: u32) -> Option<u64> {
    status_bytes(pid, "VmRSS:")
}

/// Peak of resident memory since the start, or since [`forget_peak`].
#[must_use]
pub fn peak_rss_bytes(pid: u32) -> Option<u64> {
    status_bytes(pid, "VmHWM:")
}

/// Resets the peak.
pub fn forget_peak(pid: u32) {
    fs::write(format!("/proc/{pid}/clear_refs"), "5").expect("a process of our own");
}

/// Peak of the address space.
#[must_use]
pub fn peak_address_space_bytes(pid: u32) -> Option<u64> {
    status_bytes(pid, "VmPeak:")
}

/// User and system time of all threads.
#[must_use]
pub fn cpu_time(pid: u32) -> Duration {
    stat_fields(pid).map_or(Duration::ZERO, |fields| cpu_time_of(&fields))
}

fn cpu_time_of(fields: &[String]) -> Duration {
    // Fields 14 and 15 of `/proc/PID/stat`, in ticks; the first here is field 3.
    let ticks: u64 = fields[11..13]
        .iter()
        .filter_map(|field| field.parse::<u64>().ok())
        .sum();
    Duration::from_millis(ticks * 1000 / TICKS_PER_SECOND)
}

/// Nice value of its first thread.
#[must_use]
pub fn niceness(pid: u32) -> Option<i32> {
    stat_fields(pid)?.get(NICENESS_FIELD)?.parse().ok()
}

/// Thread of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Thread {
    pub name: String,
    pub niceness: i32,
    pub cpu_time: Duration,
}

/// Live threads.
#[must_use]
pub fn threads(pid: u32) -> Vec<Thread> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten();
    let one = |task: fs::DirEntry| {
        let name = fs::read_to_string(task.path().join("comm")).ok()?;
        let stat = fs::read_to_string(task.path().join("stat")).ok()?;
        let fields = fields_behind_name(&stat)?;
        Some(Thread {
            name: name.trim_end().to_owned(),
            niceness: fields.get(NICENESS_FIELD)?.parse().ok()?,
            cpu_time: cpu_time_of(&fields),
        })
    };
    tasks.flatten().filter_map(one).collect()
}

/// Signal mask, with bit 0 for signal 1.
#[must_use]
pub fn blocked_signals(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let mut lines = status.lines();
    let mask = lines.find_map(|line| line.strip_prefix("SigBlk:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0)
}

#[must_use]
pub fn open_files(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count)
}

/// Size of the descriptor table.
#[must_use]
pub fn descriptor_slots(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let mut lines = status.lines();
    let slots = lines.find_map(|line| line.strip_prefix("FDSize:"));
    slots.and_then(|it| it.trim().parse().ok()).unwrap_or(0)
}

/// Sends a signal. The process may be gone already, which counts as delivered.
pub fn signal(pid: u32, signal: Signal) {
    let _ = kill(Pid::from_raw(pid.cast_signed()), signal);
}

fn status_bytes(pid: u32, name: &str) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? * 1024)
}

/// Fields behind the command name, which may itself contain spaces and brackets.
fn stat_fields(pid: u32) -> Option<Vec<String>> {
    fields_behind_name(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

fn fields_behind_name(stat: &str) -> Option<Vec<String>> {
    let (_, rest) = stat.rsplit_once(')')?;
    Some(rest.split_whitespace().map(str::to_owned).collect())
}
