//! The kernel's figures of a process. Reads never wait for a device: `status` and `stat` are answered from counters,
//! also for a process that hangs in its driver.

use nix::sys::resource::{Resource, getrlimit};
use nix::unistd::{SysconfVar, sysconf};
use std::fs;

#[derive(Debug, Clone, Copy)]
pub(super) struct Process {
    pub resident_bytes: u64,
    /// Processor time in user and in system mode.
    pub cpu_seconds: f64,
    /// Known for this process alone.
    pub open_descriptors: Option<u64>,
    pub max_descriptors: Option<u64>,
}

impl Process {
    pub(super) fn own() -> Option<Self> {
        let max = getrlimit(Resource::RLIMIT_NOFILE).ok();
        Some(Self {
            open_descriptors: open_descriptors(),
            max_descriptors: max.map(|(soft, _)| soft),
            ..Self::of(std::process::id())?
        })
    }

    pub(super) fn of(pid: u32) -> Option<Self> {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        Some(Self {
            resident_bytes: resident_bytes(&status)?,
            cpu_seconds: cpu_ticks(&stat)? as f64 / ticks_per_second()?,
            open_descriptors: None,
            max_descriptors: None,
        })
    }
}

/// Number of open descriptors. Since Linux 6.2 it is the size of their directory. A listing would take milliseconds
/// with thousands of clients, and would delay streams.
fn open_descriptors() -> Option<u64> {
    const DIRECTORY: &str = "/proc/self/fd";
    let size = fs::metadata(DIRECTORY).ok()?.len();
    if size > 0 {
        return Some(size);
    }
    let list = fs::read_dir(DIRECTORY).ok()?;
    // Without the descriptor of the listing itself.
    Some((list.count() as u64).saturating_sub(1))
}

fn resident_bytes(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|it| it.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
}

/// User and system time. The preceding name may contain spaces and brackets.
fn cpu_ticks(stat: &str) -> Option<u64> {
    let (_, fields) = stat.rsplit_once(')')?;
    let mut times = fields.split_whitespace().skip(11).map(str::parse::<u64>);
    Some(times.next()?.ok()? + times.next()?.ok()?)
}

fn ticks_per_second() -> Option<f64> {
    let ticks = sysconf(SysconfVar::CLK_TCK).ok().flatten()?;
    Some(ticks as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_words_are_read_behind_any_name() {
        let stat = "7 (a (b) c) S 1 2 3 4 5 6 7 8 9 10 250 50 13 14";
        assert_eq!(cpu_ticks(stat), Some(300));
        assert_eq!(cpu_ticks("7 (short) S 1"), None);
        let status = "Name:\tx\nVmRSS:\t    2048 kB\n";
        assert_eq!(resident_bytes(status), Some(2 << 20));
    }

    #[test]
    fn this_process_has_memory_and_descriptors() {
        let own = Process::own().unwrap();
        assert!(own.resident_bytes > 1 << 20);
        assert!(own.open_descriptors.unwrap() >= 3);
        let many: Vec<_> = (0..200)
            .map(|_| fs::File::open("/dev/null").unwrap())
            .collect();
        let more = Process::own().unwrap().open_descriptors.unwrap();
        assert!(more >= many.len() as u64 + 3, "{more}");
        assert!(own.max_descriptors.unwrap() >= own.open_descriptors.unwrap());
    }
}
