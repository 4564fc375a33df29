//! The host: kernel features, limits of this process, and memory.
//!
//! A service manager sets other limits than a shell: these findings are about the environment in which `doctor` runs.

use super::Finding;
use crate::config::HttpConfig;
use crate::descriptors;
use nix::sys::resource::{Resource, getrlimit};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{PidfdFlags, getpid, pidfd_open};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Number of listeners by default: both loopback addresses.
const LISTENERS_BY_DEFAULT: usize = 2;

/// Tries each kernel feature that every child needs.
pub(super) fn kernel() -> Finding {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let pidfd = pidfd_open(getpid(), PidfdFlags::empty());
    let memory = memfd_create("worker-orcd-doctor", MemfdFlags::ALLOW_SEALING);
    kernel_of(
        release.trim(),
        pidfd.map(drop).map_err(io::Error::from),
        memory.map(drop).map_err(io::Error::from),
    )
}

fn kernel_of(release: &str, pidfd: io::Result<()>, memory: io::Result<()>) -> Finding {
    const SUBJECT: &str = "kernel";
    let tried = [("pidfd_open", pidfd), ("memfd_create", memory)];
    let refused = tried.into_iter().filter_map(|(call, result)| {
        let error = result.err()?;
        Some(format!("{call}: {error}"))
    });
    let refused: Vec<String> = refused.collect();
    if refused.is_empty() {
        return Finding::good(SUBJECT, format!("Linux {release}"));
    }
    Finding::bad(
        SUBJECT,
        format!("Linux {release} refuses {}", refused.join(", ")),
        "take Linux 5.4 or newer, and let the filter of system calls (seccomp) of the container or \
         unit pass both",
    )
}

/// Checks the number of client connections that the descriptor limit allows.
pub(super) fn open_files(http: &HttpConfig) -> Finding {
    const SUBJECT: &str = "limits";
    match getrlimit(Resource::RLIMIT_NOFILE) {
        // A worker raises its soft limit to the hard limit.
        Ok((_, hard)) => open_files_of(hard, http),
        Err(error) => Finding::note(SUBJECT, error.to_string(), "the limit could not be read"),
    }
}

pub(super) fn open_files_of(limit: u64, http: &HttpConfig) -> Finding {
    const SUBJECT: &str = "limits";
    const REMEDY: &str = "raise it (ulimit -Hn, or LimitNOFILE= of a systemd unit)";
    let wanted = http.max_connections.get();
    let listeners = match http.hosts.len() {
        0 => LISTENERS_BY_DEFAULT,
        hosts => hosts,
    };
    match descriptors::budget(limit, listeners, wanted) {
        Err(too_few) => Finding::bad(SUBJECT, too_few.to_string(), REMEDY),
        Ok(budget) if budget.connections < wanted => Finding::note(
            SUBJECT,
            format!(
                "{limit} open files leave room for {} connections of --max-connections {wanted}",
                budget.connections
            ),
            format!(
                "{REMEDY} to {} or more: idle clients have to make room earlier",
                budget.kept_back + wanted as u64
            ),
        ),
        Ok(_) => Finding::good(
            SUBJECT,
            format!("{limit} open files, room for {wanted} connections"),
        ),
    }
}

/// Checks limits that could end a child during its work. Unlimited ones give no finding.
pub(super) fn limits(model_bytes: Option<u64>) -> Vec<Finding> {
    let limit = |resource| match getrlimit(resource) {
        Ok((soft, _)) if soft != u64::MAX => Some(soft),
        _ => None,
    };
    let of_files = limit(Resource::RLIMIT_FSIZE).map(|bytes| {
        let what = format!("files may have {} MiB at most", bytes >> 20);
        let remedy = "ulimit -f unlimited, or LimitFSIZE=infinity: weights and KV cache lie in \
                      files in memory, which count";
        (bytes, what, remedy)
    });
    let of_addresses = limit(Resource::RLIMIT_AS).map(|bytes| {
        let what = format!("a process may map {} MiB at most", bytes >> 20);
        let remedy = "ulimit -v unlimited, or LimitAS=infinity: the model's file, weights and KV \
                      cache are mapped, and CUDA maps more than the card has";
        (bytes, what, remedy)
    });
    let limits = of_files.into_iter().chain(of_addresses);
    limits
        .map(|(bytes, what, remedy)| match model_bytes {
            Some(model) if model > bytes => Finding::bad(
                "limits",
                format!("{what}, and the model's has {}", model >> 20),
                remedy,
            ),
            _ => Finding::note("limits", what, remedy),
        })
        .collect()
}

/// Checks available memory and limits of the control group. `model_bytes`: size of a model in host memory.
pub(super) fn memory(model_bytes: Option<u64>) -> Vec<Finding> {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let root = Path::new("/sys/fs/cgroup");
    let mut findings = vec![memory_of(
        available(&text),
        group_limit(root, &groups),
        model_bytes,
    )];
    findings.extend(group_kill(root, &groups));
    findings
}

fn memory_of(
    available: Option<u64>,
    limit: Option<(u64, PathBuf)>,
    model_bytes: Option<u64>,
) -> Finding {
    const SUBJECT: &str = "memory";
    let Some(available) = available else {
        return Finding::note(SUBJECT, "unknown", "/proc/meminfo could not be read");
    };
    let mut what = format!("{} MiB available", available >> 20);
    if let Some((limit, file)) = &limit {
        what += &format!(", at most {} by {}", limit >> 20, file.display());
    }
    let room = limit.map_or(available, |(limit, _)| limit.min(available));
    match model_bytes {
        Some(model) if model > room => Finding::bad(
            SUBJECT,
            format!("{what}, and the model's file has {}", model >> 20),
            "take a smaller model or quantisation, or give more memory (MemoryMax= of a unit, the \
             container's limit)",
        ),
        _ => Finding::good(SUBJECT, what),
    }
}

/// Available memory, in bytes.
fn available(meminfo: &str) -> Option<u64> {
    let line = meminfo
        .lines()
        .find(|line| line.starts_with("MemAvailable:"))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kib << 10)
}

/// Control groups of this process with a memory controller, innermost first. In a container the path may be the host's;
/// then only the root exists.
fn groups(root: &Path, lines: &str) -> Vec<PathBuf> {
    let second = lines.lines().find_map(|line| line.strip_prefix("0::/"));
    let first = lines.lines().find_map(|line| {
        let (controllers, path) = line.split_once(':')?.1.split_once(":/")?;
        let is_it = controllers.split(',').any(|it| it == "memory");
        is_it.then_some(path)
    });
    let one = first.map(|path| (root.join("memory"), path));
    let two = second.map(|path| (root.to_owned(), path));
    let upwards = |(root, path): (PathBuf, &str)| {
        let innermost = root.join(path);
        let all = innermost.ancestors().map(Path::to_owned);
        all.take_while(|it| it.starts_with(&root))
            .collect::<Vec<_>>()
    };
    one.into_iter().chain(two).flat_map(upwards).collect()
}

/// Lowest limit, in bytes, and its file.
fn group_limit(root: &Path, lines: &str) -> Option<(u64, PathBuf)> {
    const FILES: [&str; 3] = ["memory.max", "memory.high", "memory.limit_in_bytes"];
    /// Cgroup version 1 writes "no limit" as the largest number of whole pages.
    const UNLIMITED: u64 = 1 << 62;
    let groups = groups(root, lines).into_iter();
    let files = groups.flat_map(|group| FILES.map(|file| group.join(file)));
    let limits = files.filter_map(|file| {
        let limit: u64 = fs::read_to_string(&file).ok()?.trim().parse().ok()?;
        (limit < UNLIMITED).then_some((limit, file))
    });
    limits.min()
}

/// Checks for group kill, which `OOMPolicy=kill` sets: the OOM killer then ends the whole group.
fn group_kill(root: &Path, lines: &str) -> Option<Finding> {
    let mut files = groups(root, lines)
        .into_iter()
        .map(|it| it.join("memory.oom.group"));
    let file = files.find(|it| fs::read_to_string(it).is_ok_and(|text| text.trim() == "1"))?;
    Some(Finding::note(
        "memory",
        format!("{} is 1: the worker is killed with a child", file.display()),
        "OOMPolicy=continue in the unit, or 0 in that file: a child is replaced, and no stream ends",
    ))
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::*;

    #[test]
    fn a_kernel_that_refuses_a_call_is_bad_and_names_it() {
        assert!(matches!(kernel().verdict, Verdict::Good(what) if what.starts_with("Linux ")));
        let old = kernel_of("4.19", Err(io::ErrorKind::Unsupported.into()), Ok(()));
        let Verdict::Bad(why, remedy) = old.verdict else {
            panic!("an old kernel");
        };
        assert_eq!(why, "Linux 4.19 refuses pidfd_open: unsupported");
        assert!(remedy.contains("5.4"), "{remedy}");
        assert!(kernel_of("6.1", Ok(()), Err(io::ErrorKind::PermissionDenied.into())).is_bad());
    }

    #[test]
    fn available_memory_is_found_by_name() {
        let text = "MemTotal: 9 kB\nMemAvailable:   2048 kB\n";
        assert_eq!(available(text), Some(2 << 20));
        assert_eq!(available("MemTotal: 9 kB\n"), None);
        assert!(matches!(
            memory_of(None, None, None).verdict,
            Verdict::Note(..)
        ));
    }

    #[test]
    fn the_least_limit_of_all_groups_counts_against_the_model() {
        let root = tempfile::tempdir().unwrap();
        let inner = root.path().join("a/b");
        fs::create_dir_all(&inner).unwrap();
        fs::write(inner.join("memory.max"), "max\n").unwrap();
        fs::write(root.path().join("a/memory.max"), "1048576\n").unwrap();
        let limit = group_limit(root.path(), "0::/a/b\n");
        assert_eq!(limit, Some((1 << 20, root.path().join("a/memory.max"))));
        assert_eq!(group_limit(root.path(), "0::/\n"), None);
        let plenty = Some(1 << 30);
        let small = memory_of(plenty, limit.clone(), Some((1 << 20) - 1));
        assert!(matches!(small.verdict, Verdict::Good(what) if what.contains("at most 1 by")));
        assert!(memory_of(plenty, limit, Some((1 << 20) + 1)).is_bad());
        assert!(memory_of(plenty, None, Some((1 << 30) + 1)).is_bad());
    }

    #[test]
    fn in_a_container_the_first_versions_limit_is_at_the_root() {
        let root = tempfile::tempdir().unwrap();
        let memory = root.path().join("memory");
        fs::create_dir(&memory).unwrap();
        let file = memory.join("memory.limit_in_bytes");
        let lines = "7:cpu:/x\n5:memory,hugetlb:/docker/1234\n";
        fs::write(&file, "4096\n").unwrap();
        assert_eq!(group_limit(root.path(), lines), Some((4096, file.clone())));
        fs::write(&file, "9223372036854771712\n").unwrap();
        assert_eq!(group_limit(root.path(), lines), None);
    }

    #[test]
    fn a_group_that_dies_as_a_whole_is_noted() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("memory.oom.group");
        fs::write(&file, "0\n").unwrap();
        assert!(group_kill(root.path(), "0::/\n").is_none());
        fs::write(&file, "1\n").unwrap();
        let finding = group_kill(root.path(), "0::/\n").unwrap();
        assert!(
            matches!(finding.verdict, Verdict::Note(_, remedy) if remedy.contains("OOMPolicy"))
        );
    }
}
