//! What both APIs come down to: one request for text, and one way to start it.

use super::App;
use super::correlation::CorrelationId;
use super::error::ApiError;
use super::job::Job;
use super::mistakes::Constraint;
use crate::engine::{LoadedModel, NewRequest, OnFault, RequestStream};
use crate::error_code::ErrorCode;
use crate::text::ChatMessage;
use std::sync::Arc;
use worker_orcd_ipc::{Sampling, TokenId};

/// Longer texts are tokenized where they hold up nobody: 4 KiB take about a millisecond.
const INLINE_TEXT_BYTES: usize = 4 << 10;

#[derive(Debug, Clone, PartialEq)]
pub struct GenerationRequest {
    pub job_id: String,
    pub input: Input,
    pub sampling: Sampling,
    pub max_tokens: u32,
    pub stop: Vec<String>,
    pub ignore_eos: bool,
    pub on_fault: Option<OnFault>,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Input {
    Prompt(String),
    Messages(Vec<ChatMessage>),
    /// Ids, as `/v1/completions` may be given.
    Tokens(Vec<TokenId>),
}

impl Input {
    /// What a client calls it.
    fn field(&self) -> &'static str {
        match self {
            Self::Prompt(_) | Self::Tokens(_) => "prompt",
            Self::Messages(_) => "messages",
        }
    }

    fn text_bytes(&self) -> usize {
        match self {
            Self::Prompt(text) => text.len(),
            Self::Messages(messages) => messages.iter().map(|message| message.content.len()).sum(),
            Self::Tokens(_) => 0,
        }
    }
}

/// A request that the engine has accepted.
#[derive(Debug)]
pub struct Accepted {
    pub stream: RequestStream,
    pub job: Job,
    pub tokens_in: u32,
}

impl App {
    /// The model, or the reason why there is none yet.
    ///
    /// # Errors
    /// 503 before the first model was loaded.
    pub fn model(&self) -> Result<Arc<LoadedModel>, ApiError> {
        self.engine.model().ok_or_else(|| {
            let snapshot = self.engine.snapshot();
            let message = format!("no model is loaded: {}", snapshot.reason);
            ApiError::of_code(ErrorCode::WorkerUnhealthy, message)
        })
    }

    /// Tokenizes and submits: the one way in.
    ///
    /// # Errors
    /// When the text does not fit, or the engine refuses.
    pub async fn start(
        self: &Arc<Self>,
        model: &Arc<LoadedModel>,
        request: GenerationRequest,
        correlation: CorrelationId,
    ) -> Result<Accepted, ApiError> {
        let field = request.input.field();
        let prompt = self.encode(model, request.input).await?;
        let room = self.check_fit(model, field, prompt.tokens.len())?;
        let tokens_in = prompt.tokens.len() as u32;
        let max_tokens = request.max_tokens.min(room);
        let submitted = self.engine.submit(NewRequest {
            job_id: request.job_id.clone(),
            prompt: prompt.tokens,
            sampling: request.sampling,
            max_tokens,
            stop: request.stop,
            ignore_eos: request.ignore_eos,
            deadline: self.limits.inference_timeout,
            on_fault: request.on_fault,
        });
        let stream = submitted.map_err(|refusal| {
            tracing::info!(
                job_id = request.job_id,
                correlation_id = correlation.0,
                code = refusal.code().as_str(),
                "execute_refused"
            );
            ApiError::from(refusal)
        })?;
        let job = Job::begin(Arc::clone(self), request.job_id, correlation.0);
        let snapshot = self.engine.snapshot();
        tracing::info!(
            job_id = job.id(),
            correlation_id = job.correlation_id(),
            model = self.model_id,
            device = model.device.id,
            generation = snapshot.child.as_ref().map(|child| child.generation),
            prompt_chars = prompt.fingerprint.as_ref().map(|print| print.chars),
            prompt_sha256 = prompt
                .fingerprint
                .as_ref()
                .map(|print| print.sha256.as_str()),
            tokens_in,
            max_tokens,
            "execute_start"
        );
        Ok(Accepted {
            stream,
            job,
            tokens_in,
        })
    }

    /// Long texts are tokenized on other threads, as many at a time as there are cores: a crowd of
    /// them waits its turn instead of taking the machine.
    async fn encode(&self, model: &Arc<LoadedModel>, input: Input) -> Result<Encoded, ApiError> {
        if input.text_bytes() <= INLINE_TEXT_BYTES {
            return encode_now(model, input);
        }
        let _turn = self.tokenizing.acquire().await;
        let model = Arc::clone(model);
        let task = tokio::task::spawn_blocking(move || encode_now(&model, input));
        task.await.unwrap_or_else(|_| {
            Err(ApiError::of_code(
                ErrorCode::Internal,
                "the prompt could not be tokenized",
            ))
        })
    }

    /// How many tokens of answer fit behind the prompt.
    fn check_fit(&self, model: &LoadedModel, field: &str, tokens: usize) -> Result<u32, ApiError> {
        let context = model.max_sequence_tokens;
        let longest = self
            .limits
            .max_tokens_in
            .unwrap_or(u32::MAX)
            .min(context.saturating_sub(1));
        let wrong = |message: String| ApiError::invalid_field(field, Constraint::Length, message);
        match u32::try_from(tokens) {
            Ok(0) => Err(wrong("has no tokens".to_owned())),
            Ok(tokens) if tokens <= longest => Ok(context - tokens),
            _ => Err(ApiError::context_length(field, tokens, longest, context)),
        }
    }
}

struct Encoded {
    tokens: Vec<TokenId>,
    /// Of the text, where there was one.
    fingerprint: Option<crate::logging::Fingerprint>,
}

fn encode_now(model: &LoadedModel, input: Input) -> Result<Encoded, ApiError> {
    let text = &model.text;
    let fingerprint = |text: &str| Some(crate::logging::Fingerprint::of(text));
    match input {
        Input::Prompt(prompt) => Ok(Encoded {
            tokens: text.encode(&prompt),
            fingerprint: fingerprint(&prompt),
        }),
        Input::Messages(messages) => {
            let rendered = text
                .template()
                .and_then(|template| template.render(&messages))
                .map_err(|error| {
                    let message = error.to_string();
                    ApiError::invalid_field("messages", Constraint::Unsupported, message)
                })?;
            let tokens = text.encode_rendered(&rendered);
            Ok(Encoded {
                tokens,
                fingerprint: fingerprint(&rendered),
            })
        }
        Input::Tokens(tokens) => Ok(Encoded {
            tokens,
            fingerprint: None,
        }),
    }
}
