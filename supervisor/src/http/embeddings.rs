//! `POST /v1/embeddings`: the vectors of texts, as the OpenAI API has them.
//!
//! Each input is a request of its own to the engine: it has its place in the queue, its share of the steps, and its
//! next child when one dies. An answer is short work, so nothing of it is kept for another supervisor: a supervisor
//! that is replaced answers what it has read before it leaves.
//!
//! [`read`] reads the fields, [`written`] makes the answer of vectors.

mod read;
mod written;

pub use read::{Embeddings, Format, NAMES, read_embeddings};

use super::App;
use super::client;
use super::correlation::CorrelationId;
use super::error::{ApiError, Dialect};
use super::job::Job;
use super::mistakes::Constraint;
use crate::engine::{Failure, LoadedModel, NewRequest, Refusal, RequestStream, StreamEvent};
use crate::error_code::ErrorCode;
use axum::body::Body;
use axum::extract::{Extension, State};
use axum::http::Request;
use axum::response::Response;
use std::collections::VecDeque;
use std::sync::Arc;
use uuid::Uuid;
use worker_orcd_ipc::{ClientId, Pooling, Sampling, TokenId};

/// Inputs of one request that the engine has at once: enough to fill a step, and few enough that a long list leaves
/// places in the queue to others.
const AT_ONCE: usize = 16;

/// llama.cpp's number of rerankers, whose one output is no embedding.
const RANK: u32 = 4;

pub async fn embeddings(
    State(app): State<Arc<App>>,
    Extension(correlation): Extension<CorrelationId>,
    request: Request<Body>,
) -> Response {
    let outcome = try_embeddings(&app, correlation, request).await;
    outcome.unwrap_or_else(|error| error.respond(Dialect::OpenAi))
}

async fn try_embeddings(
    app: &Arc<App>,
    correlation: CorrelationId,
    request: Request<Body>,
) -> Result<Response, ApiError> {
    let client = client::of_request(request.extensions());
    let (model, asked, room) = app.receive(request, NAMES, read_embeddings).await?;
    let pooling = pooling(app.pooling, model.facts.pooling_type)?;
    let mut prompts = VecDeque::with_capacity(asked.inputs.len());
    for input in asked.inputs {
        let tokens = app.tokens_of(&model, input, read::INPUT).await?;
        app.check_fit(&model, read::INPUT, tokens.len())?;
        prompts.push_back(tokens);
    }
    // The ids live until the last vector is there; the body does not.
    let bytes = prompts
        .iter()
        .map(|it: &Vec<TokenId>| size_of_val(&**it))
        .sum();
    if bytes > app.bodies.longest_answer() {
        let rule = "has more tokens in all than this worker holds at once: send it in parts";
        return Err(ApiError::invalid_field(
            read::INPUT,
            Constraint::Length,
            rule,
        ));
    }
    let _held = app.bodies.room_for_prompt(bytes)?;
    drop(room);
    let batch = Batch {
        app: Arc::clone(app),
        id: format!("embd-{}", Uuid::new_v4().simple()),
        correlation,
        client,
        pooling,
    };
    let tokens = prompts.iter().map(|it| it.len() as u64).sum();
    let vectors = batch.run(prompts, &model).await?;
    let bytes = vectors.iter().map(|it| size_of_val(&**it)).sum();
    let answer = written::answer(
        vectors,
        asked.format,
        asked.dimensions,
        app.model_id.clone(),
        tokens,
    );
    app.answered(read::INPUT, bytes, answer, ()).await
}

/// How this model's texts are pooled: as the operator says, or as the file does.
///
/// # Errors
/// Where neither says, and where the model is no embedder.
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

/// The inputs of one request on their way through the engine.
struct Batch {
    app: Arc<App>,
    id: String,
    correlation: CorrelationId,
    client: ClientId,
    pooling: Pooling,
}

/// An input that the engine has.
struct Running {
    stream: RequestStream,
    job: Job,
}

impl Batch {
    /// The vectors, in the order of the prompts. An input for which the queue has no place waits for one of its own
    /// request to end; the first one has nothing to wait for.
    async fn run(
        &self,
        prompts: VecDeque<Vec<TokenId>>,
        model: &LoadedModel,
    ) -> Result<Vec<Vec<f32>>, ApiError> {
        let mut running = VecDeque::new();
        let vectors = self.run_some(prompts, &mut running, model).await;
        // Where one input has failed.
        for mut left in running {
            let why = "another input of its list failed";
            left.job.failed(&Failure::new(ErrorCode::Cancelled, why));
        }
        vectors
    }

    /// Leaves in `running` what is of no use after a failure.
    async fn run_some(
        &self,
        mut prompts: VecDeque<Vec<TokenId>>,
        running: &mut VecDeque<Running>,
        model: &LoadedModel,
    ) -> Result<Vec<Vec<f32>>, ApiError> {
        let mut vectors = Vec::with_capacity(prompts.len());
        loop {
            while running.len() < AT_ONCE
                && let Some(prompt) = prompts.front()
            {
                let number = vectors.len() + running.len();
                match self.submit(number, prompt.clone()) {
                    Ok(one) => running.push_back(one),
                    Err(full) if full.retry_after().is_some() && !running.is_empty() => break,
                    Err(refusal) => return Err(refusal.into()),
                }
                prompts.pop_front();
            }
            let Some(oldest) = running.pop_front() else {
                return Ok(vectors);
            };
            let vector = oldest.vector().await?;
            if vector.len() != model.facts.n_embd as usize {
                return Err(ApiError::of_failure(&no_vector()));
            }
            vectors.push(vector);
        }
    }

    fn submit(&self, number: usize, prompt: Vec<TokenId>) -> Result<Running, Refusal> {
        let job_id = format!("{}-{number}", self.id);
        let request = NewRequest {
            job_id: job_id.clone(),
            part_of: None,
            client: self.client,
            prompt,
            sampling: Sampling::GREEDY,
            max_tokens: 0,
            stop: Vec::new(),
            ignore_eos: false,
            shown: Vec::new(),
            logprobs: None,
            echo: None,
            grammar: None,
            logit_bias: Vec::new(),
            thinking: None,
            embeds: Some(self.pooling),
            deadline: self.app.limits.inference_timeout,
            on_fault: None,
            presentation: String::new(),
        };
        let mut streams = self.app.engine.submit(vec![request])?;
        let nothing = || Refusal::Unavailable("the engine took no request".to_owned());
        let stream = streams.pop().ok_or_else(nothing)?;
        let correlation = self.correlation.0.clone();
        let job = Job::begin(Arc::clone(&self.app), job_id, correlation);
        Ok(Running { stream, job })
    }
}

impl Running {
    async fn vector(mut self) -> Result<Vec<f32>, ApiError> {
        // The end is the only event of a request that has no token.
        let mut events = Vec::new();
        self.stream.next(&mut events).await;
        let failure = match events.pop() {
            Some(StreamEvent::Embedded(embedding)) => {
                self.job.embedded(self.stream.tokens_in(), &embedding);
                return Ok(embedding.values);
            }
            Some(StreamEvent::Failed(failure)) => failure,
            Some(StreamEvent::Text(_) | StreamEvent::Finished(_)) | None => no_vector(),
        };
        self.job.failed(&failure);
        Err(ApiError::of_failure(&failure))
    }
}

fn no_vector() -> Failure {
    Failure::new(ErrorCode::Internal, "the engine gave no vector")
}

#[cfg(test)]
mod tests {
    use super::*;

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
