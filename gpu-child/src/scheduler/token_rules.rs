//! `min_tokens`, `stop_token_ids` and `allowed_token_ids`, as vLLM defines them; and tokens that the model's file suppresses, as
//! llama.cpp does.
//!
//! Only tokens of `allowed_token_ids` are sampled, and of these no suppressed one if any other is left. Before `min_tokens`
//! tokens, none is sampled that ends the answer: an end-of-generation token, also with `ignore_eos`, or one of
//! `stop_token_ids`. If no other token is left, because the grammar is complete or nothing else is allowed, such a token
//! is sampled and ends the answer.
//!
//! The mask is a function of the token's index, and under a grammar of its mask. So steps are launched ahead, and a
//! replayed history continues with the same tokens.

use super::Limits;
use worker_orcd_grammar::Mask;
use worker_orcd_ipc::{GenerationParams, TokenId};

#[derive(Debug)]
pub(super) struct TokenRules {
    /// Mask of `allowed_token_ids`, if there are any.
    allowed: Option<Mask>,
    /// Tokens that the model's file suppresses.
    suppressed: Mask,
    min_tokens: usize,
    /// Tokens that end the answer.
    ends: Mask,
    /// Mask before `min_tokens` tokens.
    early: Mask,
    /// Mask after `min_tokens` tokens, if not all tokens are left.
    late: Option<Mask>,
}

impl TokenRules {
    /// `None` for parameters without such rules.
    pub(super) fn new(params: &GenerationParams, limits: &Limits) -> Option<Self> {
        let GenerationParams {
            min_tokens,
            stop_token_ids,
            allowed_token_ids,
            ..
        } = params;
        let has_own =
            *min_tokens > 0 || !stop_token_ids.is_empty() || !allowed_token_ids.is_empty();
        if !has_own && limits.suppressed.is_empty() {
            return None;
        }
        let vocabulary = limits.vocab_size as usize;
        let ends = limits.end_of_generation.iter().chain(stop_token_ids.iter());
        let ends = Mask::of(ends.copied(), vocabulary);
        let allowed = allowed_token_ids.iter().copied();
        let allowed = (!allowed_token_ids.is_empty()).then(|| Mask::of(allowed, vocabulary));
        let all = || Mask::all(vocabulary);
        let suppressed = Mask::of(limits.suppressed.iter().copied(), vocabulary);
        let late = match limits.suppressed.is_empty() {
            true => allowed.clone(),
            false => Some(unless_over(
                allowed.clone().unwrap_or_else(all),
                &suppressed,
            )),
        };
        let early = unless_over(late.clone().unwrap_or_else(all), &ends);
        Some(Self {
            allowed,
            suppressed,
            min_tokens: *min_tokens as usize,
            ends,
            early,
            late,
        })
    }

    /// True if both lists are ids of the vocabulary, in ascending order.
    pub(super) fn are_sound(params: &GenerationParams, limits: &Limits) -> bool {
        [&params.stop_token_ids, &params.allowed_token_ids]
            .into_iter()
            .all(|ids| {
                let is_known = |token: &TokenId| token.0 < limits.vocab_size;
                ids.iter().all(is_known) && ids.is_sorted_by(|a, b| a < b)
            })
    }

    /// Mask of the token after the first `index` generated ones, without a grammar.
    pub(super) fn mask(&self, index: usize) -> Option<&[u32]> {
        match index < self.min_tokens {
            true => Some(self.early.words()),
            false => self.late.as_ref().map(Mask::words),
        }
    }

    /// The part of a grammar's mask that the rules leave; `None` if it is empty.
    pub(super) fn narrow(&self, mask: Mask, index: usize) -> Option<Mask> {
        let mask = match &self.allowed {
            Some(allowed) => mask.and(allowed)?,
            None => mask,
        };
        let mask = unless_over(mask, &self.suppressed);
        Some(match index < self.min_tokens {
            true => unless_over(mask, &self.ends),
            false => mask,
        })
    }
}

/// The mask without these tokens, if any other is left.
fn unless_over(mask: Mask, tokens: &Mask) -> Mask {
    mask.without(tokens).unwrap_or(mask)
}
