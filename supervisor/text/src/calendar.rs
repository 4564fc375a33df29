//! Time stamps of answers, reports and log lines.

use jiff::Timestamp;
use std::time::SystemTime;

/// Time in RFC 3339, UTC, with milliseconds, such as `2026-11-21T12:00:00.250Z`.
#[must_use]
pub fn rfc3339(time: SystemTime) -> String {
    let time = Timestamp::try_from(time).unwrap_or(Timestamp::UNIX_EPOCH);
    format!("{time:.3}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, UNIX_EPOCH};

    #[test]
    fn time_stamps_are_rfc_3339_with_milliseconds() {
        for (milliseconds, expected) in [
            (951_782_399_250, "2000-02-28T23:59:59.250Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
        ] {
            let time = UNIX_EPOCH + Duration::from_millis(milliseconds);
            assert_eq!(rfc3339(time), expected);
        }
        let later = UNIX_EPOCH + Duration::from_micros(1_999_999);
        assert_eq!(rfc3339(later), "1970-01-01T00:00:01.999Z");
    }
}
