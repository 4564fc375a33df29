//! Adoption: pages that another child has computed get into the cache before their request is submitted,
//! which then finds them there as it would find those of an equal beginning. A page that is not full goes
//! to its request alone.

use super::seals::Contents;
use super::sequence::Tail;
use super::{Scheduler, SchedulerError};
use crate::device::{PageCopy, PagePart};
use crate::kv_pages::Prefix;
use worker_orcd_ipc::{SealedPage, Submission, TokenId};

/// Room for pages of another child, to be filled by the device.
#[derive(Debug)]
pub struct Adoption {
    pub copies: Vec<PageCopy>,
    /// The pages before them, which are here already.
    prefix: Prefix,
    tokens: Vec<TokenId>,
}

impl Scheduler {
    /// Makes room for the pages that another child has sealed for a request.
    pub fn make_room_for(&mut self, submission: &Submission, sealed: &[SealedPage]) -> Adoption {
        let page_tokens = self.cache.geometry().page_tokens;
        let mut tokens = submission.prompt.clone();
        tokens.extend(&submission.generated);
        // The last token is run in any case.
        tokens.pop();
        let prefix = self.cache.find(&tokens);
        let mut copies = Vec::new();
        let pages = (0..).step_by(page_tokens as usize).zip(sealed);
        for (start, sealed) in pages.skip(prefix.pages.len()) {
            let is_possible = (1..=page_tokens).contains(&sealed.tokens)
                && start + sealed.tokens as usize <= tokens.len();
            let Some(to) = is_possible.then(|| self.cache.allocate()).flatten() else {
                break;
            };
            copies.push(PageCopy {
                from: sealed.page,
                to,
                tokens: sealed.tokens,
                checksum: sealed.checksum,
            });
            if sealed.tokens < page_tokens {
                break;
            }
        }
        Adoption {
            copies,
            prefix,
            tokens,
        }
    }

    /// Submits the request, with the pages up to the first one that is not `intact`.
    ///
    /// # Errors
    /// As [`submit`](Self::submit).
    pub fn submit_with(
        &mut self,
        submission: Submission,
        adoption: Adoption,
        intact: &[bool],
    ) -> Result<(), SchedulerError> {
        let page_tokens = self.cache.geometry().page_tokens;
        let Adoption {
            mut copies,
            prefix: Prefix { mut pages, chain },
            tokens,
        } = adoption;
        let whole = intact.iter().take_while(|intact| **intact).count();
        self.changed_pages += intact.iter().filter(|intact| !**intact).count() as u64;
        let refused: Vec<_> = copies.drain(whole..).map(|copy| copy.to).collect();
        self.cache.release(&refused);
        let (mut end, mut tail) = (chain, None);
        for copy in copies {
            let part = PagePart {
                page: copy.to,
                tokens: copy.tokens,
            };
            let epoch = self.cache.epoch(copy.to);
            self.seals.learn(Contents { part, epoch }, copy.checksum);
            self.adopted_tokens += u64::from(copy.tokens);
            let start = pages.len() * page_tokens as usize;
            if copy.tokens < page_tokens {
                tail = Some(Tail { part, start });
                break;
            }
            let contents = &tokens[start..][..page_tokens as usize];
            end = self.cache.publish(end, contents, copy.to);
            pages.push(copy.to);
        }
        self.cache.release(&pages);
        self.submit_behind(submission, tail)
    }

    /// Gives up the pages that are not full of requests that wait: somebody else needs room. True if there
    /// were any.
    pub(super) fn give_up_tails(&mut self) -> bool {
        let Self { waiting, cache, .. } = self;
        let before = cache.available_pages();
        for sequence in waiting {
            sequence.give_up_tail(cache);
        }
        cache.available_pages() > before
    }
}
