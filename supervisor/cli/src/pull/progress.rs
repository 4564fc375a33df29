//! Progress of a download: printed by `pull`, logged by a starting worker.
//!
//! Progress is reported periodically: one line for each percent of a large model would fill a journal, and a redrawn
//! progress bar is not a log line.

use std::fmt::{self, Display};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Time between two reports of one transfer.
const PERIOD: Duration = Duration::from_secs(5);

/// Time between two reports after [`A_WHILE`].
const LATER_PERIOD: Duration = Duration::from_secs(30);

const A_WHILE: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub enum ProgressEvent {
    /// A complete file already exists.
    Kept(PathBuf),
    /// A transfer begins: target, and bytes of an earlier transfer.
    Begins {
        what: String,
        at: Extent,
    },
    Goes {
        what: String,
        progress: Progress,
    },
    /// The transfer broke off. It is tried again after this time.
    Again {
        why: String,
        after: Duration,
    },
    /// The file is complete and verified. The rate is that of the whole transfer.
    Came {
        what: String,
        progress: Progress,
    },
    /// Description of the model by the child's program.
    Checked(String),
}

/// Downloaded part of a file, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    pub have: u64,
    pub whole: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    pub at: Extent,
    /// Bytes per second.
    pub rate: u64,
}

impl Extent {
    #[must_use]
    pub fn percent(self) -> u64 {
        (self.have * 100).checked_div(self.whole).unwrap_or(100)
    }
}

impl Progress {
    /// Estimated remaining time, in seconds, at this rate.
    fn left(self) -> Option<u64> {
        let missing = self.at.whole.saturating_sub(self.at.have);
        missing.checked_div(self.rate)
    }
}

impl Display for Extent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (have, whole) = (megabytes(self.have), megabytes(self.whole));
        write!(f, "{have} of {whole} MB ({} %)", self.percent())
    }
}

impl Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {} MB/s", self.at, megabytes(self.rate))?;
        match self.left() {
            Some(seconds) if self.at.have < self.at.whole => write!(f, ", {seconds} s left"),
            _ => Ok(()),
        }
    }
}

impl Display for ProgressEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kept(path) => write!(f, "{} is already here", path.display()),
            Self::Begins { what, at } if at.have == 0 => {
                write!(f, "getting {what}, {} MB", megabytes(at.whole))
            }
            Self::Begins { what, at } => write!(f, "going on with {what}, {at}"),
            Self::Goes { what, progress } => write!(f, "{what}: {progress}"),
            Self::Again { why, after } => write!(f, "{why}; again in {} s", after.as_secs()),
            Self::Came { what, progress } => write!(f, "{what} is here: {progress}"),
            Self::Checked(words) => f.write_str(words),
        }
    }
}

fn megabytes(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / 1e6)
}

/// Counts the bytes of one transfer and decides when to report.
#[derive(Debug)]
pub(super) struct Meter {
    at: Extent,
    began: (Instant, u64),
    told: (Instant, u64),
}

impl Meter {
    pub(super) fn new(at: Extent, now: Instant) -> Self {
        let told = (now, at.have);
        Self {
            at,
            began: told,
            told,
        }
    }

    /// Adds bytes. Returns progress with the rate since the last report, or `None` shortly after a report.
    pub(super) fn came(&mut self, bytes: usize, now: Instant) -> Option<Progress> {
        self.at.have += bytes as u64;
        let period = match now.duration_since(self.began.0) {
            since if since < A_WHILE => PERIOD,
            _ => LATER_PERIOD,
        };
        if now < self.told.0 + period {
            return None;
        }
        let progress = self.since(self.told, now);
        self.told = (now, self.at.have);
        Some(progress)
    }

    /// Final progress, with the rate of the whole transfer.
    pub(super) fn end(&self, now: Instant) -> Progress {
        self.since(self.began, now)
    }

    fn since(&self, (then, had): (Instant, u64), now: Instant) -> Progress {
        let seconds = now.duration_since(then).as_secs_f64();
        let bytes = (self.at.have - had) as f64;
        let rate = if seconds > 0.0 { bytes / seconds } else { 0.0 };
        Progress {
            at: self.at,
            rate: rate as u64,
        }
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::disallowed_methods, reason = "a test begins at some moment")]

    use super::*;

    const WHOLE: u64 = 400_000_000;

    #[test]
    fn a_line_says_size_part_rate_and_the_time_that_is_left() {
        let start = Instant::now();
        let at = Extent {
            have: 100_000_000,
            whole: WHOLE,
        };
        let mut meter = Meter::new(at, start);
        let progress = meter.came(50_000_000, start + PERIOD).expect("it is time");
        assert_eq!(
            progress.to_string(),
            "150.0 of 400.0 MB (37 %), 10.0 MB/s, 25 s left"
        );
        // Bytes of an earlier transfer do not count towards the rate.
        meter.came(250_000_000, start + 2 * PERIOD);
        let end = meter.end(start + 2 * PERIOD);
        assert_eq!(end.to_string(), "400.0 of 400.0 MB (100 %), 30.0 MB/s");
    }

    #[test]
    fn lines_are_few_and_fewer_in_a_long_transfer() {
        let start = Instant::now();
        let mut meter = Meter::new(
            Extent {
                have: 0,
                whole: WHOLE,
            },
            start,
        );
        let mut told = |seconds: std::ops::Range<u64>| {
            let tenths = (seconds.start * 10)..(seconds.end * 10);
            let moments = tenths.map(|it| start + Duration::from_millis(it * 100));
            moments.filter_map(|now| meter.came(1000, now)).count()
        };
        assert_eq!(told(0..60), 11);
        assert_eq!(told(60..660), 20);
    }

    #[test]
    fn a_transfer_without_a_byte_or_a_moment_has_no_rate() {
        let start = Instant::now();
        let meter = Meter::new(Extent { have: 0, whole: 0 }, start);
        assert_eq!(
            meter.end(start).to_string(),
            "0.0 of 0.0 MB (100 %), 0.0 MB/s"
        );
    }
}
