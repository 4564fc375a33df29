//! One request on its way: its tokens, how many of them are in the KV cache, and when it ends.

use super::Limits;
use crate::device::{PageId, SampleWork, SequenceWork};
use crate::kv_cache::{ChainId, KvCache};
use worker_orcd_ipc::{FinishReason, RequestId, Sampling, Submission, TokenId};

#[derive(Debug)]
pub(super) struct Sequence {
    pub(super) request: RequestId,
    /// Prompt, then completion.
    tokens: Vec<TokenId>,
    prompt_len: usize,
    sampling: Sampling,
    max_tokens: usize,
    ignore_eos: bool,
    /// Positions `0 .. computed` are in `pages`.
    computed: usize,
    pages: Vec<PageId>,
    /// Names the first `published` pages.
    chain: ChainId,
    published: usize,
    /// It ran before and was parked: its prompt is already in the statistics.
    pub(super) was_running: bool,
}

impl Sequence {
    pub(super) fn new(submission: Submission) -> Self {
        let Submission {
            request,
            prompt,
            generated,
            sampling,
            max_tokens,
            ignore_eos,
        } = submission;
        let prompt_len = prompt.len();
        let mut tokens = prompt;
        tokens.extend(generated);
        Self {
            request,
            tokens,
            prompt_len,
            sampling,
            max_tokens: max_tokens as usize,
            ignore_eos,
            computed: 0,
            pages: Vec::new(),
            chain: ChainId::ROOT,
            published: 0,
            was_running: false,
        }
    }

    pub(super) fn prompt_len(&self) -> usize {
        self.prompt_len
    }

    fn generated(&self) -> &[TokenId] {
        &self.tokens[self.prompt_len..]
    }

    /// Known tokens that are not in the KV cache yet. At least 1 for as long as it runs: the
    /// newest token is always still to be run.
    pub(super) fn pending(&self) -> usize {
        self.tokens.len() - self.computed
    }

    /// Why it ends before anything is computed, if it does.
    pub(super) fn refusal(&self, limits: &Limits) -> Option<FinishReason> {
        let refused = |message| Some(FinishReason::Refused { message });
        if self.prompt_len == 0 {
            return refused("the prompt is empty".to_owned());
        }
        if let Some(token) = self
            .tokens
            .iter()
            .find(|token| token.0 >= limits.vocab_size)
        {
            return refused(format!(
                "token {token} is outside a vocabulary of {}",
                limits.vocab_size
            ));
        }
        if self.prompt_len >= limits.max_sequence_tokens as usize {
            return refused(format!(
                "a prompt of {} tokens leaves no room in a context of {}",
                self.prompt_len, limits.max_sequence_tokens
            ));
        }
        self.ending(limits)
    }

    /// Why it ends with the tokens it has, if it does.
    pub(super) fn ending(&self, limits: &Limits) -> Option<FinishReason> {
        let last = self.generated().last();
        if !self.ignore_eos && last.is_some_and(|token| limits.ends_generation(*token)) {
            return Some(FinishReason::EndOfSequence);
        }
        let is_full = self.generated().len() >= self.max_tokens
            || self.tokens.len() >= limits.max_sequence_tokens as usize;
        is_full.then_some(FinishReason::MaxTokens)
    }

    /// Pages for every known token; among them is the one that the next token will be drawn from.
    pub(super) fn pages_wanted(&self, cache: &KvCache) -> usize {
        cache.pages_for(self.tokens.len())
    }

    pub(super) fn page_count(&self) -> usize {
        self.pages.len()
    }

    pub(super) fn lacks_pages(&self, cache: &KvCache) -> bool {
        self.pages.len() < self.pages_wanted(cache)
    }

    /// Takes over what others have computed. The last token is left to be run in any case: its
    /// logits are what a next token is drawn from. Gives the number of tokens saved.
    pub(super) fn adopt_prefix(&mut self, cache: &mut KvCache) -> usize {
        let reusable = self.tokens.len() - 1;
        let prefix = cache.find(&self.tokens[..reusable]);
        self.published = prefix.pages.len();
        self.computed = prefix.pages.len() * cache.geometry().page_tokens as usize;
        self.pages = prefix.pages;
        self.chain = prefix.chain;
        self.computed
    }

    pub(super) fn add_page(&mut self, page: PageId) {
        self.pages.push(page);
    }

    /// Forgets what was computed; the tokens stay.
    pub(super) fn give_up_pages(&mut self, cache: &mut KvCache) {
        cache.release(&self.pages);
        self.pages.clear();
        self.computed = 0;
        self.published = 0;
        self.chain = ChainId::ROOT;
    }

    /// The next `tokens` of what is pending, as the device is told.
    pub(super) fn work(&self, tokens: usize) -> SequenceWork<'_> {
        let end = self.computed + tokens;
        let sample = (end == self.tokens.len()).then(|| SampleWork {
            sampling: self.sampling,
            prompt: &self.tokens[..self.prompt_len],
            generated: self.generated(),
        });
        SequenceWork {
            request: self.request,
            tokens: &self.tokens[self.computed..end],
            first_position: self.computed as u32,
            pages: &self.pages,
            sample,
        }
    }

    /// The device has run `tokens` more.
    pub(super) fn advance(&mut self, tokens: usize, cache: &mut KvCache) {
        let page_tokens = cache.geometry().page_tokens as usize;
        debug_assert!(
            self.pages[self.computed / page_tokens..]
                .iter()
                .all(|page| cache.is_private(*page)),
            "a shared page was written"
        );
        self.computed += tokens;
        while (self.published + 1) * page_tokens <= self.computed {
            let start = self.published * page_tokens;
            let page_content = &self.tokens[start..start + page_tokens];
            self.chain = cache.publish(self.chain, page_content, self.pages[self.published]);
            self.published += 1;
        }
    }

    /// Adds a drawn token and gives its index among all that were generated.
    pub(super) fn push(&mut self, token: TokenId) -> u32 {
        let index = self.generated().len() as u32;
        self.tokens.push(token);
        index
    }
}
