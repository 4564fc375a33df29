//! `POST /tokenize`, `/detokenize`, `/apply-template`: what a model is given, and what its tokens say.
//!
//! Fields have the names of llama-server (`content`, `add_special`, `with_pieces`) and of vLLM (`prompt`, `messages`,
//! `add_special_tokens`, `return_token_strs`), and an answer has what clients of either read.

mod read;
mod written;

pub use read::{
    Detokenize, TEMPLATE_NAMES, TOKENIZE_NAMES, TOKENS_NAMES, Tokenize, read_template,
    read_tokenize, read_tokens,
};

use super::App;
use super::error::{ApiError, Dialect};
use super::fields::{Fields, Names};
use super::generation::Input;
use super::reading::ModelTerms;
use crate::config::RequestLimits;
use crate::engine::LoadedModel;
use crate::error_code::ErrorCode;
use crate::http::mistakes::Constraint;
use crate::interpreter::MAX_RENDERED_BYTES;
use axum::body::Body;
use axum::extract::State;
use axum::http::Request;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use serde_json::json;
use std::sync::Arc;
use worker_orcd_ipc::TokenId;

/// Bytes of an answer for a byte of a text, at most: an id of six digits, its comma, and a text in quotes whose
/// every byte is escaped.
const ANSWER_BYTES: usize = 16;

pub async fn tokenize(State(app): State<Arc<App>>, request: Request<Body>) -> Response {
    told(try_tokenize(&app, request).await)
}

pub async fn detokenize(State(app): State<Arc<App>>, request: Request<Body>) -> Response {
    told(try_detokenize(&app, request).await)
}

pub async fn apply_template(State(app): State<Arc<App>>, request: Request<Body>) -> Response {
    told(try_apply_template(&app, request).await)
}

fn told(outcome: Result<Response, ApiError>) -> Response {
    outcome.unwrap_or_else(|error| error.respond(Dialect::Native))
}

async fn try_tokenize(app: &Arc<App>, request: Request<Body>) -> Result<Response, ApiError> {
    let (model, asked) = app
        .read_text(request, TOKENIZE_NAMES, read_tokenize)
        .await?;
    let tokens = match (asked.input, asked.adds_special) {
        (Input::Prompt(text), false) => app.tokens_alone(&model, text).await?,
        (input, _) => app.tokens_of(&model, input).await?,
    };
    let (with_pieces, with_texts) = (asked.with_pieces, asked.with_texts);
    let write = move |model: &LoadedModel, tokens: &[TokenId]| {
        written::tokens(model, tokens, with_pieces, with_texts)
    };
    let body = app.written(&model, tokens, write).await?;
    Ok(([(CONTENT_TYPE, "application/json")], body).into_response())
}

async fn try_detokenize(app: &Arc<App>, request: Request<Body>) -> Result<Response, ApiError> {
    let (model, asked) = app.read_text(request, TOKENS_NAMES, read_tokens).await?;
    let write = |model: &LoadedModel, tokens: &[TokenId]| model.text.write(tokens);
    let text = app.written(&model, asked.0, write).await?;
    Ok(axum::Json(json!({"content": text, "prompt": text})).into_response())
}

async fn try_apply_template(app: &Arc<App>, request: Request<Body>) -> Result<Response, ApiError> {
    let (model, input) = app
        .read_text(request, TEMPLATE_NAMES, read_template)
        .await?;
    let Input::Messages(conversation, settings) = input else {
        return Err(ApiError::unreadable());
    };
    let (prompt, _room) = app.render(&model, conversation, settings).await?;
    Ok(axum::Json(json!({"prompt": prompt})).into_response())
}

/// Reads the rest of a request behind the model's name.
type Read<T> = fn(Fields<'_>, &RequestLimits, &ModelTerms) -> Result<T, ApiError>;

impl App {
    async fn read_text<T: Send + 'static>(
        self: &Arc<Self>,
        request: Request<Body>,
        names: Names,
        read: Read<T>,
    ) -> Result<(Arc<LoadedModel>, T), ApiError> {
        let loaded = self.model();
        let app = Arc::clone(self);
        let known = loaded.as_ref().ok().map(Arc::clone);
        let read = move |fields: Fields<'_>| app.read_named(fields, known.as_deref(), read);
        let (asked, _room) = self.bodies.read(request, names, read).await?;
        Ok((loaded?, asked))
    }

    /// What is made of tokens, once there is room for it.
    async fn written<T: Send + 'static>(
        &self,
        model: &Arc<LoadedModel>,
        tokens: Vec<TokenId>,
        write: impl FnOnce(&LoadedModel, &[TokenId]) -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        let lost = || ApiError::of_code(ErrorCode::Internal, "the tokens could not be written");
        let (counted, given) = (Arc::clone(model), tokens.len());
        let count = move || {
            let bytes = tokens
                .iter()
                .map(|id| counted.text.bytes_written(*id).len());
            (bytes.sum::<usize>(), tokens)
        };
        let counted = self.lanes.run(size_of::<TokenId>() * given, count).await;
        let (bytes, tokens) = counted.ok_or_else(lost)?;
        if bytes > MAX_RENDERED_BYTES {
            let rule = format!("stand for {bytes} bytes of text; {MAX_RENDERED_BYTES} is the most");
            return Err(ApiError::invalid_field("tokens", Constraint::Length, rule));
        }
        // What needs more than there is gets all of it.
        let needed = ANSWER_BYTES * (bytes + given);
        let _room = self
            .bodies
            .room_for_prompt(needed.min(MAX_RENDERED_BYTES))?;
        let model = Arc::clone(model);
        let written = self
            .lanes
            .run(bytes + given, move || write(&model, &tokens))
            .await;
        written.ok_or_else(lost)
    }

    /// # Errors
    /// Everything that is wrong with the request.
    pub fn read_named<T>(
        &self,
        mut fields: Fields<'_>,
        loaded: Option<&LoadedModel>,
        read: Read<T>,
    ) -> Result<T, ApiError> {
        self.check_model_name(&mut fields, loaded)?;
        read(fields, &self.limits, &ModelTerms::of(loaded))
    }
}
