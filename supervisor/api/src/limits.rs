//! Limits of one request that the operator sets.

use std::time::Duration;
use worker_orcd_requests::OnFault;

#[derive(Debug, Clone)]
pub struct RequestLimits {
    /// Tokens; `None` means the model's context.
    pub max_tokens_in: Option<u32>,
    /// Tokens; `None` means 2048 for `/execute` and the model's context elsewhere.
    pub max_tokens_out: Option<u32>,
    /// Characters; `None` means 32768 for `/execute` and only the limit of the context elsewhere.
    pub max_prompt_chars: Option<usize>,
    /// Default of a request's reasoning budget, in tokens. `None`: unlimited.
    pub reasoning_budget: Option<u32>,
    pub inference_timeout: Option<Duration>,
    pub on_fault: OnFault,
}

impl RequestLimits {
    /// No limit but those of the model and of `/execute`.
    pub const NONE: Self = Self {
        max_tokens_in: None,
        max_tokens_out: None,
        max_prompt_chars: None,
        reasoning_budget: None,
        inference_timeout: None,
        on_fault: OnFault::Resume,
    };
}
