//! One answer on its way through a grammar.

use crate::compiler::caught;
use crate::error::GrammarError;
use crate::mask::Mask;
use llguidance::TokenParser;
use llguidance::api::StopReason;
use std::fmt;
use worker_orcd_ipc::TokenId;

/// Asked in turns: a mask, the token that was drawn of it, the next mask.
pub struct Matcher {
    parser: llguidance::Matcher,
    vocabulary: usize,
    /// Tokens that end a generation.
    ends: Vec<u32>,
}

impl Matcher {
    pub(crate) fn new(parser: TokenParser, vocabulary: usize) -> Self {
        let ends = parser.token_env.tok_trie().eos_tokens().to_vec();
        Self {
            parser: llguidance::Matcher::new(Ok(parser)),
            vocabulary,
            ends,
        }
    }

    /// The tokens that may come next: those that ends generation exactly where the grammar is complete, and
    /// after its end no others.
    ///
    /// # Errors
    /// When a limit is exceeded, or the vocabulary has no token to go on with. The matcher cannot be used
    /// any more.
    pub fn mask(&mut self) -> Result<Mask, GrammarError> {
        caught(|| {
            let mask = self.parser.compute_mask_or_eos();
            Ok(mask.map_err(GrammarError::new)?.into())
        })
        .map(|words| Mask::new(words, self.vocabulary))
    }

    /// Goes on by a token of the last mask.
    ///
    /// # Errors
    /// When it was not in the mask, or a limit is exceeded. The matcher cannot be used any more.
    pub fn accept(&mut self, token: TokenId) -> Result<(), GrammarError> {
        if self.parser.stop_reason() != StopReason::NotStopped && self.ends.contains(&token.0) {
            return match self.parser.get_error() {
                None => Ok(()),
                Some(error) => Err(GrammarError::new(error)),
            };
        }
        caught(|| {
            let accepted = self.parser.consume_token(token.0);
            accepted.map_err(GrammarError::new)
        })
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
        caught(|| self.parser.is_accepting().map_err(GrammarError::new))
    }
}

impl fmt::Debug for Matcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Matcher").finish_non_exhaustive()
    }
}
