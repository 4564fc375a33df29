//! `POST /v1/embeddings`: embeddings of texts, as in the OpenAI API.
//!
//! [`pooled`](super::pooled): computation in the engine.

use super::App;
use super::body::Room;
use super::client;
use super::correlation::CorrelationId;
use super::error::{Answered, ApiError};
use super::generation::Asked;
use super::pooled::{Batch, Prompts};
use axum::extract::{Extension, State};
use std::sync::Arc;
use uuid::Uuid;
use worker_orcd_api::embeddings::read::{EMBEDDINGS, INPUT};
use worker_orcd_api::embeddings::written;
use worker_orcd_api::request::Input;
use worker_orcd_engine::LoadedModel;
use worker_orcd_ipc::{ClientId, Pooling};

/// Pooling type of rerankers in llama.cpp. Their single output is no embedding.
pub(super) const RANK: u32 = 4;

pub async fn embeddings((State(app), Extension(correlation), request): Asked) -> Answered {
    let client = client::of_request(request.extensions());
    let (model, asked, room) = app.receive(request, EMBEDDINGS).await?;
    let (vectors, tokens) = vectors(&app, correlation, client, &model, asked.inputs, room).await?;
    let bytes = vectors.iter().map(|it| size_of_val(&**it)).sum();
    let answer = written::answer(
        vectors,
        asked.format,
        asked.dimensions,
        app.model_id.clone(),
        tokens,
    );
    app.answered(INPUT, bytes, answer, ()).await
}

/// Vectors of inputs, of any norm, and the number of all tokens. `room`: of the request's body.
///
/// # Errors
/// If the model gives no embeddings, if an input does not fit, or if one fails.
pub(super) async fn vectors(
    app: &Arc<App>,
    correlation: CorrelationId,
    client: ClientId,
    model: &Arc<LoadedModel>,
    inputs: Vec<Input>,
    room: Room,
) -> Result<(Vec<Vec<f32>>, u64), ApiError> {
    let pooling = pooling(app.pooling, model.facts.pooling_type)?;
    let mut prompts = Prompts::default();
    for input in inputs {
        let tokens = app.tokens_of(model, input, INPUT).await?;
        prompts.add(app, model, INPUT, tokens)?;
    }
    let _held = prompts.room(app)?;
    drop(room);
    let batch = Batch {
        app: Arc::clone(app),
        id: format!("embd-{}", Uuid::new_v4().simple()),
        correlation,
        client,
        pooling,
    };
    let tokens = prompts.tokens;
    let vectors = batch.run(prompts, model.facts.n_embd as usize).await?;
    Ok((vectors, tokens))
}

/// Pooling of this model: the operator's, else the file's.
///
/// # Errors
/// If neither is set, or the model does not support embeddings.
pub fn pooling(chosen: Option<Pooling>, of_file: Option<u32>) -> Result<Pooling, ApiError> {
    if let Some(pooling) = chosen.or_else(|| Pooling::of_file(of_file?)) {
        return Ok(pooling);
    }
    let why = match of_file {
        Some(RANK) => "is a reranker (pooling type rank), which gives scores and no embeddings",
        Some(0) | None => {
            "gives no embeddings: its file has no pooling type. The worker's option --pooling (last, mean or cls) \
             says one"
        }
        Some(_) => "gives no embeddings: its file has a pooling type that is not known here",
    };
    Err(ApiError::no_such_model(format!("this model {why}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::error::Dialect;

    #[test]
    fn the_operator_goes_before_the_file_and_the_file_may_say_nothing() {
        let of = |chosen, of_file| pooling(chosen, of_file).ok();
        assert_eq!(of(None, Some(1)), Some(Pooling::Mean));
        assert_eq!(of(None, Some(2)), Some(Pooling::Cls));
        assert_eq!(of(None, Some(3)), Some(Pooling::Last));
        assert_eq!(of(Some(Pooling::Last), Some(1)), Some(Pooling::Last));
        assert_eq!(of(Some(Pooling::Cls), None), Some(Pooling::Cls));
        let why = |of_file| {
            let error = pooling(None, of_file).unwrap_err();
            error.body(Dialect::OpenAi).to_string()
        };
        for nothing in [None, Some(0)] {
            assert!(why(nothing).contains("--pooling"), "{}", why(nothing));
        }
        assert!(why(Some(4)).contains("rank"));
        assert!(why(Some(5)).contains("not known"));
    }
}
