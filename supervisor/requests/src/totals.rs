//! Counters of the journal.

use crate::progress::Progress;
use crate::waits::Waits;
use std::time::Instant;

/// Counts since the start of the supervisor.
#[derive(Debug, Clone, Copy, Default)]
pub struct Totals {
    /// Number of tokens accepted from children.
    pub tokens: u64,
    /// Times between tokens of a stream.
    pub gaps: Waits,
    /// Times between tokens in which the request moved to another child.
    pub pauses: Waits,
    /// Number of times that a request continued on another child.
    pub recoveries: u64,
    /// Number of times that a child was overdue and its requests moved.
    pub overdue_children: u64,
    /// Number of times that a request became a suspect.
    pub probations: u64,
    /// Number of requests that were quarantined.
    pub quarantined: u64,
}

impl Totals {
    /// Counts a token that was accepted now, before it is added to its request.
    pub(crate) fn note_token(&mut self, progress: &Progress, now: Instant) {
        self.tokens += 1;
        if let Some(gap) = progress.since_last_token(now) {
            self.gaps.observe(gap);
            if progress.is_interrupted() {
                self.pauses.observe(gap);
            }
        }
    }
}
