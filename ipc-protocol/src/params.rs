//! Parameters of a generation, from the reader of a request to the child's scheduler.
//!
//! The supervisor's record and its write-ahead log hold the same struct, and the child computes with it. A replay sends
//! it again, unchanged.

use crate::grammar::Grammar;
use crate::ids::TokenId;
use crate::thinking::ThinkingBudget;
use serde::{Deserialize, Serialize};
use std::ops::RangeInclusive;
use std::sync::Arc;

/// What is generated after a prompt. The default is greedy, without tokens.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct GenerationParams {
    pub sampling: Sampling,
    /// Maximum number of generated tokens, over all children. 0: only the prompt is computed.
    pub max_tokens: u32,
    /// Continue after an end-of-generation token (`ignore_eos`, for benchmarks).
    pub ignore_eos: bool,
    /// Report log probabilities of each generated token and of this many of the most likely ones, at most
    /// [`MAX_TOP_LOGPROBS`](crate::MAX_TOP_LOGPROBS).
    pub logprobs: Option<u8>,
    /// Grammar that constrains the answer: each token is sampled from those that it allows after the earlier ones.
    pub grammar: Option<Arc<Grammar>>,
    /// Biases that are added to the logits of these tokens, by ascending id, each id once. At most [`MAX_LOGIT_BIASES`],
    /// within [`Sampling::LOGIT_BIAS`].
    pub logit_bias: Vec<(TokenId, f32)>,
    /// Limit on reasoning tokens. `None`: no limit.
    pub thinking: Option<Arc<ThinkingBudget>>,
    /// Number of tokens before which none is sampled that ends the answer, and stop strings are ignored.
    pub min_tokens: u32,
    /// Tokens that end the answer, also with `ignore_eos`. By ascending id, each id once.
    pub stop_token_ids: Arc<[TokenId]>,
    /// The only tokens that are sampled. By ascending id, each id once. Empty: all tokens.
    pub allowed_token_ids: Arc<[TokenId]>,
    /// No drafts of this request's tokens, also where the child [speculates](crate::Speculation).
    pub without_drafts: bool,
    /// Text that the answer is expected to resemble, for drafts. Empty: none is known.
    pub prediction: Arc<[TokenId]>,
}

impl GenerationParams {
    /// True for one of the tokens of `stop_token_ids`.
    #[must_use]
    pub fn stops_at(&self, token: TokenId) -> bool {
        self.stop_token_ids.binary_search(&token).is_ok()
    }
}

/// Maximum number of tokens with a bias in one request.
pub const MAX_LOGIT_BIASES: usize = 1024;

/// Sampling parameters. They apply in the order biases, penalties, temperature, top-k, top-p, min-p, draw. The definitions
/// are in `gpu-child/sampler`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Sampling {
    /// 0: argmax, with the lowest token id among equal logits.
    pub temperature: f32,
    /// 0: disabled.
    pub top_k: u32,
    /// 1: disabled.
    pub top_p: f32,
    /// 0: disabled.
    pub min_p: f32,
    /// 1: disabled. Applies to prompt and generated tokens (CTRL, arXiv:1909.05858, section 4.1).
    pub repetition_penalty: f32,
    /// 0: disabled. Applies to generated tokens, as the OpenAI API defines it.
    pub frequency_penalty: f32,
    /// 0: disabled. Applies to generated tokens, as the OpenAI API defines it.
    pub presence_penalty: f32,
    /// Key of the counter-based random generator. The counter is the token's position.
    pub seed: u64,
}

/// Valid ranges for values of requests and model files. A repetition penalty of exactly 0 is invalid too, because logits
/// are divided by it.
impl Sampling {
    /// Argmax without penalties.
    pub const GREEDY: Self = Self {
        temperature: 0.0,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        repetition_penalty: 1.0,
        frequency_penalty: 0.0,
        presence_penalty: 0.0,
        seed: 0,
    };

    /// Parameters of a request without any, for a model file without any. The seed is meaningless: a request without
    /// one gets its own.
    pub const DEFAULT: Self = Self {
        temperature: 1.0,
        ..Self::GREEDY
    };

    pub const TEMPERATURE: RangeInclusive<f64> = 0.0..=2.0;
    pub const TOP_P: RangeInclusive<f64> = 0.0..=1.0;
    pub const MIN_P: RangeInclusive<f64> = 0.0..=1.0;
    pub const REPETITION_PENALTY: RangeInclusive<f64> = 0.0..=2.0;
    pub const FREQUENCY_PENALTY: RangeInclusive<f64> = -2.0..=2.0;
    pub const PRESENCE_PENALTY: RangeInclusive<f64> = -2.0..=2.0;
    pub const LOGIT_BIAS: RangeInclusive<f64> = -100.0..=100.0;
}

impl Default for Sampling {
    fn default() -> Self {
        Self::GREEDY
    }
}
