//! The numbers that `worker-orcd` leaves behind when it could not serve.
//!
//! How serving itself ends is the lifecycle's [`SupervisorExit`]: 0, 65 to 67, 80 to 85, 88 and 89.

use worker_orcd_lifecycle::SupervisorExit;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// Signal handlers or runtime threads could not be made.
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
