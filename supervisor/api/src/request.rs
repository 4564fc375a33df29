//! Request for text, common to all APIs.

use crate::error::ApiError;
use crate::fields::Fields;
use crate::limits::RequestLimits;
use crate::sampling::ModelTerms;
use crate::structure::Asked;
use crate::thinking_budget::Budget;
use worker_orcd_ipc::{GenerationParams, TokenId};
use worker_orcd_requests::OnFault;
use worker_orcd_text::Conversation;
use worker_orcd_text::template::TemplateSetting;

#[derive(Debug, Clone, PartialEq)]
pub struct GenerationRequest {
    pub job_id: String,
    pub input: Input,
    /// Parameters without the grammar and the reasoning budget, which follow from `structure` and `thinking` when the
    /// model is known.
    pub params: GenerationParams,
    pub stop: Vec<String>,
    /// Keep at most this many tokens of each prompt, the last ones.
    pub truncate: Option<u32>,
    /// The answer begins with the prompt.
    pub echo: bool,
    /// Reasoning budget.
    pub thinking: Option<Budget>,
    /// Grammar of the answer.
    pub structure: Option<Asked>,
    pub on_fault: Option<OnFault>,
}

impl GenerationRequest {
    /// Request for text without further fields.
    #[must_use]
    pub fn new(job_id: String, input: Input, params: GenerationParams) -> Self {
        Self {
            job_id,
            input,
            params,
            stop: Vec::new(),
            truncate: None,
            echo: false,
            thinking: None,
            structure: None,
            on_fault: None,
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub enum Input {
    Prompt(String),
    /// Messages and tools, and template variables from the client.
    Messages(Conversation, Vec<(String, TemplateSetting)>),
    /// The same, and the beginning of the answer.
    Begun(Conversation, Vec<(String, TemplateSetting)>, String),
    /// Token ids, which `/v1/completions` accepts.
    Tokens(Vec<TokenId>),
}

impl Input {
    /// Whether the prompt has tools.
    #[must_use]
    pub fn has_tools(&self) -> bool {
        match self {
            Self::Messages(conversation, _) | Self::Begun(conversation, ..) => {
                conversation.tools.is_some()
            }
            Self::Prompt(_) | Self::Tokens(_) => false,
        }
    }

    /// Text of a text prompt.
    #[must_use]
    pub fn text(&self) -> Option<&str> {
        match self {
            Self::Prompt(text) => Some(text),
            Self::Messages(..) | Self::Begun(..) | Self::Tokens(_) => None,
        }
    }

    /// Name of the prompt's field.
    #[must_use]
    pub fn field(&self) -> &'static str {
        match self {
            Self::Prompt(_) | Self::Tokens(_) => "prompt",
            Self::Messages(..) | Self::Begun(..) => "messages",
        }
    }
}

/// Reader of a request's fields after the model's name.
pub trait Read<T>: Fn(Fields<'_>, &RequestLimits, &ModelTerms) -> Result<T, ApiError> {}

impl<T, F> Read<T> for F where F: Fn(Fields<'_>, &RequestLimits, &ModelTerms) -> Result<T, ApiError> {}
