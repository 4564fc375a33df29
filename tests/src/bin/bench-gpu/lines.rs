//! Sequence of an executor: tokens so far, number of computed ones, and pages.

use anyhow::{Result, ensure};
use worker_orcd_gpu::device::{PageId, SampleWork, SequenceWork};
use worker_orcd_ipc::{RequestId, Sampling, TokenId};

/// Id of a line for the executor.
pub fn request(index: usize) -> RequestId {
    RequestId(index as u64 + 1)
}

#[derive(Debug, Clone)]
pub struct Line {
    /// Prompt and drawn tokens.
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

    /// Known tokens that are not computed.
    pub fn pending(&self) -> usize {
        self.history.len() - self.computed
    }

    /// Returns to the state before its first drawn token.
    pub fn rewind(&mut self) {
        self.history.truncate(self.prompt_tokens + 1);
        self.computed = self.prompt_tokens;
    }

    /// Work of the next `tokens` tokens.
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
            drafts: 0,
        }
    }

    /// Records a step of `tokens`.
    ///
    /// # Errors
    /// A token was drawn that was not due, or a due one was not.
    pub fn advance(&mut self, tokens: usize, drawn: Option<TokenId>) -> Result<()> {
        self.computed += tokens;
        let is_due = self.computed == self.history.len();
        ensure!(drawn.is_some() == is_due, "{drawn:?} was drawn");
        self.history.extend(drawn);
        Ok(())
    }
}
