//! Memory limits of the process's control group and of all its ancestors.
//!
//! ```text
//! /proc/self/cgroup     which group, by hierarchy       0::/a/b   or   4:memory:/a/b
//! /proc/self/mountinfo  where that hierarchy is seen, and from which group on (containers)
//! group, parent, …      memory.max, memory.high, memory.current, memory.stat            (v2)
//!                       memory.limit_in_bytes, memory.usage_in_bytes, memory.stat       (v1)
//! ```
//!
//! The page cache counts as free: the kernel reclaims it before it kills a process. Usage above `memory.high` kills no
//! process, but throttles all of them, so it counts as a limit here.

use super::memory::HostMemory;
use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use worker_orcd_ipc::MemoryBound;

/// Limit and usage of each group that has a limit. `process` is `/proc/self`. Empty without control groups.
pub fn rooms(process: &Path) -> Vec<HostMemory> {
    let read = |name| fs::read_to_string(process.join(name)).unwrap_or_default();
    let (groups, mounts) = (read("cgroup"), read("mountinfo"));
    let versions = [Version::Two, Version::One];
    let walks = versions.map(|version| version.walk(&groups, &mounts));
    versions
        .into_iter()
        .zip(walks)
        .flat_map(|(version, walk)| {
            walk.into_iter()
                .filter_map(move |group| version.room(&group))
        })
        .collect()
}

#[derive(Debug, Clone, Copy)]
enum Version {
    One,
    Two,
}

impl Version {
    /// Folders of this process's group and of its ancestors, as far as they are visible.
    fn walk(self, groups: &str, mounts: &str) -> Vec<PathBuf> {
        let Some(group) = groups.lines().find_map(|line| self.group(line)) else {
            return Vec::new();
        };
        let Some((root, mount)) = mounts.lines().find_map(|line| self.mount(line)) else {
            return Vec::new();
        };
        // A container may see its own group as the root of the mount.
        let below = Path::new(group)
            .strip_prefix(&root)
            .unwrap_or(Path::new(""));
        let folder = mount.join(below);
        let inside = |folder: &&Path| folder.starts_with(&mount);
        let walk = folder.ancestors().take_while(inside);
        walk.map(Path::to_owned).collect()
    }

    /// The path in a line of `/proc/self/cgroup`.
    fn group(self, line: &str) -> Option<&str> {
        let (number, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        let is_it = match self {
            Self::One => controllers.split(',').any(|name| name == "memory"),
            Self::Two => number == "0" && controllers.is_empty(),
        };
        is_it.then_some(path)
    }

    /// Root and mount point in a line of `/proc/self/mountinfo`.
    fn mount(self, line: &str) -> Option<(PathBuf, PathBuf)> {
        let (before, after) = line.split_once(" - ")?;
        let mut before = before.split(' ').skip(3);
        let (root, mount) = (before.next()?, before.next()?);
        let mut after = after.split(' ');
        let (kind, options) = (after.next()?, after.nth(1)?);
        let is_it = match self {
            Self::One => kind == "cgroup" && options.split(',').any(|name| name == "memory"),
            Self::Two => kind == "cgroup2",
        };
        is_it.then(|| (unescaped(root), unescaped(mount)))
    }

    /// Limit and usage of a group. `None` without a limit, or without usage accounting.
    fn room(self, group: &Path) -> Option<HostMemory> {
        let number = |name: &str| number(&fs::read_to_string(group.join(name)).ok()?);
        let (limit, used, file_pages) = match self {
            Self::One => {
                let limit = number("memory.limit_in_bytes").filter(|limit| *limit < UNLIMITED);
                let pages = ["total_inactive_file", "total_active_file"];
                (limit, number("memory.usage_in_bytes")?, pages)
            }
            Self::Two => {
                let limits = [number("memory.max"), number("memory.high")];
                let pages = ["inactive_file", "active_file"];
                let limit = limits.into_iter().flatten().min();
                (limit, number("memory.current")?, pages)
            }
        };
        let stat = fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
        let reclaimable: u64 = file_pages
            .into_iter()
            .filter_map(|name| field(&stat, name))
            .sum();
        let total = limit?;
        Some(HostMemory {
            total,
            available: total.saturating_sub(used.saturating_sub(reclaimable)),
            bound: MemoryBound::ControlGroup,
        })
    }
}

/// Version 1 writes no limit as the largest number of whole pages.
const UNLIMITED: u64 = 1 << 62;

/// A number of bytes; `None` for `max`, the absence of a limit.
fn number(text: &str) -> Option<u64> {
    u64::from_str(text.trim()).ok()
}

fn field(stat: &str, name: &str) -> Option<u64> {
    let mut lines = stat.lines().filter_map(|line| line.split_once(' '));
    lines
        .find(|(found, _)| *found == name)
        .and_then(|(_, value)| number(value))
}

/// A path with `\040` replaced by a space, as the kernel escapes it.
fn unescaped(path: &str) -> PathBuf {
    PathBuf::from(path.replace("\\040", " "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tempfile::TempDir;

    const MIB: u64 = 1 << 20;

    /// A simulated `/proc/self` beside a simulated mount.
    struct Machine {
        dir: TempDir,
    }

    impl Machine {
        /// A process with this `cgroup` and this `mountinfo`; `MOUNT` stands for the simulated mount point.
        fn new(cgroup: &str, mountinfo: &str) -> Self {
            let dir = TempDir::new().unwrap();
            let mount = dir.path().join("mount");
            fs::create_dir(&mount).unwrap();
            let mountinfo = mountinfo.replace("MOUNT", mount.to_str().unwrap());
            fs::write(dir.path().join("cgroup"), cgroup).unwrap();
            fs::write(dir.path().join("mountinfo"), mountinfo).unwrap();
            Self { dir }
        }

        fn group(self, path: &str, files: &[(&str, &str)]) -> Self {
            let folder = self.dir.path().join("mount").join(path);
            fs::create_dir_all(&folder).unwrap();
            for (name, text) in files {
                fs::write(folder.join(name), text).unwrap();
            }
            self
        }

        /// Limit and rest, in MiB, from the innermost group outwards.
        fn rooms(&self) -> Vec<(u64, u64)> {
            let rooms = rooms(self.dir.path());
            rooms
                .iter()
                .map(|room| (room.total / MIB, room.available / MIB))
                .collect()
        }
    }

    const V2: &str = "31 23 0:26 / MOUNT rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
    const V1: &str = "30 23 0:25 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
                      31 23 0:26 / MOUNT rw - cgroup cgroup rw,memory\n";

    fn v2(
        max: &str,
        high: &str,
        current: u64,
        inactive: u64,
        active: u64,
    ) -> [(&'static str, String); 4] {
        let stat = format!(
            "anon 5\nfile 9\ninactive_file {}\nactive_file {}\n",
            inactive * MIB,
            active * MIB
        );
        [
            ("memory.max", format!("{max}\n")),
            ("memory.high", format!("{high}\n")),
            ("memory.current", format!("{}\n", current * MIB)),
            ("memory.stat", stat),
        ]
    }

    fn add(machine: Machine, path: &str, files: [(&'static str, String); 4]) -> Machine {
        let files = files.each_ref().map(|(name, text)| (*name, text.as_str()));
        machine.group(path, &files)
    }

    #[test]
    fn every_limit_up_the_tree_counts_and_pages_of_files_are_left() {
        let machine = Machine::new("0::/pod/worker\n", V2);
        let own = v2(&(600 * MIB).to_string(), "max", 200, 30, 20);
        let pod = v2("max", &(500 * MIB).to_string(), 300, 0, 0);
        let machine = add(add(machine, "pod/worker", own), "pod", pod);
        // The root of the hierarchy has no such files.
        assert_eq!(machine.rooms(), [(600, 450), (500, 200)]);
    }

    #[test]
    fn of_two_limits_of_a_group_the_smaller_counts_and_nothing_is_less_than_nothing() {
        let machine = Machine::new("0::/worker\n", V2);
        let own = v2(
            &(600 * MIB).to_string(),
            &(100 * MIB).to_string(),
            200,
            0,
            0,
        );
        assert_eq!(add(machine, "worker", own).rooms(), [(100, 0)]);
    }

    #[test]
    fn without_a_limit_there_is_no_room_to_tell() {
        let machine = Machine::new("0::/worker\n", V2);
        let own = v2("max", "max", 200, 0, 0);
        assert_eq!(add(machine, "worker", own).rooms(), []);
        assert_eq!(Machine::new("", "").rooms(), []);
        assert!(rooms(Path::new("/nonexistent")).is_empty());
    }

    /// `docker run` with control groups of version 1 shows the group itself as the mount's root.
    #[test]
    fn a_container_finds_its_group_where_it_is_mounted() {
        let mounts = V1.replace("0:26 / MOUNT", "0:26 /docker/abc MOUNT");
        let machine = Machine::new("5:cpu,cpuacct:/docker/abc\n4:memory:/docker/abc\n", &mounts);
        let stat = format!("inactive_file 1\ntotal_inactive_file {}\n", 50 * MIB);
        let machine = machine.group(
            "",
            &[
                ("memory.limit_in_bytes", &(330 * MIB).to_string()),
                ("memory.usage_in_bytes", &(80 * MIB).to_string()),
                ("memory.stat", &stat),
            ],
        );
        assert_eq!(machine.rooms(), [(330, 300)]);
    }

    #[test]
    fn version_1_writes_no_limit_as_a_large_number() {
        let files = [
            ("memory.limit_in_bytes", "9223372036854771712"),
            ("memory.usage_in_bytes", "1"),
        ];
        let machine = Machine::new("4:memory:/a\n0::/\n", V1).group("a", &files);
        assert_eq!(machine.rooms(), []);
    }
}
