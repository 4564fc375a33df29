//! Prompts of one request that become vectors or scores, on their way through the engine.
//!
//! Each is a request of its own to the engine: it has its place in the queue, its share of the steps, and its
//! next child when one dies. The write-ahead log has none of them. An upgrade hands over the bytes of the HTTP request, and the
//! next supervisor computes it again ([`handover`](super::handover)).

use super::App;
use super::body::Room;
use super::correlation::CorrelationId;
use super::error::ApiError;
use super::job::Job;
use super::mistakes::Constraint;
use crate::engine::{Failure, LoadedModel, NewRequest, Refusal, RequestStream, StreamEvent};
use std::collections::VecDeque;
use std::sync::Arc;
use worker_orcd_ipc::{ClientId, Pooling, Sampling, TokenId};
use worker_orcd_requests::error_code::ErrorCode;

/// Prompts of one request that the engine has at once: enough to fill a step, and few enough that a long list leaves
/// places in the queue to others.
const AT_ONCE: usize = 16;

/// Prompts of one request, as many as there is room for.
#[derive(Debug, Default)]
pub(super) struct Prompts {
    list: VecDeque<Vec<TokenId>>,
    bytes: usize,
    /// Tokens of all of them.
    pub(super) tokens: u64,
}

impl Prompts {
    /// # Errors
    /// Where it does not fit the model's context, or all together are too much to be held at once. `field` is where the
    /// client wrote it.
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

    /// The ids live until the last vector is there; the body does not.
    ///
    /// # Errors
    /// 429 when others hold too much.
    pub(super) fn room(&self, app: &App) -> Result<Room, ApiError> {
        app.bodies.room_for_prompt(self.bytes)
    }
}

/// Who asks, and how prompts are pooled.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) app: Arc<App>,
    /// What the ids of its jobs begin with.
    pub(super) id: String,
    pub(super) correlation: CorrelationId,
    pub(super) client: ClientId,
    pub(super) pooling: Pooling,
}

/// A prompt that the engine has.
struct Running {
    stream: RequestStream,
    job: Job,
}

impl Batch {
    /// The vectors, in the order of the prompts, each of so many numbers. A prompt for which the queue has no place
    /// waits for one of its own request to end; the first one has nothing to wait for.
    ///
    /// # Errors
    /// Where one prompt fails, all do.
    pub(super) async fn run(
        &self,
        prompts: Prompts,
        numbers: usize,
    ) -> Result<Vec<Vec<f32>>, ApiError> {
        let mut running = VecDeque::new();
        let vectors = self.run_some(prompts.list, &mut running, numbers).await;
        // Where one has failed.
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
            timeout: self.app.limits.inference_timeout,
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
