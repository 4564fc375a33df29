//! Grammars in the scheduler: sequences that wait for masks, and requests for masks.
//!
//! Masks are computed elsewhere. The scheduler emits requests ([`MaskRequest`]) and receives one mask per matcher at a time
//! ([`Scheduler::hear_mask`](super::Scheduler::hear_mask)). Only a sequence with a slot has a matcher: matchers are large, and the queue is long. A
//! parked sequence drops its matcher; the next one replays its tokens.
//!
//! Tokens forced by a grammar arrive with the mask after them, and are appended without sampling.
//!
//! Drafts are sent with the newest token. The mask behind each arrives after that of the newest token, in order, as far as
//! the grammar allows the drafts. Drafts that are forced are no drafts any more: the rows before them need no sampling, and the
//! step samples behind them.

use std::sync::Arc;
use worker_orcd_grammar::Mask;
use worker_orcd_ipc::{Grammar, TokenId};

/// Request of the scheduler to the grammar threads. A ticket identifies a matcher and is never reused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MaskRequest {
    /// Creates a matcher and computes its mask after these tokens.
    Begin {
        ticket: u64,
        grammar: Arc<Grammar>,
        generated: Vec<TokenId>,
        /// Maximum number of forced tokens before the mask.
        most_forced: usize,
    },
    /// Computes the mask after these tokens, of which the last mask allows the first, and then, if the drafts begin with the
    /// forced tokens, the mask after each further draft.
    Next {
        ticket: u64,
        tokens: Vec<TokenId>,
        most_forced: usize,
        drafts: Vec<TokenId>,
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
        /// Sampled tokens that the matcher has not got yet.
        unsent: Vec<TokenId>,
        /// Mask of the next token, from its arrival until a step samples with it.
        mask: Option<Mask>,
        /// Masks behind the first drafts, in order.
        drafted: Vec<Mask>,
        /// Further masks of drafts will arrive.
        expects_drafted: bool,
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
                unsent: Vec::new(),
                mask: None,
                drafted: Vec::new(),
                expects_drafted: false,
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

    /// Mask of the next token, or of the one behind so many drafts.
    pub(super) fn allowed(&self, drafts: usize) -> Option<&[u32]> {
        let Self::Grammar { mask, drafted, .. } = self else {
            return None;
        };
        let mask = match drafts.checked_sub(1) {
            None => mask.as_ref(),
            Some(before) => drafted.get(before),
        };
        mask.map(Mask::words)
    }

    /// Records that a sampling with the masks is launched.
    pub(super) fn used(&mut self) {
        if let Self::Grammar { mask, .. } = self {
            *mask = None;
        }
        self.forget_drafts();
    }

    pub(super) fn hear(&mut self, heard: Mask) {
        if let Self::Grammar { mask, is_late, .. } = self {
            *mask = Some(heard);
            *is_late = false;
        }
    }

    // === tokens for the matcher ===

    /// Records a sampled token.
    pub(super) fn learn(&mut self, token: TokenId) {
        if let Self::Grammar {
            ticket: Some(_),
            unsent,
            ..
        } = self
        {
            unsent.push(token);
        }
    }

    /// True if the next mask is not requested yet.
    pub(super) fn has_unsent(&self) -> bool {
        matches!(self, Self::Grammar { unsent, .. } if !unsent.is_empty())
    }

    /// Request for the mask after the sampled tokens, if there are new ones.
    pub(super) fn next(&mut self, most_forced: usize, drafts: &[TokenId]) -> Option<MaskRequest> {
        let Self::Grammar {
            ticket,
            unsent,
            expects_drafted,
            ..
        } = self
        else {
            return None;
        };
        let ticket = ticket.filter(|_| !unsent.is_empty())?;
        *expects_drafted = !drafts.is_empty();
        Some(MaskRequest::Next {
            ticket,
            tokens: std::mem::take(unsent),
            most_forced,
            drafts: drafts.to_vec(),
        })
    }

    /// Drops the matcher.
    pub(super) fn give_up(&mut self) -> Option<MaskRequest> {
        self.used();
        let Self::Grammar { ticket, unsent, .. } = self else {
            return None;
        };
        unsent.clear();
        ticket.take().map(|ticket| MaskRequest::Forget { ticket })
    }

    pub(super) fn ticket(&self) -> Option<u64> {
        match self {
            Self::None => None,
            Self::Grammar { ticket, .. } => *ticket,
        }
    }

    // === drafts ===

    /// Records the mask behind the next draft; `None`: there are no more.
    pub(super) fn hear_drafted(&mut self, heard: Option<Mask>) {
        if let Self::Grammar {
            drafted,
            expects_drafted,
            ..
        } = self
            && *expects_drafted
        {
            *expects_drafted = heard.is_some();
            drafted.extend(heard);
        }
    }

    /// Number of drafts with a mask behind them and all before.
    pub(super) fn drafted(&self) -> usize {
        match self {
            Self::None => 0,
            Self::Grammar { drafted, .. } => drafted.len(),
        }
    }

    /// True if the masks of so many drafts are not complete, and the next one will arrive.
    pub(super) fn expects_drafted(&self, drafts: usize) -> bool {
        let Self::Grammar {
            drafted,
            expects_drafted,
            ..
        } = self
        else {
            return false;
        };
        *expects_drafted && drafted.len() < drafts
    }

    pub(super) fn forget_drafts(&mut self) {
        if let Self::Grammar {
            drafted,
            expects_drafted,
            ..
        } = self
        {
            drafted.clear();
            *expects_drafted = false;
        }
    }
}
