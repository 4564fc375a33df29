//! Violations of the protocol in reports about requests. A violation ends the child.

use thiserror::Error;
use worker_orcd_ipc::{RequestId, TokenId};

#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Violation {
    #[error("{what} of request {request}, which is not with it")]
    UnknownRequest {
        what: &'static str,
        request: RequestId,
    },
    #[error("token {said} of request {request}, where {expected} comes next")]
    Index {
        request: RequestId,
        said: u32,
        expected: u32,
    },
    #[error("token id {token} of a vocabulary of {vocabulary}")]
    Vocabulary { token: TokenId, vocabulary: usize },
    #[error("more than the {max_tokens} tokens that request {request} asked for")]
    TooMany { request: RequestId, max_tokens: u32 },
    #[error("request {0} was reported as cancelled without a cancellation")]
    NotCancelled(RequestId),
    #[error("log probabilities of request {0} that are not as asked for")]
    Logprobs(RequestId),
    #[error("drafts of request {0} that do not fit its tokens")]
    Drafts(RequestId),
    #[error("more cached tokens of request {0} than its prompt has")]
    CachedTokens(RequestId),
    #[error("an answer to request {0} that it did not ask for")]
    Answer(RequestId),
    #[error("{0} cancellations without an answer")]
    Unanswered(usize),
    #[error("a step before the model was ready")]
    NotReady,
}
