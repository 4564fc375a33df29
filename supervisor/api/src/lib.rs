//! APIs of the worker without HTTP: bytes to requests, events to bytes, and the schemas of both.
//!
//! ```text
//! body ─→ json ─→ fields ─→ a reader of a route ─→ request (or mistakes → error)
//!                   └─→ description ─→ schema (OpenAPI)
//! pieces of text ─→ timeline ─→ events (render), or the whole answer
//! types of answers ─→ answer ─→ schema (OpenAPI)
//! ```
//!
//! * [`body`]: a complete body. [`fields`]: an object in it. Each field is read once, and all mistakes are collected
//!   ([`mistakes`]). [`json`]: values that are read in place. [`description`], [`schema`]: the same fields as JSON Schema.
//!   [`fates`]: the support of a field by an endpoint.
//! * [`openai`], [`anthropic`], [`responses`], [`ollama`], [`execute`], [`embeddings`], [`rerank`], [`texts`]: readers and
//!   writers of each API. [`request`]: what all of them ask for. [`answer_format`]: the format of an answer, as the journal keeps it.
//! * Common fields: `no_effect`, [`sampling`], `logit_bias`, `messages`, `tools`, [`structure`], `effort`, [`thinking_budget`],
//!   [`choices`], `token_ids`. [`limits`]: the operator's limits.
//! * Answers: `timeline` splits text into items; [`render`] is the trait of streamed formats. [`error`]: errors of all
//!   APIs. [`answer`]: JSON Schema of all of them.
//!
//! Deliberately absent: connections, headers, waiting (no tokio), the engine and its children, settings, and the
//! interpretation of templates and grammars.

#![forbid(unsafe_code)]
#![warn(unreachable_pub)]

pub mod answer;
pub mod answer_format;
pub mod anthropic;
pub mod body;
mod call_ids;
pub mod choices;
pub mod description;
mod effort;
pub mod embeddings;
pub mod error;
pub mod execute;
pub mod fates;
pub mod fields;
pub mod json;
pub mod limits;
mod logit_bias;
mod messages;
pub mod mistakes;
mod no_effect;
pub mod ollama;
pub mod openai;
pub mod render;
pub mod request;
pub mod rerank;
pub mod responses;
pub mod sampling;
pub mod schema;
pub mod structure;
pub mod texts;
pub mod thinking_budget;
mod timeline;
mod token_ids;
mod tools;
