//! The OpenAI API: `/v1/chat/completions`, `/v1/completions`.
//!
//! Both kinds of completion are one [`GenerationRequest`](crate::request::GenerationRequest) with different fields
//! and response formats. An unsupported field is refused by name. One that requests the default behaviour (`logit_bias:
//! {}`, `tools: []`) is accepted, and so are labels, which change no answer.
//!
//! * [`request`]: reader of requests; `token_rules`: some of its fields. [`answer`]: objects of answers. [`stream`], [`whole`]: their writers. `parts`: splits text into tool calls
//!   and reasoning. [`logprobs`]: reads and writes log probabilities.

pub mod answer;
mod harmless;
pub mod logprobs;
mod parts;
mod prediction;
pub mod request;
pub mod stream;
mod template_settings;
mod token_rules;
pub(crate) mod tool_choice;
pub(crate) mod tools;
pub mod whole;

pub use crate::answer_format::OpenAiKind as Kind;
use worker_orcd_text::tools::Parsing;

impl Kind {
    fn id_prefix(self) -> &'static str {
        match self {
            Self::Chat => "chatcmpl-",
            Self::Completion => "cmpl-",
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
