//! Figures of the supervisor from the kernel: descriptors, threads, memory, zombies.
//!
//! Descriptors and threads are compared idle with idle, before and after. Memory has a limit in every run. In a run
//! that is long enough for caches and pools to reach their size it is also compared between the second and the last
//! quarter.

use super::worker::{Worker, offspring};
use anyhow::Result;
use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

/// 5 s: a zombie is reaped as soon as it is noticed.
const ZOMBIE_PATIENCE: Duration = Duration::from_secs(5);

/// The runtime keeps threads for blocking work for a few seconds.
const MORE_THREADS: usize = 8;
/// Closed connections that the kernel has not reported to the supervisor yet.
const MORE_DESCRIPTORS: usize = 4;
const MORE_MEMORY_BYTES: u64 = 16 << 20;
/// 200 MiB: more is a leak, at any load of this runner.
const MOST_MEMORY_BYTES: u64 = 200 << 20;
/// 2 min. With 24 threads memory grew for the first minute, and then stayed (`bench/results/gpu-faults.md`).
const LONG_ENOUGH: Duration = Duration::from_secs(120);

/// Figures at one moment.
#[derive(Debug, Clone, Default)]
pub struct Sample {
    pub descriptors: usize,
    pub memfds: usize,
    pub threads: usize,
    /// Command lines of the GPU children and the interpreters, zombies included.
    pub children: Vec<String>,
    /// Anonymous resident memory.
    pub memory_bytes: u64,
    /// Resident memory, files included.
    pub resident_bytes: u64,
}

#[derive(Debug)]
pub struct Watch {
    began: Instant,
    samples: Vec<Sample>,
    watched: Duration,
    most_descriptors: usize,
    /// First sighting of each zombie.
    zombies: BTreeMap<u32, Instant>,
    longest_zombie: Duration,
}

impl Watch {
    pub fn new(idle: &Sample) -> Self {
        Self {
            began: Instant::now(),
            samples: vec![],
            watched: Duration::ZERO,
            most_descriptors: idle.descriptors,
            zombies: BTreeMap::new(),
            longest_zombie: Duration::ZERO,
        }
    }

    /// Figures of an idle worker.
    ///
    /// # Errors
    /// The worker does not become idle.
    pub fn settled(worker: &Worker) -> Result<Sample> {
        worker.wait_idle()?;
        // Connections of clients that have just left.
        std::thread::sleep(Duration::from_secs(1));
        Ok(sample(worker.pid))
    }

    pub fn look(&mut self, worker: &Worker) {
        let sample = sample(worker.pid);
        self.most_descriptors = self.most_descriptors.max(sample.descriptors);
        self.samples.push(sample);
        self.watched = self.began.elapsed();
        let children = offspring(worker.pid);
        self.zombies(children.into_iter().filter(|pid| is_zombie(*pid)));
    }

    fn zombies(&mut self, zombies: impl Iterator<Item = u32>) {
        let now = Instant::now();
        let seen = |pid| (pid, *self.zombies.get(&pid).unwrap_or(&now));
        self.zombies = zombies.map(seen).collect();
        let longest = self.zombies.values().map(Instant::elapsed).max();
        self.longest_zombie = self.longest_zombie.max(longest.unwrap_or_default());
    }

    /// Figures that differ from `before`.
    pub fn verdict(&self, worker: &Worker, before: &Sample) -> Vec<String> {
        let mut violations = Vec::new();
        let after = match Self::settled(worker) {
            Ok(after) => after,
            Err(error) => return vec![format!("{error:#}")],
        };
        let mut at_most = |what: &str, before: usize, after: usize, more: usize| {
            if after > before + more {
                violations.push(format!("{what}: {before} before, {after} after"));
            }
        };
        at_most(
            "descriptors",
            before.descriptors,
            after.descriptors,
            MORE_DESCRIPTORS,
        );
        at_most("memfds", before.memfds, after.memfds, 0);
        at_most("threads", before.threads, after.threads, MORE_THREADS);
        if after.children.len() > before.children.len() {
            violations.push(format!(
                "child processes: {:?} before, {:?} after",
                before.children, after.children
            ));
        }
        violations.extend(self.memory_verdict());
        if self.longest_zombie > ZOMBIE_PATIENCE {
            violations.push(format!("a zombie stayed for {:?}", self.longest_zombie));
        }
        violations
    }

    fn memory_verdict(&self) -> Vec<String> {
        let Some((early, late)) = self.memory() else {
            return vec!["nobody looked at the memory".to_owned()];
        };
        let mut violations = Vec::new();
        if self.watched >= LONG_ENOUGH && late > early + MORE_MEMORY_BYTES {
            violations.push(format!("memory grew from {early} to {late} bytes"));
        }
        if late > MOST_MEMORY_BYTES {
            violations.push(format!("{late} bytes of memory at the end"));
        }
        violations
    }

    /// Summary for the report.
    pub fn summary(&self, before: &Sample) -> String {
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        let (early, late) = self.memory().unwrap_or_default();
        format!(
            "{} descriptors and {} threads when idle, at most {} descriptors in the storm; \
             memory {:.1} MiB in the second quarter, {:.1} MiB in the last; resident, files included, \
             at most {:.1} MiB",
            before.descriptors,
            before.threads,
            self.most_descriptors,
            mib(early),
            mib(late),
            mib(self.peak_bytes()),
        )
    }

    /// Peak of resident memory.
    pub fn peak_bytes(&self) -> u64 {
        let bytes = self.samples.iter().map(|sample| sample.resident_bytes);
        bytes.max().unwrap_or(0)
    }

    /// Medians of the second and the last quarter.
    fn memory(&self) -> Option<(u64, u64)> {
        let quarter = self.samples.len() / 4;
        let median = |samples: &[Sample]| {
            let mut bytes: Vec<_> = samples.iter().map(|sample| sample.memory_bytes).collect();
            bytes.sort_unstable();
            bytes.get(bytes.len() / 2).copied()
        };
        Some((
            median(&self.samples[quarter..2 * quarter])?,
            median(&self.samples[3 * quarter..])?,
        ))
    }
}

fn sample(pid: u32) -> Sample {
    let links: Vec<_> = fs::read_dir(format!("/proc/{pid}/fd"))
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| fs::read_link(entry.path()).ok())
        .collect();
    Sample {
        descriptors: links.len(),
        memfds: links
            .iter()
            .filter(|link| link.to_string_lossy().contains("memfd:"))
            .count(),
        threads: fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count),
        children: offspring(pid).into_iter().map(command_line).collect(),
        memory_bytes: memory(pid, "RssAnon:").unwrap_or(0),
        resident_bytes: memory(pid, "VmRSS:").unwrap_or(0),
    }
}

fn memory(pid: u32, what: &str) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(what))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? * 1024)
}

fn command_line(pid: u32) -> String {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&line).replace('\0', " ")
}

fn is_zombie(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')')
        .is_some_and(|(_, rest)| rest.trim_start().starts_with('Z'))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Watch with four samples of so many MiB.
    fn watch(mib: [u64; 4], watched: Duration) -> Watch {
        let mut watch = Watch::new(&Sample::default());
        watch.samples = mib
            .map(|mib| Sample {
                memory_bytes: mib << 20,
                ..Sample::default()
            })
            .to_vec();
        watch.watched = watched;
        watch
    }

    #[test]
    fn one_zombie_after_the_other_is_none_that_stays() {
        let mut watch = watch([20; 4], LONG_ENOUGH);
        watch.zombies([1, 2].into_iter());
        std::thread::sleep(Duration::from_millis(2));
        watch.zombies([3].into_iter());
        assert_eq!(watch.longest_zombie.as_millis(), 0);
        std::thread::sleep(Duration::from_millis(2));
        watch.zombies([3].into_iter());
        assert!(watch.longest_zombie >= Duration::from_millis(2));
    }

    #[test]
    fn memory_is_judged_in_every_run_and_its_growth_in_long_ones() {
        let short = Duration::from_secs(60);
        let judge = |mib, watched| watch(mib, watched).memory_verdict().len();
        assert_eq!(judge([20, 30, 50, 60], short), 0);
        assert_eq!(judge([20, 30, 50, 60], LONG_ENOUGH), 1);
        assert_eq!(judge([20, 30, 40, 40], LONG_ENOUGH), 0);
        assert_eq!(judge([20, 200, 210, 210], short), 1);
        assert_eq!(judge([20, 30, 50, 300], LONG_ENOUGH), 2);
        assert_eq!(Watch::new(&Sample::default()).memory_verdict().len(), 1);
    }
}
