//! Matcher: state of one answer in a grammar.
//!
//! A lexer keeps each state that a mask has visited. If there are many, the matcher restarts from the compiled grammar
//! and replays the tokens of the answer without their masks: only the states of the answer itself remain. It also does
//! so if one mask exceeds its limits, and then computes [narrow masks](crate::narrow) for a while.

use crate::compiler::caught;
use crate::error::GrammarError;
use crate::limits::{
    ITEM_BYTES, ITEMS_OF_A_ROW, MAX_KEPT_ITEMS, MAX_LEXER_BYTES, NARROW_TOKENS, RENEWED_BYTES,
    RENEWED_STATES,
};
use crate::mask::Mask;
use crate::narrow::{Idle, Narrow};
use llguidance::TokenParser;
use llguidance::toktrie::SimpleVob;
use std::sync::Arc;
use std::{fmt, mem};
use worker_orcd_ipc::TokenId;

/// Calls alternate: a mask, the token sampled from it, the next mask.
pub struct Matcher {
    /// The parser, or the error that ended it.
    parser: Result<TokenParser, GrammarError>,
    /// Parser before its first token.
    compiled: Arc<TokenParser>,
    /// Accepted tokens.
    tokens: Vec<TokenId>,
    /// States and bytes of the lexer at which it is renewed.
    most: (usize, usize),
    /// Fallback if a full mask exceeds a limit; without it that is an error.
    narrow: Option<Arc<Narrow>>,
    /// Number of narrow masks still to come.
    narrow_tokens: usize,
    /// The last step exceeded a limit of the lexer.
    is_exhausted: bool,
    vocabulary: usize,
    /// Tokens that end a generation.
    ends: Vec<u32>,
    /// Parser items kept for the accepted tokens, and its rows as a number of items.
    kept_items: usize,
}

impl Matcher {
    /// Matcher of a started parser.
    pub(crate) fn new(compiled: Arc<TokenParser>, vocabulary: usize) -> Self {
        let parser = compiled.deep_clone();
        Self {
            ends: parser.token_env.tok_trie().eos_tokens().to_vec(),
            most: most(&parser),
            parser: Ok(parser),
            compiled,
            tokens: Vec::new(),
            narrow: None,
            narrow_tokens: 0,
            is_exhausted: false,
            vocabulary,
            kept_items: 0,
        }
    }

    pub(crate) fn with_narrow(mut self, narrow: &Arc<Narrow>) -> Self {
        self.narrow = Some(Arc::clone(narrow));
        self
    }

    /// Allowed next tokens. Tokens that end a generation are allowed exactly where the grammar is complete; after its
    /// end no others are. The mask is incomplete if a full one exceeds a limit.
    ///
    /// # Errors
    /// If a limit is exceeded nevertheless, or no token of the vocabulary can continue. The matcher is unusable from
    /// then on.
    pub fn mask(&mut self) -> Result<Mask, GrammarError> {
        if self.is_full() {
            self.begin_again()?;
        }
        if self.narrow_tokens == 0 {
            let wide = self.ask(mask_of);
            // If the answer itself fills the lexer, a restart frees nothing.
            let is_hopeless = self.most.1 > MAX_LEXER_BYTES;
            if self.narrow.is_none() || !self.is_exhausted || is_hopeless {
                return Ok(Mask::new(wide?.into(), self.vocabulary));
            }
            self.begin_again()?;
            self.narrow_tokens = NARROW_TOKENS;
        }
        let narrow = self.narrow.clone();
        let words = self.ask(|parser| {
            if let Some(narrow) = narrow {
                parser.bias_computer = narrow;
            }
            mask_of(parser)
        });
        if let Ok(parser) = &mut self.parser {
            parser.bias_computer = Arc::clone(&self.compiled.bias_computer);
        }
        Ok(Mask::new(words?.into(), self.vocabulary))
    }

    /// The next mask, preceded by at most `most` forced tokens, each from a mask with a single token; the matcher
    /// accepts them. A token that ends a generation is left to sampling.
    ///
    /// The mask may be an error after some tokens.
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

    /// Accepts a token of the last mask.
    ///
    /// # Errors
    /// If it was not in the mask, or a limit is exceeded. The matcher is unusable from then on.
    pub fn accept(&mut self, token: TokenId) -> Result<(), GrammarError> {
        let is_end = self.ends.contains(&token.0);
        let kept = self.kept_items;
        self.kept_items = self.ask(|parser| {
            if is_end && parser.stopped() {
                return Ok(kept);
            }
            let before = items(parser);
            take(parser, token)?;
            let kept = kept + items(parser) - before;
            if kept > MAX_KEPT_ITEMS {
                let why = format!("the answer has more than {MAX_KEPT_ITEMS} items of its parser");
                return Err(GrammarError::new(why));
            }
            Ok(kept)
        })?;
        self.tokens.push(token);
        self.narrow_tokens = self.narrow_tokens.saturating_sub(1);
        Ok(())
    }

    /// True if masks have left many states in the lexer.
    fn is_full(&self) -> bool {
        self.parser.as_ref().is_ok_and(|parser| {
            let (states, bytes) = lexer_size(parser);
            (states > self.most.0 || bytes > self.most.1) && !parser.stopped()
        })
    }

    /// Restarts from the compiled grammar, with the accepted tokens and without the states of masks.
    fn begin_again(&mut self) -> Result<(), GrammarError> {
        let tokens = mem::take(&mut self.tokens);
        self.parser = Ok(self.compiled.deep_clone());
        self.most = self.ask(|parser| {
            let idle = Idle(parser.token_env.clone());
            for token in &tokens {
                // Fuel as for a mask.
                parser.parser.compute_bias(&idle, &[]);
                parser.parser.invalidate_bias_cache();
                take(parser, *token)?;
            }
            Ok(most(parser))
        })?;
        self.tokens = tokens;
        Ok(())
    }

    /// Replays tokens that were sampled elsewhere, with the same result as if they were sampled here. It computes a
    /// mask before each token: limits count the work of masks too, and narrow masks depend on earlier ones.
    ///
    /// # Errors
    /// Those of [`Self::mask`] and [`Self::accept`].
    pub fn replay(&mut self, tokens: &[TokenId]) -> Result<(), GrammarError> {
        tokens.iter().try_for_each(|token| {
            self.mask()?;
            self.accept(*token)
        })
    }

    /// Accepts tokens, of which the last mask allows the first, with the masks between them.
    ///
    /// # Errors
    /// Those of [`Self::mask`] and [`Self::accept`].
    pub fn catch_up(&mut self, tokens: &[TokenId]) -> Result<(), GrammarError> {
        let Some((first, others)) = tokens.split_first() else {
            return Ok(());
        };
        self.accept(*first)?;
        self.replay(others)
    }

    /// A matcher in the same state, which has no effect on this one. `None` if it would take more than this many bytes, or
    /// after an error.
    #[must_use]
    pub fn copy(&self, most_bytes: usize) -> Option<Self> {
        let parser = self.parser.as_ref().ok()?;
        let bytes = lexer_size(parser).1 + self.kept_items * ITEM_BYTES;
        if bytes > most_bytes {
            return None;
        }
        Some(Self {
            parser: Ok(caught(|| Ok(parser.deep_clone())).ok()?),
            compiled: Arc::clone(&self.compiled),
            tokens: self.tokens.clone(),
            narrow: self.narrow.clone(),
            ends: self.ends.clone(),
            ..*self
        })
    }

    /// True if the accepted text is complete.
    ///
    /// # Errors
    /// Those of [`Self::mask`].
    pub fn is_complete(&mut self) -> Result<bool, GrammarError> {
        self.ask(|parser| Ok(parser.is_accepting()))
    }

    /// Size of its lexer, in the limit's unit; 0 after an error.
    #[must_use]
    pub fn lexer_bytes(&self) -> usize {
        let parser = self.parser.as_ref();
        parser.map_or(0, |parser| parser.parser.lexer_stats().num_bytes)
    }

    /// Lexer work so far; 0 after an error.
    pub(crate) fn fuel(&self) -> usize {
        let parser = self.parser.as_ref();
        parser.map_or(0, |parser| parser.parser.lexer_stats().total_fuel_spent)
    }

    pub(crate) fn ends(&self) -> &[u32] {
        &self.ends
    }

    /// Values compared with limits: lexer fuel, items and rows of the parser.
    #[cfg(test)]
    pub(crate) fn work(&self) -> Option<(usize, usize, usize)> {
        let parser = self.parser.as_ref().ok()?;
        let (stats, lexer) = (parser.parser_stats(), parser.parser.lexer_stats());
        Some((lexer.total_fuel_spent, stats.all_items, stats.rows))
    }

    /// Runs a step of the parser. An error is permanent and answers all later calls: the parser is dropped, because a
    /// panic may have left it inconsistent.
    fn ask<T>(
        &mut self,
        step: impl FnOnce(&mut TokenParser) -> Result<T, GrammarError>,
    ) -> Result<T, GrammarError> {
        let parser = self.parser.as_mut().map_err(|error| error.clone())?;
        let answer = caught(|| {
            let answer = step(parser)?;
            if lexer_size(parser).1 > MAX_LEXER_BYTES {
                let why = format!("its lexer has more than {MAX_LEXER_BYTES} bytes");
                return Err(GrammarError::new(why));
            }
            Ok(answer)
        });
        self.is_exhausted = answer.is_err() && is_exhausted(parser);
        if let Err(error) = &answer {
            self.parser = Err(error.clone());
        }
        answer
    }
}

/// Mask of the parser; after the end of the answer, its end tokens only.
fn mask_of(parser: &mut TokenParser) -> Result<SimpleVob, GrammarError> {
    if parser.stopped() {
        return Ok(parser.token_env.tok_trie().eos_token_set());
    }
    parser.compute_mask().map_err(GrammarError::new)
}

/// True if a limit of its lexer is exceeded.
fn is_exhausted(parser: &TokenParser) -> bool {
    let stats = parser.parser.lexer_stats();
    stats.error || stats.num_bytes > MAX_LEXER_BYTES
}

fn take(parser: &mut TokenParser, token: TokenId) -> Result<(), GrammarError> {
    let back = parser.consume_token(token.0);
    if back.map_err(GrammarError::new)? != 0 {
        return Err(GrammarError::new("unexpected backtracking"));
    }
    parser.check_stop().map_err(GrammarError::new)?;
    Ok(())
}

/// States and bytes.
fn lexer_size(parser: &TokenParser) -> (usize, usize) {
    let stats = parser.parser.lexer_stats();
    (stats.num_states, stats.num_bytes)
}

/// Lexer size at which a new parser is renewed: at least twice its present size, so that the work of renewals is a
/// share of the whole.
fn most(parser: &TokenParser) -> (usize, usize) {
    let (states, bytes) = lexer_size(parser);
    (
        states + states.max(RENEWED_STATES),
        bytes + bytes.max(RENEWED_BYTES),
    )
}

/// Number of items that the parser has created so far. It keeps those of accepted tokens, and none of masks.
fn items(parser: &TokenParser) -> usize {
    let stats = parser.parser_stats();
    stats.all_items + stats.rows * ITEMS_OF_A_ROW
}

impl fmt::Debug for Matcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Matcher").finish_non_exhaustive()
    }
}
