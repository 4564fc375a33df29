//! File descriptors: the limit of this process, and the share of it for clients.
//!
//! A connection is a descriptor, and a spawn needs descriptors too. Clients can open any number of connections, so the
//! descriptors of the next child are reserved: connections get at most the process's limit less [`kept_back`].

use rustix::io::fcntl_dupfd_cloexec;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::fs::File;
use std::io;
use std::os::fd::RawFd;
use thiserror::Error;

/// Connections beyond the bound that serve only probes.
pub(crate) const PROBE_CONNECTIONS: usize = 16;

/// Minimum number of client connections. A smaller budget is a configuration error.
const FEWEST_CONNECTIONS: u64 = 8;

/// Maximum number of crash reports that are read for clients at one time.
pub(crate) const CRASH_READERS: usize = 4;

/// Maximum number of connections to the admin socket.
pub(crate) const ADMIN_CONNECTIONS: usize = 4;

/// Reserved descriptors: each user with its maximum number of open descriptors.
pub(crate) const KEPT_BACK: &[(&str, u64)] = &[
    ("standard input, output and error", 3),
    (
        "the runtime's poll and wake-up, and the two ends of its signals",
        6,
    ),
    ("our signals", 2),
    (
        "three children, of which one dies and one stands by: two sockets, pidfd, two pipes, recorder each",
        18,
    ),
    (
        "the model file, the memory of the weights, and a connection that is not the child's",
        3,
    ),
    (
        "the making of two children: door, pipes' other ends, recorder, exec's own pipe each",
        20,
    ),
    (
        "processes that help: pidfd and three pipes each, with their successors",
        16,
    ),
    ("a crash report and its directory", 4),
    ("crash reports that clients read", CRASH_READERS as u64),
    ("the library of the GPU's driver", 24),
    ("what /proc and /sys say of memory", 2),
    ("two socket directories and their locks", 4),
    ("the callback and its name's look-up", 4),
    ("settings that are read again", 2),
    ("probes", PROBE_CONNECTIONS as u64),
    (
        "the admin socket, its connections, and one that waits for a place",
        2 + ADMIN_CONNECTIONS as u64,
    ),
    ("whatever was forgotten", 3),
];

/// Descriptors of a listener: itself, and one accepted connection that waits for a place.
const EACH_LISTENER: u64 = 2;

/// Number of connections within the process's limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Budget {
    /// Limit of the process.
    pub descriptors: u64,
    pub kept_back: u64,
    pub connections: usize,
}

#[derive(Debug, Error, PartialEq, Eq)]
#[error(
    "{limit} file descriptors are too few: {kept_back} are kept back for children and probes, and \
     at least {FEWEST_CONNECTIONS} clients must be able to connect; raise the limit (ulimit -n, or \
     LimitNOFILE= of a systemd unit) to {} or more",
    .kept_back + FEWEST_CONNECTIONS
)]
pub(crate) struct TooFew {
    limit: u64,
    kept_back: u64,
}

/// Raises this process's soft limit to its hard limit and returns it.
#[must_use]
pub(crate) fn raise_limit() -> u64 {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: maximum,
        maximum,
    };
    match setrlimit(Resource::Nofile, raised) {
        Ok(()) => maximum.unwrap_or(u64::MAX),
        Err(error) => {
            tracing::warn!(reason = %error, "descriptor_limit_not_raised");
            current.unwrap_or(u64::MAX)
        }
    }
}

/// Initial size of the kernel's descriptor table: a thousand connections and the reserve.
const ROOM: u64 = 2048;

/// Grows the kernel's table of this process's descriptors to its final size. In a process of several threads a growth
/// takes tens of milliseconds (`expand_files` of Linux waits for a grace period of RCU) and delays streams, for example
/// at a failover. It is therefore called before there are threads.
///
/// # Errors
/// If the kernel refuses. The table then grows later.
pub(crate) fn make_room() -> io::Result<()> {
    let last = raise_limit().min(ROOM).saturating_sub(1);
    let file = File::open("/dev/null")?;
    fcntl_dupfd_cloexec(&file, RawFd::try_from(last).unwrap_or(RawFd::MAX))?;
    Ok(())
}

/// Number of reserved descriptors with this number of listeners.
#[must_use]
pub fn kept_back(listeners: usize) -> u64 {
    let table: u64 = KEPT_BACK.iter().map(|(_, most)| most).sum();
    table + EACH_LISTENER * listeners as u64
}

/// Budget of at most `wanted` connections within `limit`.
///
/// # Errors
/// If fewer than the minimum are left.
pub(crate) fn budget(limit: u64, listeners: usize, wanted: usize) -> Result<Budget, TooFew> {
    let kept_back = kept_back(listeners);
    let left = limit.saturating_sub(kept_back);
    if left < FEWEST_CONNECTIONS {
        return Err(TooFew { limit, kept_back });
    }
    Ok(Budget {
        descriptors: limit,
        kept_back,
        connections: wanted.min(usize::try_from(left).unwrap_or(usize::MAX)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_back_adds_up_and_the_usual_limits_leave_clients_most_of_them() {
        assert_eq!(kept_back(0), 137);
        assert_eq!(kept_back(2), 141);
        let connections = |limit| budget(limit, 2, 1024).map(|budget| budget.connections);
        assert_eq!(connections(256), Ok(115));
        assert_eq!(connections(1024), Ok(883));
        assert_eq!(connections(8192), Ok(1024), "no more than were asked for");
    }

    #[test]
    fn the_table_of_descriptors_has_room_before_it_is_needed() {
        make_room().unwrap();
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let size = status.lines().find_map(|line| line.strip_prefix("FDSize:"));
        let size: u64 = size.unwrap().trim().parse().unwrap();
        assert!(size >= ROOM.min(raise_limit()), "{size}");
        assert!(ROOM >= 1024 + kept_back(2), "a thousand connections");
    }

    #[test]
    fn a_limit_that_leaves_nobody_a_place_is_refused_with_the_one_that_would_do() {
        let refusal = budget(120, 2, 1024).unwrap_err().to_string();
        assert!(
            refusal.contains("120 file") && refusal.contains("to 149"),
            "{refusal}"
        );
        assert_eq!(budget(149, 2, 1024).map(|budget| budget.connections), Ok(8));
    }
}
