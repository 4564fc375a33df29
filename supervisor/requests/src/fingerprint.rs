//! Fingerprint of a request. Two requests have equal fingerprints if a child computes the same for both: prompt tokens,
//! sampling parameters, logit biases, token limit, grammar, and thinking budget.
//!
//! The seed is excluded. A client that sends no seed gets another one each time, so each retry of a query of death
//! would have a new fingerprint. The job id is excluded for the same reason. Stop strings are excluded because they are
//! not sent to a child.

use crate::record::NewRequest;
use sha2::{Digest as _, Sha256};
use std::fmt;
use worker_orcd_ipc::{Sampling, encode};

/// SHA-256 digest of a request. Unlike the prompt, it may appear in logs and in `/health`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Fingerprint([u8; 32]);

impl Fingerprint {
    #[must_use]
    pub fn of(request: &NewRequest) -> Self {
        // The exhaustive pattern makes a new parameter a compile error here, so its place in the fingerprint is
        // decided.
        let Sampling {
            temperature,
            top_k,
            top_p,
            min_p,
            repetition_penalty,
            frequency_penalty,
            presence_penalty,
            seed: _,
        } = request.sampling;
        let mut hash = Sha256::new();
        for token in &request.prompt {
            hash.update(token.0.to_le_bytes());
        }
        for (token, bias) in &request.logit_bias {
            hash.update(token.0.to_le_bytes());
            hash.update(bias.to_bits().to_le_bytes());
        }
        // These fields have a fixed length and include the number of biases, so no prompt collides with a prompt of
        // other parameters.
        for bits in [
            temperature.to_bits(),
            top_k,
            top_p.to_bits(),
            min_p.to_bits(),
            repetition_penalty.to_bits(),
            frequency_penalty.to_bits(),
            presence_penalty.to_bits(),
            request.max_tokens,
            request.logit_bias.len() as u32,
        ] {
            hash.update(bits.to_le_bytes());
        }
        // A grammar that is too large to encode cannot be sent to a child, so the request cannot kill one.
        let held = encode(&(&request.grammar, &request.thinking)).unwrap_or_default();
        hash.update(Sha256::digest(held));
        Self(hash.finalize().into())
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::request;
    use worker_orcd_ipc::{Grammar, ThinkingBudget, TokenId};

    fn with(change: impl FnOnce(&mut NewRequest)) -> Fingerprint {
        let mut request = request("job");
        change(&mut request);
        Fingerprint::of(&request)
    }

    fn budget(tokens: u32) -> Box<ThinkingBudget> {
        Box::new(ThinkingBudget {
            tokens,
            open: None,
            close: "</think>".to_owned(),
            closing: vec![TokenId(0)],
        })
    }

    #[test]
    fn a_retry_is_recognised_whatever_its_name_and_seed() {
        let first = with(|_| {});
        assert_eq!(first, with(|request| request.job_id = "again".to_owned()));
        assert_eq!(first, with(|request| request.sampling.seed = 7));
    }

    #[test]
    fn what_a_child_would_compute_differently_is_another_request() {
        let changes: [fn(&mut NewRequest); 16] = [
            |request| request.prompt.push(TokenId(0)),
            |request| request.prompt.reverse(),
            |request| request.max_tokens += 1,
            |request| request.sampling.temperature = 1.0,
            |request| request.sampling.top_k = 1,
            |request| request.sampling.top_p = 0.5,
            |request| request.sampling.min_p = 0.5,
            |request| request.sampling.repetition_penalty = 1.5,
            |request| request.sampling.frequency_penalty = 0.5,
            |request| request.grammar = Some(Box::new(Grammar::Regex("a".to_owned()))),
            |request| request.grammar = Some(Box::new(Grammar::Lark("a".to_owned()))),
            |request| request.grammar = Some(Box::new(Grammar::Gbnf("a".to_owned()))),
            |request| request.logit_bias.push((TokenId(1), 0.5)),
            |request| request.logit_bias.push((TokenId(1), 1.0)),
            |request| request.thinking = Some(budget(1)),
            |request| request.thinking = Some(budget(2)),
        ];
        let mut prints: Vec<_> = changes.into_iter().map(with).collect();
        prints.push(with(|_| {}));
        let distinct: std::collections::BTreeSet<_> = prints.iter().collect();
        assert_eq!(distinct.len(), prints.len());
    }

    #[test]
    fn it_is_shown_as_a_sha256() {
        let text = with(|_| {}).to_string();
        assert_eq!(text.len(), 64);
        assert!(text.bytes().all(|byte| byte.is_ascii_hexdigit()));
    }
}
