//! Thoughts that are bounded: how many tokens they have, and which token must come next.
//!
//! ```text
//!   Before ── opening tag ──► Thinks ── so many tokens, the last character whole ──► Closes ──► Over
//!     │                         └────────────────── closing tag ──────────────────────────────►  ▲
//!     └── any other text ────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! A function of the generated tokens, so that a history goes on where it was. Tags are looked for in the text,
//! as the supervisor does (`supervisor/text/src/tools/thinking.rs`), because a vocabulary may have several ways
//! to write one. The token that completes the opening tag is not counted, each one behind it is. While the
//! tokens of the closing tag are drawn, each is the only one allowed. A grammar goes before: where it does not
//! allow that token, its own mask counts.

use super::Limits;
use worker_orcd_grammar::Mask;
use worker_orcd_ipc::{ThinkingBudget, TokenId, Vocabulary};

#[derive(Debug)]
pub(super) struct Thoughts {
    budget: ThinkingBudget,
    state: State,
    /// The text before the opening tag, or the last of the thoughts' text: more than could be the beginning of
    /// a tag or of a character.
    tail: Vec<u8>,
    /// The one token that may come next.
    only: Option<(TokenId, Mask)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Nothing but white space and a beginning of the opening tag came.
    Before,
    /// So many tokens of thoughts came.
    Thinks(u32),
    /// The next token is this one of those that close.
    Closes(usize),
    Over,
}

impl Thoughts {
    /// Behind these tokens.
    pub(super) fn new(budget: ThinkingBudget, generated: &[TokenId], limits: &Limits) -> Self {
        let state = match &budget.open {
            Some(_) => State::Before,
            None => State::Thinks(0),
        };
        let mut thoughts = Self {
            budget,
            state,
            tail: Vec::new(),
            only: None,
        };
        thoughts.close_in_time();
        for token in generated {
            thoughts.advance(*token, &limits.words);
        }
        thoughts.settle(limits);
        thoughts
    }

    pub(super) fn is_sound(&self, limits: &Limits) -> bool {
        self.budget.is_sound(limits.vocab_size)
    }

    /// One more token was drawn.
    pub(super) fn learn(&mut self, token: TokenId, limits: &Limits) {
        self.advance(token, &limits.words);
        self.settle(limits);
    }

    /// What may come next is known, whatever the last `unknown` tokens turn out to be.
    pub(super) fn is_decided(&self, unknown: usize) -> bool {
        let most = match self.state {
            State::Over => return true,
            State::Before => unknown.saturating_sub(1),
            State::Thinks(tokens) => tokens as usize + unknown,
            State::Closes(_) => usize::MAX,
        };
        unknown == 0 || most < self.budget.tokens as usize
    }

    /// `by_grammar`: what a grammar allows.
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
            // A grammar has not allowed it.
            State::Closes(_) => self.state = State::Thinks(self.budget.tokens),
        }
        if self.state != State::Before {
            self.look_for_closing();
        }
        self.close_in_time();
    }

    /// The text of a token as the supervisor tells it: of control tokens, only tags have one, and parts of the opening one.
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
        // The rest may be the beginning of white space.
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

/// In UTF-8, in bytes.
const LONGEST_CHARACTER: usize = 4;

/// False where the last bytes are the beginning of a character.
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
