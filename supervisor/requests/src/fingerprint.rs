//! Fingerprint of a request. Two requests have equal fingerprints if a child computes the same for both: the prompt's
//! tokens and the parameters of the generation.
//!
//! The seed is excluded. A client that sends no seed gets another one each time, so each retry of a query of death
//! would have a new fingerprint. The job id is excluded for the same reason. Stop strings are excluded because they are
//! not sent to a child, and log probabilities and `ignore_eos` because no token before the end depends on them.

use crate::record::NewRequest;
use sha2::{Digest as _, Sha256};
use std::fmt;
use worker_orcd_ipc::{GenerationParams, encode};

/// SHA-256 digest of a request. Unlike the prompt, it may appear in logs and in `/health`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Fingerprint([u8; 32]);

impl Fingerprint {
    #[must_use]
    pub fn of(request: &NewRequest) -> Self {
        let mut hash = Sha256::new();
        for token in &request.prompt {
            hash.update(token.0.to_le_bytes());
        }
        let mut params = GenerationParams::clone(&request.params);
        params.sampling.seed = 0;
        params.ignore_eos = false;
        params.logprobs = None;
        // Parameters that are too large to encode cannot be sent to a child, so the request cannot kill one. Their
        // digest has a fixed length, so no prompt collides with a prompt of other parameters.
        hash.update(Sha256::digest(encode(&params).unwrap_or_default()));
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
    use crate::testing::{params, request};
    use std::sync::Arc;
    use worker_orcd_ipc::{Grammar, ThinkingBudget, TokenId};

    fn with(change: impl FnOnce(&mut NewRequest, &mut GenerationParams)) -> Fingerprint {
        let mut request = request("job");
        request.params = params(|params| change(&mut request, params));
        Fingerprint::of(&request)
    }

    fn budget(tokens: u32) -> Arc<ThinkingBudget> {
        Arc::new(ThinkingBudget {
            tokens,
            open: None,
            close: "</think>".to_owned(),
            closing: vec![TokenId(0)],
        })
    }

    #[test]
    fn a_retry_is_recognised_whatever_its_name_and_seed() {
        let first = with(|_, _| {});
        assert_eq!(
            first,
            with(|request, _| request.job_id = "again".to_owned())
        );
        assert_eq!(first, with(|_, params| params.sampling.seed = 7));
    }

    #[test]
    fn what_a_child_would_compute_differently_is_another_request() {
        let changes: [fn(&mut NewRequest, &mut GenerationParams); 21] = [
            |request, _| request.prompt.push(TokenId(0)),
            |request, _| request.prompt.reverse(),
            |_, params| params.max_tokens += 1,
            |_, params| params.sampling.temperature = 1.0,
            |_, params| params.sampling.top_k = 1,
            |_, params| params.sampling.top_p = 0.5,
            |_, params| params.sampling.min_p = 0.5,
            |_, params| params.sampling.repetition_penalty = 1.5,
            |_, params| params.sampling.frequency_penalty = 0.5,
            |_, params| params.grammar = Some(Arc::new(Grammar::Regex("a".to_owned()))),
            |_, params| params.grammar = Some(Arc::new(Grammar::Lark("a".to_owned()))),
            |_, params| params.grammar = Some(Arc::new(Grammar::Gbnf("a".to_owned()))),
            |_, params| params.logit_bias.push((TokenId(1), 0.5)),
            |_, params| params.logit_bias.push((TokenId(1), 1.0)),
            |_, params| params.thinking = Some(budget(1)),
            |_, params| params.thinking = Some(budget(2)),
            |_, params| params.min_tokens = 1,
            |_, params| params.stop_token_ids = [TokenId(1)].into(),
            |_, params| params.allowed_token_ids = [TokenId(1)].into(),
            |_, params| params.without_drafts = true,
            |_, params| params.prediction = [TokenId(1)].into(),
        ];
        let mut prints: Vec<_> = changes.into_iter().map(with).collect();
        prints.push(with(|_, _| {}));
        let distinct: std::collections::BTreeSet<_> = prints.iter().collect();
        assert_eq!(distinct.len(), prints.len());
    }

    #[test]
    fn it_is_shown_as_a_sha256() {
        let text = with(|_, _| {}).to_string();
        assert_eq!(text.len(), 64);
        assert!(text.bytes().all(|byte| byte.is_ascii_hexdigit()));
    }
}
