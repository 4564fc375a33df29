//! OpenAI's Responses API without stored responses.
//!
//! [`request`] converts `input` and `tools` to the messages and tools of chat, and the text of the answer becomes items
//! (`output`), whole or streamed. Answers are not stored, so a reference to an earlier one is refused by name.
//!
//! ```text
//! request (input → items, tools, settings) → generation … pieces → output → events, or the response that the last of them has
//!                                                                    └→ answer: items and responses as JSON
//! ```

pub mod answer;
pub mod events;
mod input;
mod items;
mod output;
pub mod request;
mod settings;
mod tools;

const ID_PREFIX: &str = "resp_";
