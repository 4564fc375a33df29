//! One request: what was asked, and (behind a lock) how far it got.

use crate::error_code::ErrorCode;
use crate::logprobs::Listed;
use crate::progress::Progress;
use crate::told_prompts::ToldRoom;
use crate::wal::{Clock, Restored};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::ops::Deref;
use std::time::{Duration, Instant};
use worker_orcd_ipc::{
    ClientId, Grammar, Pooling, PromptLogprobs, RequestId, Sampling, Submission, ThinkingBudget,
    TokenId,
};

/// A request as HTTP hands it to the engine. The record, the write-ahead log and the child get it from here.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NewRequest {
    /// Unique among live requests.
    pub job_id: String,
    /// The answer that this is a part of, which is kept until all of its parts have ended; `None` where it is
    /// an answer of its own.
    pub part_of: Option<String>,
    /// The client whose share of the worker it uses.
    pub client: ClientId,
    pub prompt: Vec<TokenId>,
    pub sampling: Sampling,
    pub max_tokens: u32,
    pub stop: Vec<String>,
    pub ignore_eos: bool,
    /// Special tokens that are text in this answer.
    pub shown: Vec<TokenId>,
    /// As [`Submission::logprobs`].
    pub logprobs: Option<u8>,
    /// The answer begins with the prompt, but for so many bytes with which a tokenizer began it, and with its log
    /// probabilities where any are wanted.
    pub echo: Option<u32>,
    /// As [`Submission::grammar`].
    pub grammar: Option<Box<Grammar>>,
    /// As [`Submission::logit_bias`].
    pub logit_bias: Vec<(TokenId, f32)>,
    /// As [`Submission::thinking`].
    pub thinking: Option<Box<ThinkingBudget>>,
    /// As [`Submission::embeds`]: a vector is wanted, and no token.
    pub embeds: Option<Pooling>,
    /// Time from acceptance to the end; `None` means as long as it takes.
    pub timeout: Option<Duration>,
    /// `None` means as the engine is set.
    pub on_fault: Option<OnFault>,
    /// How its answer is told, in the words of whoever tells it; nothing here reads them.
    pub presentation: String,
}

/// The fate of a running request whose child dies.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum OnFault {
    /// The request goes on with the next child, behind the tokens it has.
    #[default]
    Resume,
    /// The request ends with one retriable error.
    Fail,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum StreamEvent {
    Text(Piece),
    /// Nothing follows.
    Finished(Completion),
    /// The answer to who wants a vector. Nothing follows.
    Embedded(Embedding),
    /// Nothing follows.
    Failed(Failure),
}

/// Text that a token added; tokens without text of their own are skipped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Piece {
    /// Whole characters.
    pub text: String,
    /// Index of the last token that contributed, counted from 0.
    pub index: u32,
    /// Pieces of this answer before it.
    pub number: u32,
    /// It is the prompt, and no token's text.
    pub echoes: bool,
    /// Where the request wants log probabilities. The log of the journal has no pieces.
    #[serde(skip)]
    pub logprobs: Option<Box<Listed>>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Completion {
    pub stop_reason: StopReason,
    pub stop_sequence: Option<String>,
    pub tokens_in: u32,
    /// Of those in `tokens_in`, the ones whose keys and values its first child had already.
    pub cached_tokens: u32,
    /// Every generated token, also those without text, such as the one that ended it.
    pub tokens_out: u32,
    /// Time from acceptance to its first step; `None` where no child said.
    pub queued_for: Option<Duration>,
    /// Time from acceptance to the first token: waiting and the prompt.
    pub first_token_after: Duration,
    /// Time from the first token to the end.
    pub decode_time: Duration,
    /// Children that died under it.
    pub recoveries: u32,
}

/// The vector of a prompt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Embedding {
    /// `[n_embd]`, of any length as a vector.
    pub values: Vec<f32>,
    /// Time from acceptance to its first step; `None` where no child said.
    pub queued_for: Option<Duration>,
    /// Children that died under it.
    pub recoveries: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, strum::VariantArray)]
pub enum StopReason {
    MaxTokens,
    Eos,
    StopSequence,
}

impl StopReason {
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::MaxTokens => "MAX_TOKENS",
            Self::Eos => "EOS",
            Self::StopSequence => "STOP_SEQUENCE",
        }
    }
}

/// An end that is not an answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    pub code: ErrorCode,
    pub message: String,
    pub retriable: bool,
}

impl Failure {
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            retriable: code.is_retriable(),
        }
    }
}

/// Shared by the driver, which adds to it, and one reader.
#[derive(Debug)]
pub struct Record {
    pub id: RequestId,
    pub request: NewRequest,
    pub on_fault: OnFault,
    pub deadline: Option<Instant>,
    /// Supervisors that died under it.
    pub crashes: u8,
    /// For what is told of its prompt.
    pub room: Option<ToldRoom>,
    pub progress: Mutex<Progress>,
}

impl Deref for Record {
    type Target = NewRequest;

    fn deref(&self) -> &NewRequest {
        &self.request
    }
}

impl Record {
    pub fn new(
        id: RequestId,
        request: NewRequest,
        default_on_fault: OnFault,
        now: Instant,
    ) -> Self {
        let known = request.logprobs.map(|_| vec![]);
        let progress = Progress::new(now, &request.stop, &request.shown, known);
        let progress = progress.echoing(request.echo, request.prompt.len(), vec![]);
        Self {
            id,
            on_fault: request.on_fault.unwrap_or(default_on_fault),
            // A deadline past the end of time is none.
            deadline: request.timeout.and_then(|timeout| now.checked_add(timeout)),
            request,
            crashes: 0,
            room: None,
            progress: Mutex::new(progress),
        }
    }

    /// A request of the supervisor before this one.
    pub fn restored(restored: Restored, clock: Clock) -> Self {
        let request = restored.request;
        let accepted_at = clock.instant(restored.accepted_at_ms);
        let told = request.logprobs.map(|_| restored.told_logprobs);
        let progress = Progress::new(accepted_at, &request.stop, &request.shown, told);
        let first_token_at = restored.first_token_at_ms.map(|at| clock.instant(at));
        let progress = progress
            .restored(
                restored.generated,
                first_token_at,
                restored.recoveries,
                restored.end,
            )
            .with_cached_tokens(restored.cached_tokens)
            .echoing(request.echo, request.prompt.len(), restored.told_prompt);
        Self {
            id: restored.id,
            request,
            on_fault: restored.on_fault,
            deadline: restored.deadline_ms.map(|at| clock.instant(at)),
            crashes: restored.crashes,
            room: None,
            progress: Mutex::new(progress),
        }
    }

    pub fn with_room(self, room: Option<ToldRoom>) -> Self {
        Self { room, ..self }
    }

    /// The request for the first child, or for the next one behind the tokens it has.
    pub fn submission(&self) -> Submission {
        let progress = self.progress.lock();
        let told = self.logprobs.zip(progress.scores_told());
        Submission {
            request: self.id,
            client: self.client,
            prompt: self.prompt.clone(),
            generated: progress.generated().to_vec(),
            sealed: None,
            sampling: self.sampling,
            max_tokens: self.max_tokens,
            ignore_eos: self.ignore_eos,
            logprobs: self.logprobs,
            prompt_logprobs: told.map(|(top, told)| PromptLogprobs {
                top,
                reported: told,
            }),
            grammar: self.grammar.clone(),
            logit_bias: self.logit_bias.clone(),
            thinking: self.thinking.clone(),
            embeds: self.embeds,
        }
    }

    /// The name by which a client knows the answer.
    pub fn answer(&self) -> &str {
        self.part_of.as_deref().unwrap_or(&self.job_id)
    }

    pub fn tokens_in(&self) -> u32 {
        u32::try_from(self.prompt.len()).unwrap_or(u32::MAX)
    }
}
