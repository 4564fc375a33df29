//! Handlers of the OpenAI API: `/v1/chat/completions`, `/v1/completions`, and [`models`].

pub mod models;

use super::error::Answered;
use super::generation::{self, Asked};
use worker_orcd_api::openai::Kind;
use worker_orcd_api::openai::request::reader;

pub async fn chat(asked: Asked) -> Answered {
    generation::answer(asked, reader(Kind::Chat)).await
}

pub async fn completion(asked: Asked) -> Answered {
    generation::answer(asked, reader(Kind::Completion)).await
}
