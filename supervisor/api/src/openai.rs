//! The OpenAI API: `/v1/chat/completions`, `/v1/completions`.
//!
//! Both kinds of completion are one [`GenerationRequest`](crate::request::GenerationRequest) with different fields
//! and response formats. An unsupported field is refused by name. One that requests the default behaviour (`logit_bias:
//! {}`, `tools: []`) is accepted, and so are labels, which change no answer.
//!
//! * [`request`]: reader of requests. [`stream`], [`whole`]: writers of answers. `parts`: splits text into tool calls
//!   and reasoning. [`logprobs`]: reads and writes log probabilities.

mod harmless;
pub mod logprobs;
mod parts;
pub mod request;
pub mod stream;
mod template_settings;
pub(crate) mod tool_choice;
mod tools;
pub mod whole;

use serde::{Deserialize, Serialize};
use worker_orcd_requests::StopReason;
use worker_orcd_text::tools::Parsing;

/// Endpoint of a completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    Chat,
    Completion,
}

impl Kind {
    fn id_prefix(self) -> &'static str {
        match self {
            Self::Chat => "chatcmpl-",
            Self::Completion => "cmpl-",
        }
    }

    fn object(self) -> &'static str {
        match self {
            Self::Chat => "chat.completion",
            Self::Completion => "text_completion",
        }
    }

    fn chunk_object(self) -> &'static str {
        match self {
            Self::Chat => "chat.completion.chunk",
            // The older endpoint uses the same object name for its chunks.
            Self::Completion => "text_completion",
        }
    }
}

/// Common first fields of all events of an answer.
#[derive(Debug, Clone)]
pub struct Header {
    pub kind: Kind,
    pub id: String,
    /// Unix seconds.
    pub created: u64,
    pub model: String,
    /// The model's fingerprint, for `system_fingerprint`.
    pub fingerprint: String,
    /// Parsers of the answer's text.
    pub parsing: Parsing,
    /// The grammar allows tool calls alone.
    pub must_call: bool,
}

fn finish_reason(reason: StopReason) -> &'static str {
    match reason {
        StopReason::MaxTokens => "length",
        StopReason::Eos | StopReason::StopSequence => "stop",
    }
}
