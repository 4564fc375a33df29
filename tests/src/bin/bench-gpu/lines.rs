//! A sequence as an executor sees it: tokens so far, how many of them are computed, and its pages.

use anyhow::{Result, ensure};
use worker_orcd_gpu::device::{PageId, SampleWork, SequenceWork};
use worker_orcd_ipc::{RequestId, Sampling, TokenId};

/// By which the executor knows a line.
pub fn request(index: usize) -> RequestId {
    RequestId(index as u64 + 1)
}

#[derive(Debug, Clone)]
pub struct Line {
    /// Prompt, then what was drawn.
    history: Vec<TokenId>,
    prompt_tokens: usize,
    computed: usize,
    sampling: Sampling,
    pages: Vec<PageId>,
}

impl Line {
    pub fn new(prompt: Vec<TokenId>, sampling: Sampling, pages: Vec<PageId>) -> Self {
        Self {
            prompt_tokens: prompt.len(),
            history: prompt,
            computed: 0,
            sampling,
            pages,
        }
    }

    pub fn generated(&self) -> &[TokenId] {
        &self.history[self.prompt_tokens..]
    }

    /// Tokens that are known and not computed.
    pub fn pending(&self) -> usize {
        self.history.len() - self.computed
    }

    /// Back to where it had drawn its first token; what it had computed since is forgotten.
    pub fn rewind(&mut self) {
        self.history.truncate(self.prompt_tokens + 1);
        self.computed = self.prompt_tokens;
    }

    /// The next `tokens` of it.
    pub fn work(&self, index: usize, tokens: usize) -> SequenceWork<'_> {
        let end = self.computed + tokens;
        let (prompt, generated) = self.history.split_at(self.prompt_tokens);
        let sampling = self.sampling;
        SequenceWork {
            request: request(index),
            tokens: &self.history[self.computed..end],
            first_position: self.computed as u32,
            pages: &self.pages,
            sample: (end == self.history.len())
                .then_some(SampleWork::new(sampling, prompt, generated)),
        }
    }

    /// After a step of `tokens`.
    ///
    /// # Errors
    /// When a token was drawn that was not due, or none that was.
    pub fn advance(&mut self, tokens: usize, drawn: Option<TokenId>) -> Result<()> {
        self.computed += tokens;
        let is_due = self.computed == self.history.len();
        ensure!(drawn.is_some() == is_due, "{drawn:?} was drawn");
        self.history.extend(drawn);
        Ok(())
    }
}
