//! What a model, a device and an operator allow.

use crate::pooling::RankHead;
use std::collections::HashSet;
use std::sync::Arc;
use worker_orcd_ipc::{TokenId, Vocabulary};

#[derive(Debug, Clone)]
pub struct Limits {
    /// Sequences that may be decoded in one step.
    pub max_running: u32,
    /// Prompt plus completion of one request.
    pub max_sequence_tokens: u32,
    /// Tokens that one batch may hold.
    pub max_batch_tokens: u32,
    pub vocab_size: u32,
    /// Somebody looks at the logits that each token is drawn from.
    pub traces_logits: bool,
    pub end_of_generation: HashSet<TokenId>,
    /// The texts of tokens; none where they contradict themselves, of which the supervisor makes no model.
    pub words: Arc<Vocabulary>,
    /// Of a reranker.
    pub rank_head: Option<Arc<RankHead>>,
}

impl Limits {
    pub(super) fn ends_generation(&self, token: TokenId) -> bool {
        self.end_of_generation.contains(&token)
    }
}
