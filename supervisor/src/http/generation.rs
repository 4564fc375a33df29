//! Request for text, common to all APIs, and its single entry point.

mod echo;
mod prompt;

use super::App;
use super::choices::{More, Place};
use super::client;
use super::connection::Attachment;
use super::correlation::CorrelationId;
use super::error::ApiError;
use super::handover::Held;
use super::job::Job;
use super::presentation::{Form, Presentation};
use super::structure::Asked;
use super::thinking_budget::Budget;
use axum::body::Body;
use axum::http::Request;
use prompt::Encoded;
use std::iter::once;
use std::sync::Arc;
use worker_orcd_engine::LoadedModel;
use worker_orcd_ipc::{ClientId, Sampling, TokenId};
use worker_orcd_requests::error_code::ErrorCode;
use worker_orcd_requests::{NewRequest, OnFault, Position, RequestStream};
use worker_orcd_text::Conversation;
use worker_orcd_text::template::TemplateSetting;

#[derive(Debug, Clone, PartialEq)]
pub struct GenerationRequest {
    pub job_id: String,
    pub input: Input,
    pub sampling: Sampling,
    pub max_tokens: u32,
    pub stop: Vec<String>,
    pub ignore_eos: bool,
    /// Return the log probability of each token, and this many of the most likely ones.
    pub logprobs: Option<u8>,
    /// The answer begins with the prompt.
    pub echo: bool,
    /// Same as [`Submission::logit_bias`](worker_orcd_ipc::Submission::logit_bias).
    pub logit_bias: Vec<(TokenId, f32)>,
    /// Reasoning budget.
    pub thinking: Option<Budget>,
    /// Grammar of the answer.
    pub structure: Option<Asked>,
    pub on_fault: Option<OnFault>,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Input {
    Prompt(String),
    /// Messages and tools, and template variables from the client.
    Messages(Conversation, Vec<(String, TemplateSetting)>),
    /// The same, and the beginning of the answer.
    Begun(Conversation, Vec<(String, TemplateSetting)>, String),
    /// Token ids, which `/v1/completions` accepts.
    Tokens(Vec<TokenId>),
}

impl Input {
    /// Whether the prompt has tools.
    #[must_use]
    pub fn has_tools(&self) -> bool {
        match self {
            Self::Messages(conversation, _) | Self::Begun(conversation, ..) => {
                conversation.tools.is_some()
            }
            Self::Prompt(_) | Self::Tokens(_) => false,
        }
    }

    /// Name of the prompt's field.
    fn field(&self) -> &'static str {
        match self {
            Self::Prompt(_) | Self::Tokens(_) => "prompt",
            Self::Messages(..) | Self::Begun(..) => "messages",
        }
    }
}

/// Client of a request, and its connection.
#[derive(Debug)]
pub struct Asker {
    client: ClientId,
    correlation: CorrelationId,
    /// `None` in tests.
    connection: Option<Attachment>,
}

impl Asker {
    #[must_use]
    pub fn of(request: &Request<Body>, correlation: CorrelationId) -> Self {
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

    /// Tokenizes and submits one request.
    ///
    /// # Errors
    /// If the text does not fit, or the engine refuses.
    pub async fn start(
        self: &Arc<Self>,
        model: &Arc<LoadedModel>,
        request: GenerationRequest,
        form: &mut Form,
        asker: Asker,
    ) -> Result<Accepted, ApiError> {
        let more = More::default();
        let mut one = self.start_all(model, request, more, form, asker).await?;
        one.pop().ok_or_else(lost)
    }

    /// Tokenizes and submits a request for each choice, all or none. The single entry point.
    ///
    /// # Errors
    /// If a text does not fit, or the engine refuses.
    pub async fn start_all(
        self: &Arc<Self>,
        model: &Arc<LoadedModel>,
        request: GenerationRequest,
        more: More,
        form: &mut Form,
        asker: Asker,
    ) -> Result<Vec<Accepted>, ApiError> {
        let layout = more.layout();
        layout.check(self.engine.most_together(), request.logprobs.is_some())?;
        let mut prompts = Vec::new();
        for input in once(request.input).chain(more.prompts) {
            let prompt = self.prepare_echoed(model, input, request.echo).await?;
            if prompt.opens_thinking {
                form.open_thinking();
            }
            prompts.push(prompt);
        }
        let parsing = form.parsing();
        let grammar = self.hold(model, request.structure, parsing).await?;
        let Asker {
            client,
            correlation,
            connection,
        } = asker;
        let presentation = Presentation {
            correlation_id: correlation.0.clone(),
            form: form.clone(),
        };
        let answer = request.job_id;
        // Parameters common to all choices.
        let common = NewRequest {
            job_id: answer.clone(),
            part_of: (layout.count() > 1).then(|| answer.clone()),
            client,
            prompt: Vec::new(),
            sampling: request.sampling,
            max_tokens: request.max_tokens,
            stop: request.stop,
            ignore_eos: request.ignore_eos,
            shown: model.text.tokenizer().control_of(parsing.marks()),
            logprobs: request.logprobs,
            echo: None,
            grammar,
            logit_bias: request.logit_bias,
            thinking: Budget::settle(request.thinking, parsing, &model.text)?,
            embeds: None,
            timeout: self.limits.inference_timeout,
            on_fault: request.on_fault,
            presentation: presentation.write(),
        };
        let context = model.max_sequence_tokens;
        let ask = |it: Place| of_choice(&common, it, &prompts[it.prompt], context);
        let _entering = entering(connection.as_ref()).await;
        let submitted = self.engine.submit(layout.places().map(ask).collect());
        let streams = submitted.map_err(|refusal| {
            tracing::debug!(
                job_id = answer,
                correlation_id = correlation.0,
                code = refusal.code().as_str(),
                "execute_refused"
            );
            ApiError::from(refusal)
        })?;
        if let Some(connection) = connection {
            connection.attach(&answer, &correlation.0, Position::of(&streams));
        }
        let choices = streams.into_iter().zip(layout.places());
        let begin = |(stream, choice): (RequestStream, Place)| {
            let name = stream.job_id().to_owned();
            let job = Job::begin(Arc::clone(self), name, correlation.0.clone());
            job.log_start(&stream, prompts[choice.prompt].digest.as_ref(), model);
            Accepted {
                tokens_in: stream.tokens_in(),
                stream,
                job,
            }
        };
        Ok(choices.map(begin).collect())
    }
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
fn of_choice(common: &NewRequest, choice: Place, prompt: &Encoded, context: u32) -> NewRequest {
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
        sampling: choice.sampling(common.sampling),
        max_tokens: common.max_tokens.min(room),
        ..common.clone()
    }
}
