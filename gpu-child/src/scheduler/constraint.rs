//! Grammars, as far as the scheduler knows them: who waits for a mask, and what is to be asked for.
//!
//! Masks are computed elsewhere. The scheduler says what it wants ([`Wish`]) and hears of each matcher one
//! mask at a time ([`Scheduler::hear_mask`]). Only a sequence that has a slot has a matcher: matchers are
//! large, and the queue is long. One that is parked gives its own up; the next one replays its tokens.
//!
//! Tokens that a grammar leaves no choice about come with the mask behind them, and are taken without being
//! drawn.

use super::Scheduler;
use super::sequence::Sequence;
use std::sync::Arc;
use worker_orcd_grammar::{GrammarError, Mask};
use worker_orcd_ipc::{Drawn, FinishReason, Grammar, TokenId};

/// What the scheduler wants of those who know grammars. A ticket is the name of a matcher, and never given
/// again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wish {
    /// A matcher, and its mask behind these tokens.
    Begin {
        ticket: u64,
        grammar: Arc<Grammar>,
        generated: Vec<TokenId>,
        /// Tokens without a choice that may be taken before the mask.
        most_forced: usize,
    },
    /// The mask behind one more token.
    Next {
        ticket: u64,
        token: TokenId,
        most_forced: usize,
    },
    /// The matcher is not needed any more, whatever it computes just now.
    Forget { ticket: u64 },
}

/// What a sequence's next token is held to.
#[derive(Debug)]
pub(super) enum Constraint {
    None,
    Grammar {
        grammar: Arc<Grammar>,
        /// The matcher, where one was asked for.
        ticket: Option<u64>,
        /// What it allows next, once it is here and until a step draws by it.
        mask: Option<Mask>,
        /// It was waited for at a draw, and did not come in time.
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

    /// A mask is to come, soon.
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

    /// What is to come is waited for no longer.
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

    /// A draw is on its way that goes by the mask.
    pub(super) fn used(&mut self) {
        if let Self::Grammar { mask, .. } = self {
            *mask = None;
        }
    }

    /// The token is accepted.
    pub(super) fn next(&self, token: TokenId, most_forced: usize) -> Option<Wish> {
        let ticket = self.ticket()?;
        Some(Wish::Next {
            ticket,
            token,
            most_forced,
        })
    }

    /// Nothing is wanted of its matcher any more.
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
    /// What is wanted since this was asked last.
    pub fn take_wishes(&mut self) -> Vec<Wish> {
        std::mem::take(&mut self.wishes)
    }

    /// The answer to a wish, or the end of a request whose grammar cannot go on. `forced` are tokens before
    /// the mask, which nobody need draw.
    pub fn hear_mask(&mut self, of: u64, forced: &[TokenId], answer: Result<Mask, GrammarError>) {
        let is_it = |sequence: &Sequence| sequence.constraint.ticket() == Some(of);
        // One that does not run has no matcher, and one that has ended no place.
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
            // As many as there would be without: the token that the memory has no room for is the last.
            let is_over = sequence.ending(&self.limits).is_some();
            if is_over || sequence.outgrows(&self.cache) {
                break;
            }
            self.generated_tokens += 1;
            self.forced.push(sequence.take(*token, &self.limits));
        }
    }

    /// Tokens that were taken and not told yet.
    pub fn take_forced(&mut self) -> Vec<Drawn> {
        std::mem::take(&mut self.forced)
    }

    /// A mask is to come.
    #[must_use]
    pub fn awaits_masks(&self) -> bool {
        let mut running = self.running.iter();
        running.any(|sequence| sequence.constraint.lacks_mask())
    }

    /// It has a slot now.
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
