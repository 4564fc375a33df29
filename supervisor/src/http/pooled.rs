//! Prompts of one request that become vectors or scores in the engine.
//!
//! Each is a separate request to the engine, with its own queue entry, its share of the steps, and replay after a
//! death. The write-ahead log omits them. An upgrade hands over the bytes of the HTTP request, and the next supervisor
//! computes it again ([`handover`](super::handover)).

use super::App;
use super::body::Room;
use super::correlation::CorrelationId;
use super::error::ApiError;
use super::job::Job;
use std::collections::VecDeque;
use std::sync::Arc;
use worker_orcd_api::mistakes::Constraint;
use worker_orcd_engine::LoadedModel;
use worker_orcd_ipc::{ClientId, Pooling, TokenId};
use worker_orcd_requests::error_code::ErrorCode;
use worker_orcd_requests::{Failure, NewRequest, Refusal, RequestStream, StreamEvent};

/// Prompts of one request in the engine at the same time: enough to fill a step, and few enough that a long list leaves
/// queue entries to other clients.
const AT_ONCE: usize = 16;

/// Prompts of one request, within the memory limit.
#[derive(Debug, Default)]
pub(super) struct Prompts {
    list: VecDeque<Vec<TokenId>>,
    bytes: usize,
    /// Tokens of all of them.
    pub(super) tokens: u64,
}

impl Prompts {
    /// # Errors
    /// If it exceeds the model's context, or the sum exceeds the memory limit. `field`: field of the prompt.
    pub(super) fn add(
        &mut self,
        app: &App,
        model: &LoadedModel,
        field: &str,
        prompt: Vec<TokenId>,
    ) -> Result<(), ApiError> {
        app.check_fit(model, field, prompt.len())?;
        self.bytes += size_of_val(&*prompt);
        self.tokens += prompt.len() as u64;
        if self.bytes > app.bodies.longest_answer() {
            let rule = "has more tokens in all than this worker holds at once: send it in parts";
            return Err(ApiError::invalid_field(field, Constraint::Length, rule));
        }
        self.list.push_back(prompt);
        Ok(())
    }

    /// Room for the token ids until the last vector. The body's room is returned.
    ///
    /// # Errors
    /// 429 if other requests hold too much.
    pub(super) fn room(&self, app: &App) -> Result<Room, ApiError> {
        app.bodies.room_for_prompt(self.bytes)
    }
}

/// Client and pooling parameters.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) app: Arc<App>,
    /// Prefix of its job ids.
    pub(super) id: String,
    pub(super) correlation: CorrelationId,
    pub(super) client: ClientId,
    pub(super) pooling: Pooling,
}

/// Prompt in the engine.
struct Running {
    stream: RequestStream,
    job: Job,
}

impl Batch {
    /// Computes vectors of `numbers` components, in the order of the prompts. If the queue is full, a prompt waits for
    /// an earlier one of the same request. It fails the request only if none of its prompts is running.
    ///
    /// # Errors
    /// If any prompt fails.
    pub(super) async fn run(
        &self,
        prompts: Prompts,
        numbers: usize,
    ) -> Result<Vec<Vec<f32>>, ApiError> {
        let mut running = VecDeque::new();
        let vectors = self.run_some(prompts.list, &mut running, numbers).await;
        // The others are cancelled after a failure.
        for mut left in running {
            let why = "another input of its list failed";
            left.job.failed(&Failure::new(ErrorCode::Cancelled, why));
        }
        vectors
    }

    /// Leaves the remaining prompts in `running` after a failure.
    async fn run_some(
        &self,
        mut prompts: VecDeque<Vec<TokenId>>,
        running: &mut VecDeque<Running>,
        numbers: usize,
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
            if vector.len() != numbers {
                return Err(ApiError::of_failure(&no_vector()));
            }
            vectors.push(vector);
        }
    }

    fn submit(&self, number: usize, prompt: Vec<TokenId>) -> Result<Running, Refusal> {
        let job_id = format!("{}-{number}", self.id);
        let request = NewRequest {
            job_id: job_id.clone(),
            client: self.client,
            prompt,
            embeds: Some(self.pooling),
            timeout: self.app.limits.inference_timeout,
            ..NewRequest::default()
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
        // A request without tokens has one event, its end.
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
