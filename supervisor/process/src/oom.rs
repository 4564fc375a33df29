//! The kernel's counter of OOM kills, to distinguish their SIGKILL from any other.
//!
//! The counter is that of our own control group, which the child shares, or else of the whole machine. Both only grow,
//! so two readings, before the child and after its death, show a kill. Without control groups the victim may be another
//! process. An operator's `kill -9` during the same child is then misnamed, without further effect.

use std::fs;
use std::path::PathBuf;

/// First reading of the counter, and its file.
#[derive(Debug)]
pub(crate) struct OomWatch {
    source: Option<PathBuf>,
    kills: u64,
}

impl OomWatch {
    pub(crate) fn start() -> Self {
        let source = own_group_events()
            .into_iter()
            .chain([PathBuf::from("/proc/vmstat")])
            .find(|path| read(path).is_some());
        let kills = source.as_ref().and_then(read).unwrap_or(0);
        Self { source, kills }
    }

    /// True if there was an OOM kill since the start.
    pub(crate) fn has_struck(&self) -> bool {
        let now = self.source.as_ref().and_then(read);
        now.is_some_and(|kills| kills > self.kills)
    }
}

/// `memory.events` of this process's control group (v2).
fn own_group_events() -> Option<PathBuf> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let path = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    Some(
        PathBuf::from("/sys/fs/cgroup")
            .join(path)
            .join("memory.events"),
    )
}

fn read(path: &PathBuf) -> Option<u64> {
    kills(&fs::read_to_string(path).ok()?)
}

/// OOM kills in the text of `memory.events` or `/proc/vmstat`, which share this format.
fn kills(text: &str) -> Option<u64> {
    let number = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
    number?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    #[test]
    fn the_count_is_found_among_its_like() {
        let events = "low 0\nhigh 12\nmax 31\noom 4\noom_kill 3\noom_group_kill 0\n";
        assert_eq!(kills(events), Some(3));
        assert_eq!(
            kills("pgfault 1\noom_kill 17\nunevictable_pgs 2\n"),
            Some(17)
        );
        assert_eq!(kills("oom 4\noom_group_kill 1\n"), None);
    }

    #[test]
    fn a_count_that_grows_means_a_victim() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(b"oom 1\noom_kill 1\n").unwrap();
        let source = Some(file.path().to_owned());
        let watch = OomWatch { source, kills: 1 };
        assert!(!watch.has_struck());
        fs::write(file.path(), "oom 2\noom_kill 2\n").unwrap();
        assert!(watch.has_struck());
    }

    #[test]
    fn a_machine_that_does_not_count_never_says_so() {
        let source = Some(PathBuf::from("/nonexistent/memory.events"));
        assert!(!OomWatch { source, kills: 0 }.has_struck());
        assert!(
            !OomWatch {
                source: None,
                kills: 0
            }
            .has_struck()
        );
    }
}
