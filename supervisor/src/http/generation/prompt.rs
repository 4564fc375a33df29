//! Conversion of a client's input to prompt tokens.

use super::lost;
use crate::http::App;
use crate::http::body::Room;
use crate::http::error::ApiError;
use crate::logging::TextDigest;
use std::sync::Arc;
use worker_orcd_api::mistakes::Constraint;
use worker_orcd_api::request::{Chat, Input};
use worker_orcd_engine::LoadedModel;
use worker_orcd_engine::interpreter::MAX_RENDERED_BYTES;
use worker_orcd_ipc::TokenId;
use worker_orcd_requests::error_code::ErrorCode;
use worker_orcd_text::date::strftime_now;
use worker_orcd_text::template::TemplateSetting;
use worker_orcd_text::tools::{ends_in_header, opens_thinking};
use worker_orcd_text::{Conversation, Rendering, TemplateError, Undivided};

/// Most tokens of a prediction: with its prompt, a request still fits a message to a child.
const MAX_PREDICTED: usize = 1 << 20;

impl App {
    /// Tokens of a prompt that fits. `truncate`: number of its last tokens that are kept.
    pub(super) async fn prepare(
        &self,
        model: &Arc<LoadedModel>,
        input: Input,
        truncate: Option<u32>,
    ) -> Result<Encoded, ApiError> {
        let field = input.field();
        self.check_bytes(model, &input, field)?;
        let mut prompt = self.encode(model, input, field).await?;
        if let Some(kept) = truncate {
            let excess = prompt.tokens.len().saturating_sub(kept as usize);
            prompt.tokens.drain(..excess);
        }
        self.check_fit(model, field, prompt.tokens.len())?;
        Ok(prompt)
    }

    /// Tokens of a prompt as it would be computed. `field`: field of the prompt.
    ///
    /// # Errors
    /// If it is certainly too long, or cannot be rendered.
    pub async fn tokens_of(
        &self,
        model: &Arc<LoadedModel>,
        input: Input,
        field: &'static str,
    ) -> Result<Vec<TokenId>, ApiError> {
        self.check_bytes(model, &input, field)?;
        Ok(self.encode(model, input, field).await?.tokens)
    }

    /// Tokens of a text, without the special tokens that a model adds.
    ///
    /// # Errors
    /// If it is certainly too long.
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
        let encoded = self.pool.run(bytes, work).await.ok_or_else(lost)?;
        Ok(encoded?.tokens)
    }

    /// Tokens of a text in pieces. In pieces of a client (`true`) control tokens stay text, unless the operator sets
    /// otherwise.
    ///
    /// # Errors
    /// If it is certainly too long.
    pub async fn tokens_of_pieces(
        &self,
        model: &Arc<LoadedModel>,
        pieces: Vec<(String, bool)>,
        field: &'static str,
    ) -> Result<Vec<TokenId>, ApiError> {
        let bytes = pieces.iter().map(|(piece, _)| piece.len()).sum();
        self.check_length(model, bytes, field)?;
        let (text, parse_special) = (Arc::clone(&model.text), self.parse_special);
        let work = move || {
            let pieces = pieces.iter();
            let pieces = pieces.map(|(piece, is_own)| (&**piece, *is_own && !parse_special));
            text.tokenizer().encode_pieces(&pieces.collect::<Vec<_>>())
        };
        let tokens = self.pool.run(bytes, work).await.ok_or_else(lost)?;
        tokens.map_err(|it| ApiError::invalid_field(field, Constraint::Length, it.to_string()))
    }

    /// Tokens of the text that an answer is expected to resemble, at most as many as a prompt may have and
    /// [`MAX_PREDICTED`]. Without drafts they
    /// would have no use, and there are none. A text that cannot be tokenized is no reason to refuse a request: its answer
    /// is the same without.
    pub(super) async fn predict(
        &self,
        model: &Arc<LoadedModel>,
        text: Option<String>,
    ) -> Arc<[TokenId]> {
        let Some(text) = text.filter(|_| self.speculates) else {
            return Arc::default();
        };
        let tokens = self.tokens_alone(model, text, "prediction.content").await;
        let mut tokens = tokens.unwrap_or_default();
        tokens.truncate(MAX_PREDICTED.min(self.longest_prompt(model) as usize));
        tokens.into()
    }

    fn check_bytes(&self, model: &LoadedModel, input: &Input, field: &str) -> Result<(), ApiError> {
        match input {
            Input::Prompt(prompt) => self.check_length(model, prompt.len(), field),
            _ => Ok(()),
        }
    }

    /// Refuses a prompt that cannot fit however it is tokenized, before any cost.
    fn check_length(
        &self,
        model: &LoadedModel,
        length: usize,
        field: &str,
    ) -> Result<(), ApiError> {
        let Some(bytes) = model.text.tokenizer().longest_token_bytes() else {
            return Ok(());
        };
        let tokens = length.div_ceil(bytes.max(1));
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
                echo: None,
            }),
            Input::Prompt(prompt) => {
                let (text, bytes) = (Arc::clone(&model.text), prompt.len());
                let work = move || Encoded::of(&prompt, text.encode(&prompt), field);
                self.pool.run(bytes, work).await.ok_or_else(lost)?
            }
            Input::Chat(chat) => self.encode_chat(model, chat).await,
        }
    }

    /// Renders the messages in the interpreter process, then tokenizes the result. Control tokens in text of a client
    /// stay text, unless the operator sets otherwise.
    async fn encode_chat(&self, model: &Arc<LoadedModel>, chat: Chat) -> Result<Encoded, ApiError> {
        let field = chat.field;
        // Set once, so that both renderings have the same date.
        let settings = with_today(chat.settings);
        let chat = Chat { settings, ..chat };
        let text = Arc::clone(&model.text);
        let beginning = chat.beginning.clone().unwrap_or_default();
        let bytes = chat.conversation.cost() + beginning.len();
        let parse_special = self.parse_special;
        let mark = move || {
            let is_plain = parse_special || !text.tokenizer().holds_control(&beginning);
            let marked = (!parse_special).then(|| text.tokenizer().mark(&chat.conversation));
            (chat, marked.flatten(), is_plain)
        };
        let marked = self.pool.run(bytes, mark).await;
        let (chat, mut marked, is_plain) = marked.ok_or_else(lost)?;
        if !is_plain {
            let rule = "holds a special token's text, and what is begun so is not continued";
            return Err(unsupported(field, rule));
        }
        let marked_chat = marked.as_mut().map(|marked| Chat {
            conversation: std::mem::take(&mut marked.conversation),
            settings: chat.settings.clone(),
            beginning: chat.beginning.clone(),
            field,
        });
        let (prompt, _room) = self.render_begun(model, chat).await?;
        let (text, bytes) = (Arc::clone(&model.text), prompt.len());
        let (Some(marked), Some(marked_chat)) = (marked, marked_chat) else {
            let work = move || {
                let ids = text.encode_rendered(&prompt, &[]);
                Encoded::of(&prompt, ids, field)
            };
            return self.pool.run(bytes, work).await.ok_or_else(lost)?;
        };
        let (marked_prompt, _more_room) = self.render_begun(model, marked_chat).await?;
        let work = move || {
            let tokenizer = text.tokenizer();
            let own = tokenizer.clients_own(&prompt, &marked, &marked_prompt)?;
            let ids = text.encode_rendered(&prompt, &own);
            Some(Encoded::of(&prompt, ids, field))
        };
        let encoded = self.pool.run(2 * bytes, work).await.ok_or_else(lost)?;
        encoded.unwrap_or_else(|| {
            let message = "hold texts of special tokens, and the model's chat template makes of \
                           them what cannot be distinguished from its own text";
            Err(unsupported(field, message))
        })
    }

    /// Rendered prompt of a conversation, followed by the beginning of the answer.
    ///
    /// # Errors
    /// If the template raises an error, the prompt is certainly too long, or the answer cannot begin with that text.
    pub async fn render_begun(
        &self,
        model: &LoadedModel,
        chat: Chat,
    ) -> Result<(String, Room), ApiError> {
        let (field, settings) = (chat.field, with_today(chat.settings));
        let rendered = self.render(model, field, chat.conversation, settings);
        let (mut prompt, room) = rendered.await?;
        let beginning = chat.beginning.unwrap_or_default();
        if !beginning.is_empty() && opens_thinking(&prompt) {
            let rule = "cannot be continued: the model's chat template has every answer begin with thinking";
            return Err(unsupported(field, rule));
        }
        if !beginning.is_empty() && ends_in_header(&prompt) {
            let rule = "cannot be continued: the model begins each answer with a header of its own (harmony)";
            return Err(unsupported(field, rule));
        }
        prompt.push_str(&beginning);
        Ok((prompt, room))
    }

    /// Rendered prompt of a conversation.
    async fn render(
        &self,
        model: &LoadedModel,
        field: &str,
        conversation: Conversation,
        settings: Vec<(String, TemplateSetting)>,
    ) -> Result<(String, Room), ApiError> {
        let failure = |error: &TemplateError| template_failure(field, error);
        let chat = model.chat.as_ref().map_err(failure)?;
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
                self.surely_too_long(model, field, fit + 1)
            }
            error => failure(&error),
        })?;
        let room = self.bodies.room_for_prompt(rendered.len())?;
        Ok((rendered, room))
    }

    fn surely_too_long(&self, model: &LoadedModel, field: &str, tokens: usize) -> ApiError {
        let (fit, context) = (self.longest_prompt(model), model.max_sequence_tokens);
        ApiError::context_length(field, format_args!("{tokens} or more"), fit, context)
    }

    /// Length of the longest prompt, in tokens: at least one token remains for an answer.
    fn longest_prompt(&self, model: &LoadedModel) -> u32 {
        let fits = model.max_sequence_tokens.saturating_sub(1);
        self.limits.max_tokens_in.unwrap_or(u32::MAX).min(fits)
    }

    pub(in crate::http) fn check_fit(
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

/// Adds today's date for templates with `date_string`, such as those of Llama 3.1 to 3.3, in the format of these
/// templates and of llama-server. A client may set another. A prompt is rendered once, and a resumed stream keeps its
/// tokens.
fn with_today(mut settings: Vec<(String, TemplateSetting)>) -> Vec<(String, TemplateSetting)> {
    const NAME: &str = "date_string";
    if settings.iter().all(|(name, _)| name != NAME)
        && let Ok(today) = strftime_now("%d %b %Y")
    {
        settings.push((NAME.to_owned(), TemplateSetting::Word(today)));
    }
    settings
}

pub(super) struct Encoded {
    pub(super) tokens: Vec<TokenId>,
    /// Digest of the text; `None` for token ids.
    pub(super) digest: Option<TextDigest>,
    /// The prompt ends with the tag that opens reasoning.
    pub(super) opens_thinking: bool,
    /// Same as [`NewRequest::echo`](worker_orcd_requests::NewRequest::echo).
    pub(super) echo: Option<u32>,
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
            echo: None,
        })
    }
}

fn unsupported(field: &str, rule: &str) -> ApiError {
    ApiError::invalid_field(field, Constraint::Unsupported, rule)
}

fn template_failure(field: &str, error: &TemplateError) -> ApiError {
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
    ApiError::invalid_field(field, constraint, error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::error::Dialect;

    #[test]
    fn a_template_is_told_the_day_unless_the_client_says_another() {
        let name = || "date_string".to_owned();
        let other = vec![(name(), TemplateSetting::Word("1".to_owned()))];
        assert_eq!(with_today(other.clone()), other);
        let settings = with_today(Vec::new());
        let [(its_name, TemplateSetting::Word(day))] = &settings[..] else {
            panic!("{settings:?}");
        };
        assert_eq!((its_name, day.len()), (&name(), "26 Jul 2024".len()));
        assert_eq!(with_today(settings.clone()), settings);
    }

    #[test]
    fn a_word_that_no_piece_decides_is_refused_and_its_field_named() {
        let error = Encoded::of("text", Err(Undivided), "prompt").err().unwrap();
        let body = error.body(Dialect::OpenAi).to_string();
        assert!(body.contains("prompt"), "{body}");
        assert!(body.contains(&Undivided.to_string()), "{body}");
        assert!(body.contains("invalid_request_error"), "{body}");
    }
}
