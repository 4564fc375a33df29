//! Adoption: pages that another child has computed get into the cache before their request is submitted,
//! which then finds them there as it would find those of an equal beginning. A page that is not full goes
//! to its request alone.

use super::seals::Contents;
use super::sequence::Tail;
use super::{Scheduler, SchedulerError};
use crate::device::{PageCopy, PageId, PagePart};
use crate::kv_pages::Prefix;
use worker_orcd_ipc::{SealedPage, Submission, TokenId};

/// Room for pages of another child, to be filled by the device.
#[derive(Debug)]
pub struct Adoption {
    pages: Vec<Adopted>,
    /// The pages before them, which are here already.
    prefix: Prefix,
    tokens: Vec<TokenId>,
}

#[derive(Debug)]
struct Adopted {
    copy: PageCopy,
    /// It was copied, ahead or by now, and is intact.
    is_here: bool,
}

impl Adoption {
    /// The pages that are still to be copied.
    pub fn copies(&self) -> impl Iterator<Item = PageCopy> {
        let missing = self.pages.iter().filter(|page| !page.is_here);
        missing.map(|page| page.copy)
    }
}

impl Scheduler {
    /// Room for a page that another child has sealed, at the same place. Its copy is to be
    /// [kept](Self::keep_ahead), whatever came of it.
    pub fn make_room_ahead(&mut self, sealed: SealedPage) -> Option<PageCopy> {
        let to = PageId(sealed.page);
        let is_whole = sealed.tokens == self.cache.geometry().page_tokens;
        (is_whole && self.cache.take_ahead(to)).then_some(PageCopy {
            from: sealed.page,
            to,
            tokens: sealed.tokens,
            checksum: sealed.checksum,
        })
    }

    /// Keeps a copy for the request that will bring its page.
    pub fn keep_ahead(&mut self, copy: PageCopy, is_intact: bool) {
        let checksum = is_intact.then_some(copy.checksum);
        self.cache.keep_ahead(copy.to, checksum);
    }

    /// Requests will bring no more pages of the other child.
    pub fn forget_ahead(&mut self) {
        self.cache.forget_ahead();
    }

    /// Makes room for the pages that another child has sealed for a request.
    pub fn make_room_for(&mut self, submission: &Submission) -> Adoption {
        let sealed = submission.sealed.as_ref();
        let sealed = sealed.map_or(&[][..], |it| &it.pages);
        let page_tokens = self.cache.geometry().page_tokens;
        let mut tokens = submission.prompt.clone();
        tokens.extend(&submission.generated);
        // The last token is run in any case, and so is what log probabilities are still to be told of.
        tokens.pop();
        if let Some(order) = submission.prompt_logprobs
            && order.told as usize + 1 < submission.prompt.len()
        {
            tokens.truncate(order.told as usize);
        }
        let prefix = self.cache.find(&tokens);
        let mut adopted = Vec::new();
        let pages = (0..).step_by(page_tokens as usize).zip(sealed);
        for (start, sealed) in pages.skip(prefix.pages.len()) {
            let is_possible = (1..=page_tokens).contains(&sealed.tokens)
                && start + sealed.tokens as usize <= tokens.len();
            if !is_possible {
                break;
            }
            let ahead = self.cache.find_ahead(PageId(sealed.page), sealed.checksum);
            let Some(to) = ahead.or_else(|| self.cache.allocate()) else {
                break;
            };
            adopted.push(Adopted {
                copy: PageCopy {
                    from: sealed.page,
                    to,
                    tokens: sealed.tokens,
                    checksum: sealed.checksum,
                },
                is_here: ahead.is_some(),
            });
            if sealed.tokens < page_tokens {
                break;
            }
        }
        Adoption {
            pages: adopted,
            prefix,
            tokens,
        }
    }

    /// Submits the request, with the pages up to the first one that is not intact: `intact` tells it of each of
    /// the [`copies`](Adoption::copies).
    ///
    /// # Errors
    /// As [`submit`](Self::submit).
    pub fn submit_with(
        &mut self,
        submission: Submission,
        adoption: Adoption,
        intact: &mut impl Iterator<Item = bool>,
    ) -> Result<(), SchedulerError> {
        let page_tokens = self.cache.geometry().page_tokens;
        let Adoption {
            pages: mut adopted,
            prefix: Prefix { mut pages, chain },
            tokens,
        } = adoption;
        for page in adopted.iter_mut().filter(|page| !page.is_here) {
            page.is_here = intact.next() == Some(true);
            self.changed_pages += u64::from(!page.is_here);
        }
        let whole = adopted.iter().take_while(|page| page.is_here).count();
        let refused: Vec<_> = adopted.drain(whole..).map(|page| page.copy.to).collect();
        self.cache.release(&refused);
        let (mut end, mut tail) = (chain, None);
        for Adopted { copy, .. } in adopted {
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
