//! One answer on its way through a grammar.

use crate::compiler::caught;
use crate::error::GrammarError;
use crate::limits::{ITEMS_OF_A_ROW, MAX_KEPT_ITEMS, MAX_LEXER_BYTES};
use crate::mask::Mask;
use llguidance::TokenParser;
use std::fmt;
use worker_orcd_ipc::TokenId;

/// Asked in turns: a mask, the token that was drawn of it, the next mask.
pub struct Matcher {
    /// Or why it cannot go on.
    parser: Result<TokenParser, GrammarError>,
    vocabulary: usize,
    /// Tokens that end a generation.
    ends: Vec<u32>,
    /// Items of the parser that the tokens accepted have left behind, and its rows as so many.
    kept_items: usize,
}

impl Matcher {
    /// `parser` has been started.
    pub(crate) fn new(parser: TokenParser, vocabulary: usize) -> Self {
        Self {
            ends: parser.token_env.tok_trie().eos_tokens().to_vec(),
            parser: Ok(parser),
            vocabulary,
            kept_items: 0,
        }
    }

    /// The tokens that may come next: those that ends generation exactly where the grammar is complete, and
    /// after its end no others.
    ///
    /// # Errors
    /// When a limit is exceeded, or the vocabulary has no token to go on with. The matcher cannot be used
    /// any more.
    pub fn mask(&mut self) -> Result<Mask, GrammarError> {
        let words = self.ask(|parser| {
            if parser.stopped() {
                return Ok(parser.token_env.tok_trie().eos_token_set());
            }
            parser.compute_mask().map_err(GrammarError::new)
        })?;
        Ok(Mask::new(words.into(), self.vocabulary))
    }

    /// The next mask, and before it the tokens that masks of a single token leave no choice about, `most` of
    /// them at most: it goes on by those. One that ends a generation is left to be drawn.
    ///
    /// The mask may be an error behind some tokens.
    pub fn forced(&mut self, most: usize) -> (Vec<TokenId>, Result<Mask, GrammarError>) {
        let mut forced = Vec::new();
        loop {
            let mask = match self.mask() {
                Ok(mask) => mask,
                failed => return (forced, failed),
            };
            let only = mask.only().filter(|token| !self.ends.contains(&token.0));
            let Some(token) = only.filter(|_| forced.len() < most) else {
                return (forced, Ok(mask));
            };
            forced.push(token);
            if let Err(error) = self.accept(token) {
                return (forced, Err(error));
            }
        }
    }

    /// Goes on by a token of the last mask.
    ///
    /// # Errors
    /// When it was not in the mask, or a limit is exceeded. The matcher cannot be used any more.
    pub fn accept(&mut self, token: TokenId) -> Result<(), GrammarError> {
        let is_end = self.ends.contains(&token.0);
        let kept = self.kept_items;
        self.kept_items = self.ask(|parser| {
            if is_end && parser.stopped() {
                return Ok(kept);
            }
            let before = items(parser);
            let back = parser.consume_token(token.0);
            if back.map_err(GrammarError::new)? != 0 {
                return Err(GrammarError::new("unexpected backtracking"));
            }
            let kept = kept + items(parser) - before;
            parser.check_stop().map_err(GrammarError::new)?;
            if kept > MAX_KEPT_ITEMS {
                let why = format!("the answer has more than {MAX_KEPT_ITEMS} items of its parser");
                return Err(GrammarError::new(why));
            }
            Ok(kept)
        })?;
        Ok(())
    }

    /// Goes on by tokens that were drawn elsewhere, as if they had been drawn here: with a mask before each,
    /// because limits count the work of masks too.
    ///
    /// # Errors
    /// As [`Self::mask`] and [`Self::accept`].
    pub fn replay(&mut self, tokens: &[TokenId]) -> Result<(), GrammarError> {
        tokens.iter().try_for_each(|token| {
            self.mask()?;
            self.accept(*token)
        })
    }

    /// What was accepted is a text of the grammar.
    ///
    /// # Errors
    /// As [`Self::mask`].
    pub fn is_complete(&mut self) -> Result<bool, GrammarError> {
        self.ask(|parser| Ok(parser.is_accepting()))
    }

    /// Bytes of its lexer, as they are limited; none where it cannot go on.
    #[must_use]
    pub fn lexer_bytes(&self) -> usize {
        let parser = self.parser.as_ref();
        parser.map_or(0, |parser| parser.parser.lexer_stats().num_bytes)
    }

    /// Lexer work by now; none where it cannot go on.
    pub(crate) fn fuel(&self) -> usize {
        let parser = self.parser.as_ref();
        parser.map_or(0, |parser| parser.parser.lexer_stats().total_fuel_spent)
    }

    pub(crate) fn ends(&self) -> &[u32] {
        &self.ends
    }

    /// What limits count: lexer fuel, items and rows of the parser.
    #[cfg(test)]
    pub(crate) fn work(&self) -> Option<(usize, usize, usize)> {
        let parser = self.parser.as_ref().ok()?;
        let (stats, lexer) = (parser.parser_stats(), parser.parser.lexer_stats());
        Some((lexer.total_fuel_spent, stats.all_items, stats.rows))
    }

    /// A step of the parser. What went wrong once is the answer to all that is asked later: the parser is
    /// given up, for a panic may have left it half done.
    fn ask<T>(
        &mut self,
        step: impl FnOnce(&mut TokenParser) -> Result<T, GrammarError>,
    ) -> Result<T, GrammarError> {
        let parser = self.parser.as_mut().map_err(|error| error.clone())?;
        let answer = caught(|| {
            let answer = step(parser)?;
            if parser.parser.lexer_stats().num_bytes > MAX_LEXER_BYTES {
                let why = format!("its lexer has more than {MAX_LEXER_BYTES} bytes");
                return Err(GrammarError::new(why));
            }
            Ok(answer)
        });
        if let Err(error) = &answer {
            self.parser = Err(error.clone());
        }
        answer
    }
}

/// What the parser has made by now. Where a token is accepted it keeps what it makes; of a mask it keeps nothing.
fn items(parser: &TokenParser) -> usize {
    let stats = parser.parser_stats();
    stats.all_items + stats.rows * ITEMS_OF_A_ROW
}

impl fmt::Debug for Matcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Matcher").finish_non_exhaustive()
    }
}
