//! Grammars in the scheduler: sequences that wait for masks, and requests for masks.
//!
//! Masks are computed elsewhere. The scheduler emits requests ([`Wish`]) and receives one mask per matcher at a time
//! ([`Scheduler::hear_mask`](super::Scheduler::hear_mask)). Only a sequence with a slot has a matcher: matchers are large, and the queue is long. A
//! parked sequence drops its matcher; the next one replays its tokens.
//!
//! Tokens forced by a grammar arrive with the mask after them, and are appended without sampling.

use std::sync::Arc;
use worker_orcd_grammar::Mask;
use worker_orcd_ipc::{Grammar, TokenId};

/// Request of the scheduler to the grammar threads. A ticket identifies a matcher and is never reused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wish {
    /// Creates a matcher and computes its mask after these tokens.
    Begin {
        ticket: u64,
        grammar: Arc<Grammar>,
        generated: Vec<TokenId>,
        /// Maximum number of forced tokens before the mask.
        most_forced: usize,
    },
    /// Computes the mask after one more token.
    Next {
        ticket: u64,
        token: TokenId,
        most_forced: usize,
    },
    /// Drops the matcher, even during a computation.
    Forget { ticket: u64 },
}

/// Constraint on a sequence's next token.
#[derive(Debug)]
pub(super) enum Constraint {
    None,
    Grammar {
        grammar: Arc<Grammar>,
        /// Ticket of the matcher, if one was requested.
        ticket: Option<u64>,
        /// Mask of the next token, from its arrival until a step samples with it.
        mask: Option<Mask>,
        /// A sampling waited for the mask and it was late.
        is_late: bool,
    },
}

impl Constraint {
    pub(super) fn of(grammar: Option<Arc<Grammar>>) -> Self {
        match grammar {
            None => Self::None,
            Some(grammar) => Self::Grammar {
                grammar,
                ticket: None,
                mask: None,
                is_late: false,
            },
        }
    }

    pub(super) fn is_grammar(&self) -> bool {
        matches!(self, Self::Grammar { .. })
    }

    pub(super) fn lacks_mask(&self) -> bool {
        matches!(self, Self::Grammar { mask: None, .. })
    }

    /// True if a mask will arrive soon.
    pub(super) fn expects_mask(&self) -> bool {
        matches!(
            self,
            Self::Grammar {
                mask: None,
                is_late: false,
                ..
            }
        )
    }

    /// Marks the outstanding mask as late.
    pub(super) fn goes_without(&mut self) {
        if let Self::Grammar { is_late, .. } = self {
            *is_late = true;
        }
    }

    pub(super) fn allowed(&self) -> Option<&[u32]> {
        match self {
            Self::None => None,
            Self::Grammar { mask, .. } => mask.as_ref().map(Mask::words),
        }
    }

    /// Records that a sampling with the mask is launched.
    pub(super) fn used(&mut self) {
        if let Self::Grammar { mask, .. } = self {
            *mask = None;
        }
    }

    pub(super) fn hear(&mut self, heard: Mask) {
        if let Self::Grammar { mask, is_late, .. } = self {
            *mask = Some(heard);
            *is_late = false;
        }
    }

    /// Request for the mask after the accepted token.
    pub(super) fn next(&self, token: TokenId, most_forced: usize) -> Option<Wish> {
        let ticket = self.ticket()?;
        Some(Wish::Next {
            ticket,
            token,
            most_forced,
        })
    }

    /// Drops the matcher.
    pub(super) fn give_up(&mut self) -> Option<Wish> {
        let Self::Grammar { ticket, mask, .. } = self else {
            return None;
        };
        *mask = None;
        ticket.take().map(|ticket| Wish::Forget { ticket })
    }

    pub(super) fn ticket(&self) -> Option<u64> {
        match self {
            Self::None => None,
            Self::Grammar { ticket, .. } => *ticket,
        }
    }
}
