//! No new privileges, resource limits, and no core dump.
//!
//! A core of this process would hold prompts, answers and the model. The limit alone does not prevent one: if cores are
//! piped to a collector, the kernel ignores it. A process that is not dumpable leaves no core at all, and only root
//! reads its memory or attaches a debugger to it.
//!
//! Deliberately absent: limits of address space and file size. NVIDIA's driver reserves more addresses than there is
//! memory, and the limit of file sizes also applies to shared memory.

use nix::sys::prctl;
use nix::sys::resource::{Resource, getrlimit, rlim_t, setrlimit};

/// The usual default of programs; the driver opens some tens for a card.
const OPEN_FILES: rlim_t = 1024;

const LIMITS: [(Resource, rlim_t); 3] = [
    (Resource::RLIMIT_CORE, 0),
    (Resource::RLIMIT_NOFILE, OPEN_FILES),
    (Resource::RLIMIT_MSGQUEUE, 0),
];

/// Applies all limits. Returns a description of each gap.
pub(super) fn set() -> Vec<String> {
    let mut missing = Vec::new();
    let mut note = |what: &str, outcome: nix::Result<()>| {
        if let Err(error) = outcome {
            missing.push(format!("{what}: {error}"));
        }
    };
    note("no new privileges", prctl::set_no_new_privs());
    for (resource, limit) in LIMITS {
        note(&format!("{resource:?}"), lower(resource, limit));
    }
    note("no core", prctl::set_dumpable(false));
    missing
}

/// Lowers a limit; a lower one stays.
fn lower(resource: Resource, limit: rlim_t) -> nix::Result<()> {
    let (_, hard) = getrlimit(resource)?;
    setrlimit(resource, limit.min(hard), limit.min(hard))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// Marks the process in which the test is repeated: limits apply to a process, so no other test may share it.
    const INSIDE: &str = "WORKER_ORCD_TEST_LIMITS";

    #[test]
    fn a_process_leaves_no_core_and_has_the_limits_or_lower_ones() {
        if std::env::var_os(INSIDE).is_some() {
            setrlimit(Resource::RLIMIT_NOFILE, 100, 200).unwrap();
            assert_eq!(set(), Vec::<String>::new());
            let [core, files, messages] = LIMITS.map(|(resource, _)| getrlimit(resource).unwrap());
            assert_eq!((core, files, messages), ((0, 0), (200, 200), (0, 0)));
            assert_eq!(prctl::get_dumpable(), Ok(false));
            assert_eq!(prctl::get_no_new_privs(), Ok(true));
            return;
        }
        let name =
            "confinement::limits::tests::a_process_leaves_no_core_and_has_the_limits_or_lower_ones";
        let inside = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name])
            .env(INSIDE, "1")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&inside.stdout);
        assert!(
            inside.status.success() && said.contains("1 passed"),
            "{said}"
        );
    }
}
