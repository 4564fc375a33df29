//! Grammars in the scheduler: sequences that wait for masks, and requests for masks.
//!
//! Masks are computed elsewhere. The scheduler emits requests ([`Wish`]) and receives one mask per matcher at a time
//! ([`Scheduler::hear_mask`]). Only a sequence with a slot has a matcher: matchers are large, and the queue is long. A
//! parked sequence drops its matcher; the next one replays its tokens.
//!
//! Tokens forced by a grammar arrive with the mask after them, and are appended without sampling.

use super::Scheduler;
use super::sequence::Sequence;
use std::sync::Arc;
use worker_orcd_grammar::{GrammarError, Mask};
use worker_orcd_ipc::{Drawn, FinishReason, Grammar, TokenId};

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
    pub(super) fn of(grammar: Option<Box<Grammar>>) -> Self {
        match grammar {
            None => Self::None,
            Some(grammar) => Self::Grammar {
                grammar: Arc::from(grammar),
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

    fn ticket(&self) -> Option<u64> {
        match self {
            Self::None => None,
            Self::Grammar { ticket, .. } => *ticket,
        }
    }
}

impl Scheduler {
    /// Requests since the last call.
    pub fn take_wishes(&mut self) -> Vec<Wish> {
        std::mem::take(&mut self.wishes)
    }

    /// Applies the answer to a request: a mask, or the end of a sequence with a failed grammar. `forced`: tokens before
    /// the mask that need no sampling.
    pub fn hear_mask(&mut self, of: u64, forced: &[TokenId], answer: Result<Mask, GrammarError>) {
        let is_it = |sequence: &Sequence| sequence.constraint.ticket() == Some(of);
        // A sequence that does not run has no matcher; one that has ended has no index.
        let Some(index) = self.running.iter().position(is_it) else {
            return;
        };
        if !forced.is_empty() {
            self.take_forced_of(index, forced);
        }
        if self.running[index].ending(&self.limits).is_some() {
            return self.retire();
        }
        match answer {
            Ok(heard) => self.running[index].hear(heard),
            Err(error) => {
                let mut sequence = self.running.remove(index);
                sequence.give_up_pages(&mut self.cache);
                let message = format!("the answer cannot go on under its grammar: {error}");
                self.finish(sequence, FinishReason::GrammarFailed { message });
            }
        }
    }

    fn take_forced_of(&mut self, index: usize, forced: &[TokenId]) {
        let sequence = &mut self.running[index];
        if sequence.is_open() {
            sequence.undraw();
        }
        for token in forced {
            // The same number of tokens as with sampling: the token without room in memory is the last.
            let is_over = sequence.ending(&self.limits).is_some();
            if is_over || sequence.outgrows(&self.cache) {
                break;
            }
            self.counters.generated_tokens += 1;
            self.forced.push(sequence.take(*token, &self.limits));
        }
    }

    /// Forced tokens not reported yet.
    pub fn take_forced(&mut self) -> Vec<Drawn> {
        std::mem::take(&mut self.forced)
    }

    /// True if a mask is outstanding.
    #[must_use]
    pub fn awaits_masks(&self) -> bool {
        let mut running = self.running.iter();
        running.any(|sequence| sequence.constraint.lacks_mask())
    }

    /// Requests the first mask of a sequence that has just got a slot.
    pub(super) fn ask_for_first_mask(&mut self, sequence: &mut Sequence) {
        let generated = sequence.generated().to_vec();
        let most_forced = sequence.most_forced(&self.limits);
        let Constraint::Grammar {
            grammar, ticket, ..
        } = &mut sequence.constraint
        else {
            return;
        };
        self.tickets += 1;
        *ticket = Some(self.tickets);
        self.wishes.push(Wish::Begin {
            ticket: self.tickets,
            grammar: Arc::clone(grammar),
            generated,
            most_forced,
        });
    }
}

impl Sequence {
    fn hear(&mut self, heard: Mask) {
        if let Constraint::Grammar { mask, is_late, .. } = &mut self.constraint {
            *mask = Some(heard);
            *is_late = false;
        }
    }
}
