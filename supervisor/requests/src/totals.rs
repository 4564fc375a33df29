//! Counters of the journal.

use crate::waits::Waits;

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
