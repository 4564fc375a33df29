//! Conversion between the monotonic clock and Unix time.

#![expect(
    clippy::disallowed_methods,
    reason = "another process reads the clock of the machine"
)]

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A reference point of both clocks. `Instant` has no meaning in another process.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    pub(super) at: Instant,
    unix: Duration,
}

impl Clock {
    pub fn at(at: Instant) -> Self {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH);
        Self {
            at,
            unix: unix.unwrap_or_default(),
        }
    }

    pub(super) fn unix_ms(self, at: Instant) -> u64 {
        let unix = match at.checked_duration_since(self.at) {
            Some(later) => self.unix.saturating_add(later),
            None => self.unix.saturating_sub(self.at - at),
        };
        u64::try_from(unix.as_millis()).unwrap_or(u64::MAX)
    }

    /// Converts Unix time. A time before the origin of the monotonic clock becomes the reference point.
    pub fn instant(self, unix_ms: u64) -> Instant {
        let unix = Duration::from_millis(unix_ms);
        let moment = match unix.checked_sub(self.unix) {
            Some(later) => self.at.checked_add(later),
            None => self.at.checked_sub(self.unix - unix),
        };
        moment.unwrap_or(self.at)
    }
}
