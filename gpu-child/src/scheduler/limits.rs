//! Limits of the scheduler, from the model, the device and the operator.

use crate::pooling::RankHead;
use std::collections::HashSet;
use std::sync::Arc;
use worker_orcd_ipc::{TokenId, Vocabulary};

#[derive(Debug, Clone)]
pub struct Limits {
    /// Maximum decoding sequences in one step.
    pub max_running: u32,
    /// Maximum tokens of one request, prompt plus completion.
    pub max_sequence_tokens: u32,
    /// Maximum tokens of one batch.
    pub max_batch_tokens: u32,
    pub vocab_size: u32,
    /// Sequences have drafts ([`drafts`](super::drafts)).
    pub speculates: bool,
    /// A trace records the logits of each sampled token.
    pub traces_logits: bool,
    pub end_of_generation: HashSet<TokenId>,
    /// Tokens that are never sampled, in any request.
    pub suppressed: Vec<TokenId>,
    /// Texts of the tokens. Empty for an inconsistent vocabulary, which the supervisor refuses to serve.
    pub words: Arc<Vocabulary>,
    /// Classification head of a reranker.
    pub rank_head: Option<Arc<RankHead>>,
}

impl Limits {
    pub(super) fn ends_generation(&self, token: TokenId) -> bool {
        self.end_of_generation.contains(&token)
    }
}
