//! The vocabulary in llguidance's form.
//!
//! * A control token is its name after the byte 0xFF, which no text has: only a grammar that names the token itself
//!   allows it.
//! * A token without bytes, and one that is too long, are never allowed.
//! * llguidance's own forcing is off: the model chooses the tokenization of a text.

use crate::error::GrammarError;
use crate::limits::MAX_TOKEN_BYTES;
use llguidance::toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};
use std::sync::Arc;
use worker_orcd_ipc::vocabulary::effective_kind;
use worker_orcd_ipc::{TokenId, TokenKind, TokenizerFacts, Vocabulary};

/// Converts the vocabulary.
///
/// # Errors
/// If the facts are inconsistent, or no token ends a generation.
pub(crate) fn token_env(facts: &TokenizerFacts) -> Result<TokEnv, GrammarError> {
    let vocabulary = Vocabulary::from_facts(facts).map_err(GrammarError::new)?;
    let mut ends: Vec<u32> = facts.end_of_generation.iter().map(|it| it.0).collect();
    ends.sort_unstable();
    ends.dedup();
    if ends.iter().any(|end| *end as usize >= vocabulary.len()) {
        let why = "a token that ends generation is outside the vocabulary";
        return Err(GrammarError::new(why));
    }
    let Some(&first) = ends.first() else {
        let why = "no token of this model ends generation, so nothing can end where a grammar ends";
        return Err(GrammarError::new(why));
    };
    let words: Vec<Vec<u8>> = (0..vocabulary.len())
        .map(|index| bytes(facts, &vocabulary, index))
        .collect();
    let info = TokRxInfo::new(words.len() as u32, first);
    let trie = TokTrie::from(&info, &words).with_eos_tokens(&ends);
    Ok(Arc::new(ApproximateTokEnv::new(trie)))
}

fn bytes(facts: &TokenizerFacts, vocabulary: &Vocabulary, index: usize) -> Vec<u8> {
    let token = TokenId(index as u32);
    let bytes = match effective_kind(facts, index) {
        TokenKind::Control => {
            let mut marked = vec![TokTrie::SPECIAL_TOKEN_MARKER];
            marked.extend_from_slice(facts.tokens[index].as_bytes());
            marked
        }
        _ => vocabulary.bytes(token).to_vec(),
    };
    if bytes.len() > MAX_TOKEN_BYTES {
        return Vec::new();
    }
    bytes
}
