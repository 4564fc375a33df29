//! Reasoning budget: counts reasoning tokens and forces the closing tag at the limit.
//!
//! ```text
//!   Before ── opening tag ──► Thinks ── budget used, last character complete ──► Closes ──► Over
//!     │                         └────────────────── closing tag ──────────────────────────►  ▲
//!     └── any other text ────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! A pure function of the generated tokens, so that a replayed history continues in the same state. Tags are matched in
//! the text, as in the supervisor (`supervisor/text/src/tools/thinking.rs`), because a vocabulary may have several
//! tokenizations of a tag. The token that completes the opening tag is not counted; each later one is. While the
//! closing tag is emitted, its next token is the only one allowed. A grammar has priority: if it does not allow that
//! token, its own mask applies.

use super::Limits;
use std::sync::Arc;
use worker_orcd_grammar::Mask;
use worker_orcd_ipc::{ThinkingBudget, TokenId, Vocabulary};

#[derive(Debug)]
pub(super) struct ReasoningBudget {
    budget: Arc<ThinkingBudget>,
    state: State,
    /// Text before the opening tag, or the end of the reasoning text: at least any partial tag or character.
    tail: Vec<u8>,
    /// The only allowed next token, if there is one.
    only: Option<(TokenId, Mask)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Only white space and a prefix of the opening tag so far.
    Before,
    /// Number of reasoning tokens so far.
    Thinks(u32),
    /// The next token is this one of the closing tokens.
    Closes(usize),
    Over,
}

impl ReasoningBudget {
    /// State after these generated tokens.
    pub(super) fn new(budget: Arc<ThinkingBudget>, generated: &[TokenId], limits: &Limits) -> Self {
        let state = match &budget.open {
            Some(_) => State::Before,
            None => State::Thinks(0),
        };
        let mut reasoning = Self {
            budget,
            state,
            tail: Vec::new(),
            only: None,
        };
        reasoning.close_in_time();
        for token in generated {
            reasoning.advance(*token, &limits.words);
        }
        reasoning.settle(limits);
        reasoning
    }

    pub(super) fn is_sound(&self, limits: &Limits) -> bool {
        self.budget.is_sound(limits.vocab_size)
    }

    /// Adds a sampled token.
    pub(super) fn learn(&mut self, token: TokenId, limits: &Limits) {
        self.advance(token, &limits.words);
        self.settle(limits);
    }

    /// Number of next tokens that may be any without effect on the mask of the token behind them.
    pub(super) fn decided(&self) -> usize {
        let budget = self.budget.tokens as usize;
        match self.state {
            State::Over => usize::MAX,
            State::Before => budget,
            State::Thinks(tokens) => budget.saturating_sub(tokens as usize + 1),
            State::Closes(_) => 0,
        }
    }

    /// Mask of the next token. `by_grammar`: the grammar's mask.
    pub(super) fn allowed<'a>(&'a self, by_grammar: Option<&'a [u32]>) -> Option<&'a [u32]> {
        let Some((token, only)) = &self.only else {
            return by_grammar;
        };
        let bit = 1 << (token.index() % 32);
        let is_allowed = |words: &[u32]| words[token.index() / 32] & bit != 0;
        match by_grammar {
            Some(words) if !is_allowed(words) => by_grammar,
            _ => Some(only.words()),
        }
    }

    fn advance(&mut self, token: TokenId, words: &Vocabulary) {
        if self.state == State::Over {
            return;
        }
        self.tail.extend_from_slice(self.text(token, words));
        match self.state {
            State::Over => {}
            State::Before => self.look_for_opening(),
            State::Thinks(tokens) => self.state = State::Thinks(tokens.saturating_add(1)),
            State::Closes(next) if self.budget.closing.get(next) == Some(&token) => {
                self.state = State::Closes(next + 1);
            }
            // The grammar has not allowed it.
            State::Closes(_) => self.state = State::Thinks(self.budget.tokens),
        }
        if self.state != State::Before {
            self.look_for_closing();
        }
        self.close_in_time();
    }

    /// Text of a token as the supervisor emits it. A control token has text only if it is a tag or part of the opening
    /// tag.
    fn text<'a>(&self, token: TokenId, words: &'a Vocabulary) -> &'a [u8] {
        let name = words.name(token);
        let open = self.budget.open.as_deref().unwrap_or_default().as_bytes();
        let is_open = !name.is_empty() && open.windows(name.len()).any(|part| part == name);
        match is_open || name == self.budget.close.as_bytes() {
            true => name,
            false => words.bytes(token),
        }
    }

    fn look_for_opening(&mut self) {
        let open = self.budget.open.as_deref().unwrap_or_default().as_bytes();
        let (known, is_cut) = match std::str::from_utf8(&self.tail) {
            Ok(text) => (text, false),
            Err(error) => {
                let known = &self.tail[..error.valid_up_to()];
                let known = std::str::from_utf8(known).unwrap_or_default();
                (known, error.error_len().is_none())
            }
        };
        let space = known.len() - known.trim_start().len();
        // The rest may be a prefix of a white-space character.
        let may_be_space = is_cut && space == known.len();
        let text = &self.tail[space..];
        if text.starts_with(open) {
            self.state = State::Thinks(0);
            self.tail.drain(..space + open.len());
        } else if open.starts_with(text) || may_be_space {
            self.tail.drain(..space);
        } else {
            self.state = State::Over;
        }
    }

    fn look_for_closing(&mut self) {
        let close = self.budget.close.as_bytes();
        let is_closed = self.tail.windows(close.len().max(1)).any(|it| it == close);
        let is_written = self.state == State::Closes(self.budget.closing.len());
        if is_closed || is_written {
            self.state = State::Over;
        }
        let kept = close.len().max(LONGEST_CHARACTER);
        self.tail.drain(..self.tail.len().saturating_sub(kept));
    }

    fn close_in_time(&mut self) {
        if let State::Thinks(tokens) = self.state
            && tokens >= self.budget.tokens
            && ends_whole(&self.tail)
        {
            self.state = State::Closes(0);
        }
    }

    fn settle(&mut self, limits: &Limits) {
        self.only = match self.state {
            State::Closes(next) => self.budget.closing.get(next).map(|token| {
                let mask = Mask::of([*token], limits.vocab_size as usize);
                (*token, mask)
            }),
            State::Before | State::Thinks(_) | State::Over => None,
        };
    }
}

/// Bytes of the longest character in UTF-8.
const LONGEST_CHARACTER: usize = 4;

/// False if the last bytes are an incomplete character.
fn ends_whole(text: &[u8]) -> bool {
    let last = text.len().saturating_sub(LONGEST_CHARACTER - 1)..text.len();
    last.into_iter().all(|at| {
        let cut = std::str::from_utf8(&text[at..]);
        cut.err()
            .is_none_or(|error| error.valid_up_to() > 0 || error.error_len().is_some())
    })
}

#[cfg(test)]
mod tests;
