//! Request for text, common to all APIs.

use crate::error::ApiError;
use crate::fields::{Fields, Names};
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
    /// Parameters without the grammar, the reasoning budget and the prediction's tokens, which follow from `structure`,
    /// `thinking` and `prediction` when the model is known.
    pub params: GenerationParams,
    pub stop: Vec<String>,
    /// Keep at most this many tokens of each prompt, the last ones.
    pub truncate: Option<u32>,
    /// Text that the answer is expected to resemble.
    pub prediction: Option<String>,
    /// The answer begins with the prompt.
    pub echo: bool,
    /// Log probabilities of the prompt apart from an echo: the number of most likely tokens at each position.
    pub prompt_logprobs: Option<u8>,
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
            prediction: None,
            echo: false,
            prompt_logprobs: None,
            thinking: None,
            structure: None,
            on_fault: None,
        }
    }

    /// Whether the answer has any log probabilities.
    #[must_use]
    pub fn has_logprobs(&self) -> bool {
        self.params.logprobs.or(self.prompt_logprobs).is_some()
    }
}

#[derive(Debug, Clone, PartialEq)]
pub enum Input {
    Prompt(String),
    Chat(Chat),
    /// Token ids, which `/v1/completions` accepts.
    Tokens(Vec<TokenId>),
}

/// Conversation that a chat template formats.
#[derive(Debug, Clone, PartialEq)]
pub struct Chat {
    /// Name of the field in the request.
    pub field: &'static str,
    /// Messages and tools.
    pub conversation: Conversation,
    /// Template variables from the client.
    pub settings: Vec<(String, TemplateSetting)>,
    /// Beginning of the answer, if the model continues one.
    pub beginning: Option<String>,
}

impl Input {
    fn chat(&self) -> Option<&Chat> {
        match self {
            Self::Chat(chat) => Some(chat),
            Self::Prompt(_) | Self::Tokens(_) => None,
        }
    }

    /// Tools of the prompt, as the list for the chat template.
    #[must_use]
    pub fn tools(&self) -> Option<&str> {
        self.chat()?.conversation.tools.as_deref()
    }

    /// Whether the model continues an answer.
    pub(crate) fn is_begun(&self) -> bool {
        self.chat().is_some_and(|it| it.beginning.is_some())
    }

    /// Text of a text prompt.
    #[must_use]
    pub fn text(&self) -> Option<&str> {
        match self {
            Self::Prompt(text) => Some(text),
            Self::Chat(_) | Self::Tokens(_) => None,
        }
    }

    /// Name of the prompt's field.
    #[must_use]
    pub fn field(&self) -> &'static str {
        match self {
            Self::Prompt(_) | Self::Tokens(_) => "prompt",
            Self::Chat(chat) => chat.field,
        }
    }
}

/// Reader of a body.
#[derive(Debug)]
pub struct Reader<T> {
    pub names: Names,
    /// Reads the fields after the model's name.
    pub read: Read<T>,
}

pub type Read<T> = fn(Fields<'_>, &RequestLimits, &ModelTerms) -> Result<T, ApiError>;

impl<T> Reader<T> {
    #[must_use]
    pub const fn new(names: Names, read: Read<T>) -> Self {
        Self { names, read }
    }
}
