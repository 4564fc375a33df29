//! The numbers that `worker-orcd` leaves behind when it could not serve.
//!
//! How serving itself ends is the lifecycle's [`SupervisorExit`]. [`Exit::table`] is all of them: what
//! `--help` shows, and what a test compares with README.md.

use worker_orcd_lifecycle::SupervisorExit;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// Signal handlers or runtime threads could not be made, or descriptors are too few.
    Startup,
    /// The command line, environment or configuration file is wrong (clap's own number).
    Usage,
    /// An address is taken, or not this machine's.
    Listen,
    /// Nobody at the callback URL took the registration.
    Callback,
    Engine(SupervisorExit),
}

impl Exit {
    /// Those that are not the lifecycle's.
    const OWN: [Self; 4] = [Self::Startup, Self::Usage, Self::Listen, Self::Callback];

    /// Every number that `worker-orcd` can end with, in order, and what it means.
    #[must_use]
    pub fn table() -> Vec<(u8, &'static str)> {
        let lifecycle = SupervisorExit::ALL.into_iter().map(Self::Engine);
        let mut table: Vec<_> = Self::OWN
            .into_iter()
            .chain(lifecycle)
            .map(|exit| (exit.code(), exit.meaning()))
            .collect();
        table.sort_unstable();
        table
    }

    /// The table, as `--help` shows it.
    #[must_use]
    pub fn help() -> String {
        let rows = Self::table().into_iter();
        rows.fold("Exit codes:".to_owned(), |help, (code, meaning)| {
            format!("{help}\n  {code:>2}  {meaning}")
        })
    }

    #[must_use]
    pub fn meaning(self) -> &'static str {
        match self {
            Self::Startup => "signal handlers, threads or file descriptors could not be had",
            Self::Usage => "the command line, environment or configuration file is wrong",
            Self::Listen => "an address is taken, or not this machine's",
            Self::Callback => "nobody at --callback-url took the registration",
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
            Self::Engine(exit) => exit.code(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_means_one_thing() {
        let table = Exit::table();
        assert!(
            table.windows(2).all(|pair| pair[0].0 < pair[1].0),
            "{table:?}"
        );
        assert_eq!(table.first().map(|(code, _)| *code), Some(0));
        assert!(
            table.iter().all(|(_, meaning)| meaning.len() < 70),
            "{table:?}"
        );
    }
}
