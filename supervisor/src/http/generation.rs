//! The single entry point of requests for text.

#![expect(clippy::disallowed_methods, reason = "an answer is stamped")]

mod echo;
mod prompt;

use super::App;
use super::body::Room;
use super::client;
use super::connection::Attachment;
use super::correlation::CorrelationId;
use super::error::{Answered, ApiError};
use super::handover::Held;
use super::job::Job;
use super::respond;
use axum::body::Body;
use axum::extract::{Extension, State};
use axum::http::Request;
use prompt::Encoded;
use std::iter::once;
use std::sync::Arc;
use std::time::SystemTime;
use worker_orcd_api::answer_format::{AnswerFormat, AnswerRequest, RequestedFormat};
use worker_orcd_api::choices::Place;
use worker_orcd_api::request::Reader;
use worker_orcd_api::thinking_budget::Budget;
use worker_orcd_engine::LoadedModel;
use worker_orcd_ipc::{ClientId, GenerationParams};
use worker_orcd_requests::error_code::ErrorCode;
use worker_orcd_requests::{NewRequest, Position, Refusal, RequestStream};

/// Arguments of a handler.
pub type Asked = (State<Arc<App>>, Extension<CorrelationId>, Request<Body>);

/// Answers a request of any API.
pub(super) async fn answer(
    (State(app), Extension(correlation), request): Asked,
    reader: Reader<AnswerRequest>,
) -> Answered {
    let asker = Asker::of(&request, correlation);
    let (model, request, room) = app.receive(request, reader).await?;
    let (format, accepted, ids_room) = app.start(&model, request, asker).await?;
    drop(room);
    Ok(respond::respond(format, &app, accepted, ids_room, false).await?)
}

/// Client of a request, and its connection.
#[derive(Debug)]
struct Asker {
    client: ClientId,
    correlation: CorrelationId,
    /// `None` in tests.
    connection: Option<Attachment>,
}

impl Asker {
    fn of(request: &Request<Body>, correlation: CorrelationId) -> Self {
        Self {
            client: client::of_request(request.extensions()),
            correlation,
            connection: request.extensions().get().cloned(),
        }
    }
}

/// Admitted request.
#[derive(Debug)]
pub struct Accepted {
    pub stream: RequestStream,
    pub job: Job,
    pub tokens_in: u32,
}

impl App {
    /// The model.
    ///
    /// # Errors
    /// 503 before the first model is loaded.
    pub fn model(&self) -> Result<Arc<LoadedModel>, ApiError> {
        self.engine.model().ok_or_else(|| {
            let snapshot = self.engine.snapshot();
            let message = format!("no model is loaded: {}", snapshot.reason);
            ApiError::of_code(ErrorCode::WorkerUnhealthy, message)
        })
    }

    /// Tokenizes and submits a request for each choice, all or none. The room is for ids of the prompts in the answer.
    ///
    /// # Errors
    /// If a text does not fit, there is no room, or the engine refuses.
    async fn start(
        self: &Arc<Self>,
        model: &Arc<LoadedModel>,
        request: AnswerRequest,
        asker: Asker,
    ) -> Result<(AnswerFormat, Vec<Accepted>, Room), ApiError> {
        let AnswerRequest {
            generation: request,
            more,
            mut requested,
        } = request;
        let (created, layout) = (SystemTime::now(), more.layout());
        layout.check(self.engine.most_together(), request.has_logprobs())?;
        let mut prompts = Vec::new();
        for input in once(request.input).chain(more.prompts) {
            let prepared = self.prepare_echoed(model, input, request.echo, request.truncate);
            let prompt = prepared.await?;
            if prompt.opens_thinking {
                requested.parsing.open_thinking();
            }
            prompts.push(prompt);
        }
        let of_drafts = request
            .prediction
            .filter(|_| !request.params.without_drafts);
        let prediction = self.predict(model, of_drafts).await;
        let parsing = requested.parsing.clone();
        let grammar = self.hold(model, request.structure, &parsing).await?;
        let format = AnswerFormat {
            correlation_id: asker.correlation.0.clone(),
            created,
            fingerprint: model.fingerprint(),
            layout,
            requested,
        };
        let tokens = |it: Place| prompts[it.prompt].tokens.len() as u32;
        let room = respond::room_for_ids(self, &format, layout.places().map(tokens))?;
        let answer = request.job_id;
        // Common to all choices.
        let common = NewRequest {
            job_id: answer.clone(),
            part_of: (layout.count() > 1).then(|| answer.clone()),
            client: asker.client,
            params: Arc::new(GenerationParams {
                grammar,
                prediction,
                thinking: Budget::settle(request.thinking, &parsing, &model.text)?,
                ..request.params
            }),
            stop: request.stop,
            prompt_logprobs: request.prompt_logprobs,
            shown: model.text.tokenizer().control_of(parsing.marks()),
            timeout: self.limits.inference_timeout,
            on_fault: request.on_fault,
            format: format.write(),
            ..NewRequest::default()
        };
        let context = model.max_sequence_tokens;
        let requested = &format.requested;
        let ask = |it: Place| of_choice(&common, it, requested, &prompts[it.prompt], context);
        let _entering = entering(asker.connection.as_ref()).await;
        let submitted = self.engine.submit(layout.places().map(ask).collect());
        let streams = submitted.map_err(|it| refused(it, &answer, &asker.correlation))?;
        if let Some(connection) = asker.connection {
            connection.attach(&answer, &asker.correlation.0, Position::of(&streams));
        }
        let choices = streams.into_iter().zip(layout.places());
        let begin = |(stream, choice): (RequestStream, Place)| {
            let name = stream.job_id().to_owned();
            let job = Job::begin(Arc::clone(self), name, asker.correlation.0.clone());
            job.log_start(&stream, prompts[choice.prompt].digest.as_ref(), model);
            Accepted {
                tokens_in: stream.tokens_in(),
                stream,
                job,
            }
        };
        Ok((format, choices.map(begin).collect(), room))
    }
}

/// Logs a refusal of the engine.
fn refused(refusal: Refusal, job_id: &str, correlation: &CorrelationId) -> ApiError {
    tracing::debug!(
        job_id,
        correlation_id = correlation.0,
        code = refusal.code().as_str(),
        "execute_refused"
    );
    refusal.into()
}

/// Guard that must be held until the request is in the journal.
async fn entering(connection: Option<&Attachment>) -> Option<Held> {
    match connection {
        Some(connection) => Some(connection.enter().await),
        None => None,
    }
}

fn lost() -> ApiError {
    ApiError::of_code(ErrorCode::Internal, "the prompt could not be tokenized")
}

/// Request for one of several choices, or for the only one.
fn of_choice(
    common: &NewRequest,
    choice: Place,
    requested: &RequestedFormat,
    prompt: &Encoded,
    context: u32,
) -> NewRequest {
    let room = context.saturating_sub(prompt.tokens.len() as u32);
    let answer = &common.job_id;
    let job_id = match common.part_of {
        Some(_) => format!("{answer}.{}", choice.index),
        None => answer.clone(),
    };
    NewRequest {
        job_id,
        prompt: prompt.tokens.clone(),
        echo: prompt.echo,
        prompt_logprobs: common
            .prompt_logprobs
            .filter(|_| requested.lists_prompt_at(choice.index)),
        params: Arc::new(GenerationParams {
            sampling: choice.sampling(common.params.sampling),
            max_tokens: common.params.max_tokens.min(room),
            ..GenerationParams::clone(&common.params)
        }),
        ..common.clone()
    }
}
