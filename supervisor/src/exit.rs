//! Exit codes of `worker-orcd`.
//!
//! [`SupervisorExit`] of the lifecycle has the codes for the end of an engine. [`WorkerExit::all`] lists all codes for
//! `--help`, and a test compares them with docs/operate/deaths.md.

use strum::VariantArray as _;
use worker_orcd_lifecycle::SupervisorExit;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkerExit {
    /// Signal handlers, runtime threads or file descriptors are not available.
    Startup,
    /// The command line, environment or configuration file is wrong (clap's own code).
    Usage,
    /// An address is in use or not local.
    Listen,
    /// The registration at the callback URL failed.
    Callback,
    /// The model is not on this machine and could not be downloaded.
    Fetch,
    Engine(SupervisorExit),
}

impl WorkerExit {
    /// Codes outside the lifecycle.
    const OWN: [Self; 5] = [
        Self::Startup,
        Self::Usage,
        Self::Listen,
        Self::Callback,
        Self::Fetch,
    ];

    /// All exits in the order of their codes.
    #[must_use]
    pub fn all() -> Vec<Self> {
        let of_engine = SupervisorExit::VARIANTS.iter().copied().map(Self::Engine);
        let mut all: Vec<_> = Self::OWN.into_iter().chain(of_engine).collect();
        all.sort_unstable_by_key(|exit| exit.code());
        all
    }

    /// Section of `--help` with all codes.
    #[must_use]
    pub fn help() -> String {
        let all = Self::all().into_iter();
        all.fold("Exit codes:".to_owned(), |help, exit| {
            format!("{help}\n  {:>2}  {}", exit.code(), exit.meaning())
        })
    }

    /// Name in log lines.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Startup => "startup",
            Self::Usage => "usage",
            Self::Listen => "listen",
            Self::Callback => "callback",
            Self::Fetch => "fetch",
            Self::Engine(exit) => exit.name(),
        }
    }

    #[must_use]
    pub fn meaning(self) -> &'static str {
        match self {
            Self::Startup => "signal handlers, threads or file descriptors are not available",
            Self::Usage => "the command line, environment or configuration file is wrong",
            Self::Listen => "an address is in use or not local",
            Self::Callback => "the registration at --callback-url failed",
            Self::Fetch => "the model could not be downloaded",
            Self::Engine(exit) => exit.meaning(),
        }
    }

    #[must_use]
    pub fn code(self) -> u8 {
        match self {
            Self::Startup => 1,
            Self::Usage => 2,
            Self::Listen => 86,
            Self::Callback => 87,
            Self::Fetch => 91,
            Self::Engine(exit) => exit.code(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_number_means_one_thing() {
        let all = WorkerExit::all();
        let rises = |pair: &[WorkerExit]| pair[0].code() < pair[1].code();
        assert!(all.windows(2).all(rises), "{all:?}");
        assert_eq!(all.first().map(|exit| exit.code()), Some(0));
        let names: BTreeSet<_> = all.iter().map(|exit| exit.name()).collect();
        assert_eq!(names.len(), all.len(), "{names:?}");
        assert!(all.iter().all(|exit| exit.meaning().len() < 70), "{all:?}");
    }
}
