//! `POST /tokenize`, `/detokenize`, `/apply-template`: conversions between texts, conversations and tokens.
//!
//! The fields have the names of llama-server (`content`, `add_special`, `with_pieces`) and of vLLM (`prompt`,
//! `messages`, `add_special_tokens`, `return_token_strs`). The answers have the fields of both.

use super::error::{Answered, ApiError};
use super::{App, held};
use axum::body::Body;
use axum::extract::State;
use axum::http::Request;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use serde::Serialize;
use std::sync::Arc;
use worker_orcd_api::mistakes::Constraint;
use worker_orcd_api::render::write_json;
use worker_orcd_api::request::Input;
use worker_orcd_api::texts::read::{TEMPLATE, TOKENIZE, TOKENS};
use worker_orcd_api::texts::written;
use worker_orcd_requests::error_code::ErrorCode;

pub async fn tokenize(State(app): State<Arc<App>>, request: Request<Body>) -> Answered {
    let (model, asked, room) = app.receive(request, TOKENIZE).await?;
    let field = asked.field;
    let tokens = match (asked.input, asked.adds_special) {
        (Input::Prompt(text), false) => app.tokens_alone(&model, text, field).await?,
        (input, _) => app.tokens_of(&model, input, field).await?,
    };
    let bytes = size_of_val(&*tokens);
    let answer = written::Tokenized {
        text: Arc::clone(&model.text),
        context: model.max_sequence_tokens,
        tokens,
        with_pieces: asked.with_pieces,
        with_texts: asked.with_texts,
    };
    app.answered(field, bytes, answer, room).await
}

pub async fn detokenize(State(app): State<Arc<App>>, request: Request<Body>) -> Answered {
    let (model, tokens, room) = app.receive(request, TOKENS).await?;
    let bytes = size_of_val(&*tokens);
    let answer = written::Detokenized {
        text: Arc::clone(&model.text),
        tokens,
    };
    app.answered("tokens", bytes, answer, room).await
}

pub async fn apply_template(State(app): State<Arc<App>>, request: Request<Body>) -> Answered {
    let (model, input, room) = app.receive(request, TEMPLATE).await?;
    let Input::Chat(chat) = input else {
        return Err(ApiError::unreadable().into());
    };
    let (prompt, more_room) = app.render_begun(&model, chat).await?;
    let (bytes, answer) = (prompt.len(), written::Templated { prompt });
    let rooms = (room, more_room);
    app.answered("messages", bytes, answer, rooms).await
}

impl App {
    /// Writes an answer that is computed from `bytes` bytes, once there is room for it. `rooms`: held until the answer
    /// is written.
    pub(super) async fn answered<R: Send + 'static>(
        &self,
        field: &str,
        bytes: usize,
        answer: impl Serialize + Send + 'static,
        rooms: R,
    ) -> Answered {
        let lost = || ApiError::of_code(ErrorCode::Internal, "the answer could not be written");
        let most = self.bodies.longest_answer();
        let count = move || (written::length(&answer, most), answer, rooms);
        let counted = self.pool.run(bytes, count).await;
        let (length, answer, rooms) = counted.ok_or_else(lost)?;
        let length = length.ok_or_else(|| {
            let rule = format!("would be answered with more than {most} bytes");
            ApiError::invalid_field(field, Constraint::Length, rule)
        })?;
        let room = self.bodies.room_for_answer(length)?;
        let write = move || {
            let mut out = Vec::with_capacity(length);
            write_json(&mut out, &answer);
            drop((answer, rooms));
            held::body(out, room)
        };
        let body = self.pool.run(length, write).await.ok_or_else(lost)?;
        Ok(([(CONTENT_TYPE, "application/json")], body).into_response())
    }
}
