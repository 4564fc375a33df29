//! Masks behind drafts, from a copy of a matcher.

use super::{Done, SLOW_MASK, processor_time};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Weak};
use worker_orcd_grammar::{Mask, Matcher};
use worker_orcd_ipc::TokenId;

/// Size of a matcher that is copied, at most: the copy of a larger one takes longer than several masks.
const MOST_COPIED_BYTES: usize = 4 << 20;

pub(super) struct Drafting {
    ticket: u64,
    drafts: Vec<TokenId>,
    /// Mask of the next draft.
    mask: Mask,
    /// `None` if further masks take too long.
    copy: Option<Matcher>,
    still: Weak<()>,
    answers: Sender<Done>,
}

impl Drafting {
    /// The work for drafts, if there are any behind the mask.
    pub(super) fn new(done: &mut Done, drafts: &[TokenId], answers: Sender<Done>) -> Option<Self> {
        let Done::Next {
            ticket,
            forced,
            mask: Ok(mask),
            matcher: Some(traveller),
        } = done
        else {
            return None;
        };
        let drafts = drafts.strip_prefix(&forced[..])?.to_vec();
        if drafts.is_empty() {
            return None;
        }
        let copy = match traveller.is_slow {
            true => None,
            false => traveller.matcher.copy(MOST_COPIED_BYTES),
        };
        let wanted = traveller.drafted.insert(Arc::new(()));
        Some(Self {
            ticket: *ticket,
            drafts,
            mask: mask.clone(),
            copy,
            still: Arc::downgrade(wanted),
            answers,
        })
    }

    /// Sends a mask for each draft that the grammar allows.
    pub(super) fn run(mut self) {
        for token in std::mem::take(&mut self.drafts) {
            if self.still.strong_count() == 0 {
                return;
            }
            let mask = self.behind(token);
            let is_over = mask.is_none();
            drop(self.answers.send(Done::Drafted {
                ticket: self.ticket,
                mask,
                still: self.still.clone(),
            }));
            if is_over {
                return;
            }
        }
    }

    fn behind(&mut self, token: TokenId) -> Option<Mask> {
        let copy = self.copy.as_mut().filter(|_| self.mask.allows(token))?;
        let began = processor_time();
        copy.accept(token).ok()?;
        self.mask = copy.mask().ok()?;
        if processor_time().saturating_sub(began) > SLOW_MASK {
            self.copy = None;
        }
        Some(self.mask.clone())
    }
}
