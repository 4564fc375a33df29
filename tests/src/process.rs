//! What the kernel says of a process, read from `/proc`.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs;
use std::time::Duration;

/// `USER_HZ`: 100 on every Linux architecture that this runs on.
const TICKS_PER_SECOND: u64 = 100;

/// Field 19 of `/proc/PID/stat`, of which the first here is field 3.
const NICENESS_FIELD: usize = 16;

/// State letter of `/proc/PID/stat` (`R`, `S`, `T`, `Z`, …); `None` when there is no such process.
#[must_use]
pub fn state(pid: u32) -> Option<char> {
    stat_fields(pid)?.first()?.chars().next()
}

/// Runs, sleeps or is stopped; neither gone nor a zombie.
#[must_use]
pub fn is_alive(pid: u32) -> bool {
    state(pid).is_some_and(|state| !matches!(state, 'Z' | 'X'))
}

/// Processes whose parent this is, zombies included.
#[must_use]
pub fn children(pid: u32) -> Vec<u32> {
    let entries = fs::read_dir("/proc").expect("/proc").flatten();
    entries
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|child| parent(*child) == Some(pid))
        .collect()
}

/// Those that serve the model; those that interpret templates left out.
#[must_use]
pub fn model_children(pid: u32) -> Vec<u32> {
    let interprets = |child: &u32| interpreters(pid).contains(child);
    let mut found = children(pid);
    found.retain(|child| !interprets(child));
    found
}

/// The processes that interpret templates for this worker.
#[must_use]
pub fn interpreters(pid: u32) -> Vec<u32> {
    let mut found = children(pid);
    found.retain(|child| {
        let line = fs::read(format!("/proc/{child}/cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0).nth(1) == Some(b"interpret")
    });
    found
}

/// How much rather than others the kernel's OOM killer takes it.
#[must_use]
pub fn oom_score_adj(pid: u32) -> Option<i32> {
    let score = fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).ok()?;
    score.trim().parse().ok()
}

#[must_use]
pub fn parent(pid: u32) -> Option<u32> {
    stat_fields(pid)?.get(1)?.parse().ok()
}

/// Resident memory that belongs to this process alone (heap and stacks, no mapped files).
#[must_use]
pub fn anonymous_rss_bytes(pid: u32) -> Option<u64> {
    status_bytes(pid, "RssAnon:")
}

/// Resident memory now, mapped files included.
#[must_use]
pub fn rss_bytes(pid: u32) -> Option<u64> {
    status_bytes(pid, "VmRSS:")
}

/// The most that was resident since the start, or since [`forget_peak`].
#[must_use]
pub fn peak_rss_bytes(pid: u32) -> Option<u64> {
    status_bytes(pid, "VmHWM:")
}

/// Begins to look for the peak anew.
pub fn forget_peak(pid: u32) {
    fs::write(format!("/proc/{pid}/clear_refs"), "5").expect("a process of our own");
}

/// The most address space that it ever had.
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

/// Priority of its first thread: the higher, the more it leaves to others.
#[must_use]
pub fn niceness(pid: u32) -> Option<i32> {
    stat_fields(pid)?.get(NICENESS_FIELD)?.parse().ok()
}

/// One thread of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Thread {
    pub name: String,
    pub niceness: i32,
    pub cpu_time: Duration,
}

/// Those that live.
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

/// One bit for each signal, the lowest for number 1.
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

/// Descriptors for which its table has room.
#[must_use]
pub fn descriptor_slots(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let mut lines = status.lines();
    let slots = lines.find_map(|line| line.strip_prefix("FDSize:"));
    slots.and_then(|it| it.trim().parse().ok()).unwrap_or(0)
}

/// The process may be gone already, which is as good as delivered.
pub fn signal(pid: u32, signal: Signal) {
    let _ = kill(Pid::from_raw(pid.cast_signed()), signal);
}

fn status_bytes(pid: u32, name: &str) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? * 1024)
}

/// Fields behind the command name, which may itself hold spaces and brackets.
fn stat_fields(pid: u32) -> Option<Vec<String>> {
    fields_behind_name(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

fn fields_behind_name(stat: &str) -> Option<Vec<String>> {
    let (_, rest) = stat.rsplit_once(')')?;
    Some(rest.split_whitespace().map(str::to_owned).collect())
}
