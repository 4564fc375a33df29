//! What the journal has counted since the start.

use crate::waits::Waits;

/// Counts since the start.
#[derive(Debug, Clone, Copy, Default)]
pub struct Totals {
    /// Accepted from children.
    pub tokens: u64,
    /// Waits between the tokens of streams.
    pub gaps: Waits,
    /// Those among them in which a request went over to another child.
    pub pauses: Waits,
    /// Times that a request went on with another child.
    pub recoveries: u64,
    /// Times that a child was overdue and its requests went to another one.
    pub overdue_children: u64,
    /// Times that a request was put on probation.
    pub probations: u64,
    /// Requests that ended as queries of death.
    pub quarantined: u64,
}
