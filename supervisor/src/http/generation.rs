//! The request for text to which both APIs come down, and the one way to start it.

use super::App;
use super::body::Room;
use super::choices::{More, Place};
use super::client;
use super::connection::Attachment;
use super::correlation::CorrelationId;
use super::error::ApiError;
use super::job::Job;
use super::mistakes::Constraint;
use super::presentation::{Form, Presentation};
use super::structure::Asked;
use crate::engine::{LoadedModel, NewRequest, OnFault, Position, RequestStream};
use crate::error_code::ErrorCode;
use crate::interpreter::MAX_RENDERED_BYTES;
use crate::logging::TextDigest;
use crate::text::template::TemplateSetting;
use crate::text::tools::opens_thinking;
use crate::text::{Conversation, Rendering, TemplateError, Undivided};
use axum::body::Body;
use axum::http::Request;
use std::iter::once;
use std::sync::Arc;
use worker_orcd_ipc::{ClientId, Sampling, TokenId};

#[derive(Debug, Clone, PartialEq)]
pub struct GenerationRequest {
    pub job_id: String,
    pub input: Input,
    pub sampling: Sampling,
    pub max_tokens: u32,
    pub stop: Vec<String>,
    pub ignore_eos: bool,
    /// Log probabilities of each token, and of so many of the most likely ones.
    pub logprobs: Option<u8>,
    /// As [`Submission::logit_bias`](worker_orcd_ipc::Submission::logit_bias).
    pub logit_bias: Vec<(TokenId, f32)>,
    /// What the answer is held to.
    pub structure: Option<Asked>,
    pub on_fault: Option<OnFault>,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Input {
    Prompt(String),
    /// Messages and tools, and what the client sets for the template.
    Messages(Conversation, Vec<(String, TemplateSetting)>),
    /// The same, and the text with which the answer has begun.
    Begun(Conversation, Vec<(String, TemplateSetting)>, String),
    /// Ids, as `/v1/completions` may be given.
    Tokens(Vec<TokenId>),
}

impl Input {
    /// Tools are shown to the model.
    #[must_use]
    pub fn has_tools(&self) -> bool {
        match self {
            Self::Messages(conversation, _) | Self::Begun(conversation, ..) => {
                conversation.tools.is_some()
            }
            Self::Prompt(_) | Self::Tokens(_) => false,
        }
    }

    /// The name of the field that held the prompt.
    fn field(&self) -> &'static str {
        match self {
            Self::Prompt(_) | Self::Tokens(_) => "prompt",
            Self::Messages(..) | Self::Begun(..) => "messages",
        }
    }
}

/// Whose request it is, and where its answer goes.
#[derive(Debug)]
pub struct Asker {
    client: ClientId,
    correlation: CorrelationId,
    /// `None` in tests, which have none.
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

    /// Tokenizes and submits one request.
    ///
    /// # Errors
    /// When the text does not fit, or the engine refuses.
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

    /// Tokenizes and submits a request for each choice, all or none: the one way in.
    ///
    /// # Errors
    /// When a text does not fit, or the engine refuses.
    pub async fn start_all(
        self: &Arc<Self>,
        model: &Arc<LoadedModel>,
        request: GenerationRequest,
        more: More,
        form: &mut Form,
        asker: Asker,
    ) -> Result<Vec<Accepted>, ApiError> {
        let layout = more.layout();
        layout.check(self.engine.most_together())?;
        let mut prompts = Vec::new();
        for input in once(request.input).chain(more.prompts) {
            let prompt = self.prepare(model, input).await?;
            if prompt.opens_thinking {
                form.open_thinking();
            }
            prompts.push(prompt);
        }
        let parsing = form.parsing();
        let grammar = self.hold(model, request.structure, parsing).await?;
        let shown = model.text.tokenizer().control_of(parsing.marks());
        let Asker {
            client,
            correlation,
            connection,
        } = asker;
        let presentation = Presentation {
            correlation_id: correlation.0.clone(),
            form: form.clone(),
        };
        let presentation = presentation.write();
        let answer = request.job_id;
        let ask = |choice: Place| {
            let prompt = prompts[choice.prompt].tokens.clone();
            let room = model
                .max_sequence_tokens
                .saturating_sub(prompt.len() as u32);
            let part_of = (layout.count() > 1).then(|| answer.clone());
            let part = |answer| format!("{answer}.{}", choice.index);
            NewRequest {
                job_id: part_of.as_ref().map_or_else(|| answer.clone(), part),
                part_of,
                client,
                prompt,
                sampling: choice.sampling(request.sampling),
                max_tokens: request.max_tokens.min(room),
                stop: request.stop.clone(),
                ignore_eos: request.ignore_eos,
                shown: shown.clone(),
                logprobs: request.logprobs,
                grammar: grammar.clone(),
                logit_bias: request.logit_bias.clone(),
                embeds: None,
                deadline: self.limits.inference_timeout,
                on_fault: request.on_fault,
                presentation: presentation.clone(),
            }
        };
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

    /// The tokens of a prompt that fits.
    async fn prepare(&self, model: &Arc<LoadedModel>, input: Input) -> Result<Encoded, ApiError> {
        let field = input.field();
        self.check_bytes(model, &input, field)?;
        let prompt = self.encode(model, input, field).await?;
        self.check_fit(model, field, prompt.tokens.len())?;
        Ok(prompt)
    }

    /// The tokens of a prompt as it would be computed; `field` is where the client wrote it.
    ///
    /// # Errors
    /// When it is surely too long, or cannot be rendered.
    pub async fn tokens_of(
        &self,
        model: &Arc<LoadedModel>,
        input: Input,
        field: &'static str,
    ) -> Result<Vec<TokenId>, ApiError> {
        self.check_bytes(model, &input, field)?;
        Ok(self.encode(model, input, field).await?.tokens)
    }

    /// The tokens of a text, without those that a model wants around it.
    ///
    /// # Errors
    /// When it is surely too long.
    pub async fn tokens_alone(
        &self,
        model: &Arc<LoadedModel>,
        content: String,
        field: &'static str,
    ) -> Result<Vec<TokenId>, ApiError> {
        let (text, bytes) = (Arc::clone(&model.text), content.len());
        let input = Input::Prompt(content);
        self.check_bytes(model, &input, field)?;
        let Input::Prompt(content) = input else {
            return Err(lost());
        };
        let work = move || Encoded::of(&content, text.tokenizer().encode_plain(&content), field);
        let encoded = self.lanes.run(bytes, work).await.ok_or_else(lost)?;
        Ok(encoded?.tokens)
    }

    /// Refuses a prompt that cannot fit however it is tokenized, before that costs anything.
    fn check_bytes(&self, model: &LoadedModel, input: &Input, field: &str) -> Result<(), ApiError> {
        let longest_token = model.text.tokenizer().longest_token_bytes();
        let (Input::Prompt(prompt), Some(bytes)) = (input, longest_token) else {
            return Ok(());
        };
        let tokens = prompt.len().div_ceil(bytes.max(1));
        if tokens > self.longest_prompt(model) as usize {
            return Err(self.surely_too_long(model, field, tokens));
        }
        Ok(())
    }

    async fn encode(
        &self,
        model: &Arc<LoadedModel>,
        input: Input,
        field: &'static str,
    ) -> Result<Encoded, ApiError> {
        match input {
            Input::Tokens(tokens) => Ok(Encoded {
                tokens,
                digest: None,
                opens_thinking: false,
            }),
            Input::Prompt(prompt) => {
                let (text, bytes) = (Arc::clone(&model.text), prompt.len());
                let work = move || Encoded::of(&prompt, text.encode(&prompt), field);
                self.lanes.run(bytes, work).await.ok_or_else(lost)?
            }
            Input::Messages(conversation, settings) => {
                let nothing = String::new();
                self.encode_messages(model, conversation, settings, nothing)
                    .await
            }
            Input::Begun(conversation, settings, beginning) => {
                self.encode_messages(model, conversation, settings, beginning)
                    .await
            }
        }
    }

    /// Rendered by the model's template in a process of its own, then tokenized here. Control
    /// tokens that a client wrote stay text, unless the operator wants otherwise. `beginning` is the answer's,
    /// and follows what the template writes before every answer.
    async fn encode_messages(
        &self,
        model: &Arc<LoadedModel>,
        conversation: Conversation,
        settings: Vec<(String, TemplateSetting)>,
        beginning: String,
    ) -> Result<Encoded, ApiError> {
        let text = Arc::clone(&model.text);
        let bytes = conversation.cost() + beginning.len();
        let parse_special = self.parse_special;
        let mark = move || {
            let is_plain = parse_special || !text.tokenizer().holds_control(&beginning);
            let marked = (!parse_special).then(|| text.tokenizer().mark(&conversation));
            (
                conversation,
                marked.flatten(),
                is_plain.then_some(beginning),
            )
        };
        let marked = self.lanes.run(bytes, mark).await;
        let (conversation, marked, beginning) = marked.ok_or_else(lost)?;
        let beginning = beginning.ok_or_else(|| {
            not_continued("holds a special token's text, and what is begun so is not continued")
        })?;
        let (mut prompt, _room) = self.render(model, conversation, settings.clone()).await?;
        if !beginning.is_empty() && opens_thinking(&prompt) {
            let rule = "cannot be continued: the model's chat template has every answer begin with thinking";
            return Err(not_continued(rule));
        }
        prompt.push_str(&beginning);
        let (text, bytes) = (Arc::clone(&model.text), prompt.len());
        let Some(mut marked) = marked else {
            let work = move || {
                let ids = text.encode_rendered(&prompt, &[]);
                Encoded::of(&prompt, ids, "messages")
            };
            return self.lanes.run(bytes, work).await.ok_or_else(lost)?;
        };
        let conversation = std::mem::take(&mut marked.conversation);
        let (mut marked_prompt, _more_room) = self.render(model, conversation, settings).await?;
        marked_prompt.push_str(&beginning);
        let work = move || {
            let tokenizer = text.tokenizer();
            let own = tokenizer.clients_own(&prompt, &marked, &marked_prompt)?;
            let ids = text.encode_rendered(&prompt, &own);
            Some(Encoded::of(&prompt, ids, "messages"))
        };
        let encoded = self.lanes.run(2 * bytes, work).await.ok_or_else(lost)?;
        encoded.unwrap_or_else(|| {
            let message = "hold texts of special tokens, and the model's chat template makes of \
                           them what cannot be told from its own";
            Err(ApiError::invalid_field(
                "messages",
                Constraint::Unsupported,
                message,
            ))
        })
    }

    /// The prompt that a conversation becomes.
    ///
    /// # Errors
    /// When the template refuses it, or it is surely too long.
    pub async fn render(
        &self,
        model: &LoadedModel,
        conversation: Conversation,
        settings: Vec<(String, TemplateSetting)>,
    ) -> Result<(String, Room), ApiError> {
        let chat = model.chat.as_ref().map_err(template_failure)?;
        let fit = self.longest_prompt(model) as usize;
        let longest_token = model.text.tokenizer().longest_token_bytes();
        let max_bytes = longest_token.map_or(usize::MAX, |bytes| bytes.saturating_mul(fit));
        let rendering = Rendering {
            conversation,
            settings,
            max_bytes: max_bytes.min(MAX_RENDERED_BYTES),
        };
        let rendered = chat.render(rendering).await.map_err(|error| match error {
            TemplateError::TooLong(bytes) if bytes == max_bytes => {
                self.surely_too_long(model, "messages", fit + 1)
            }
            error => template_failure(&error),
        })?;
        let room = self.bodies.room_for_prompt(rendered.len())?;
        Ok((rendered, room))
    }

    fn surely_too_long(&self, model: &LoadedModel, field: &str, tokens: usize) -> ApiError {
        let (fit, context) = (self.longest_prompt(model), model.max_sequence_tokens);
        ApiError::context_length(field, format_args!("{tokens} or more"), fit, context)
    }

    /// Length of the longest prompt, in tokens: something must be left for an answer.
    fn longest_prompt(&self, model: &LoadedModel) -> u32 {
        let fits = model.max_sequence_tokens.saturating_sub(1);
        self.limits.max_tokens_in.unwrap_or(u32::MAX).min(fits)
    }

    pub(super) fn check_fit(
        &self,
        model: &LoadedModel,
        field: &str,
        tokens: usize,
    ) -> Result<(), ApiError> {
        let longest = self.longest_prompt(model);
        let wrong = |message: String| ApiError::invalid_field(field, Constraint::Length, message);
        match tokens {
            0 => Err(wrong("has no tokens".to_owned())),
            tokens if tokens <= longest as usize => Ok(()),
            _ => {
                let context = model.max_sequence_tokens;
                Err(ApiError::context_length(field, tokens, longest, context))
            }
        }
    }
}

struct Encoded {
    tokens: Vec<TokenId>,
    /// Digest of the text, where there was one.
    digest: Option<TextDigest>,
    /// Its text ends with the tag that opens thinking.
    opens_thinking: bool,
}

impl Encoded {
    fn of(
        text: &str,
        tokens: Result<Vec<TokenId>, Undivided>,
        field: &str,
    ) -> Result<Self, ApiError> {
        let wrong =
            |it: Undivided| ApiError::invalid_field(field, Constraint::Length, it.to_string());
        Ok(Self {
            tokens: tokens.map_err(wrong)?,
            digest: Some(TextDigest::of(text)),
            opens_thinking: opens_thinking(text),
        })
    }
}

/// The last message is an assistant's.
fn not_continued(rule: &str) -> ApiError {
    ApiError::invalid_field("messages", Constraint::Unsupported, rule)
}

fn lost() -> ApiError {
    ApiError::of_code(ErrorCode::Internal, "the prompt could not be tokenized")
}

fn template_failure(error: &TemplateError) -> ApiError {
    let constraint = match error {
        TemplateError::Unavailable(_) => {
            return ApiError::of_code(ErrorCode::WorkerUnhealthy, error.to_string());
        }
        TemplateError::TooLong(_) => Constraint::Length,
        TemplateError::Missing
        | TemplateError::Broken(_)
        | TemplateError::Refused(_)
        | TemplateError::Failed(_) => Constraint::Unsupported,
    };
    ApiError::invalid_field("messages", constraint, error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::error::Dialect;

    #[test]
    fn a_word_that_no_piece_decides_is_refused_and_its_field_named() {
        let error = Encoded::of("text", Err(Undivided), "prompt").err().unwrap();
        let body = error.body(Dialect::OpenAi).to_string();
        assert!(body.contains("prompt"), "{body}");
        assert!(body.contains(&Undivided.to_string()), "{body}");
        assert!(body.contains("invalid_request_error"), "{body}");
    }
}
