//! A request: its parameters and, under a lock, its progress.

use crate::drafts::Drafts;
use crate::error_code::ErrorCode;
use crate::logprob_memory::LogprobReservation;
use crate::logprobs::Listed;
use crate::progress::Progress;
use crate::wal::{Clock, Restored};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::ops::Deref;
use std::sync::Arc;
use std::time::{Duration, Instant};
use worker_orcd_ipc::{
    ClientId, GenerationParams, Pooling, PromptLogprobs, RequestId, Submission, TokenId,
};

/// Request from HTTP to the engine. The record, the write-ahead log and the child use it unchanged.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct NewRequest {
    /// Unique id among live requests.
    pub job_id: String,
    /// Answer that this request is a part of. The answer is kept until all its parts have ended. `None`: the request is
    /// an answer of its own.
    pub part_of: Option<String>,
    /// Client that admission and scheduling count the request for.
    pub client: ClientId,
    pub prompt: Vec<TokenId>,
    /// Parameters that the child gets too.
    pub params: Arc<GenerationParams>,
    pub stop: Vec<String>,
    /// Special tokens that appear as text in this answer.
    pub shown: Vec<TokenId>,
    /// Echo of the prompt before the answer, with its log probabilities if they are requested. The value is the number
    /// of bytes that the tokenizer put before the prompt, which are not echoed.
    pub echo: Option<u32>,
    /// Log probabilities of the prompt apart from an echo: the number of most likely tokens at each position.
    pub prompt_logprobs: Option<u8>,
    /// See [`Submission::embeds`]. `Some`: the answer is a vector without tokens.
    pub embeds: Option<Pooling>,
    /// Time from acceptance to the end. `None`: no limit.
    pub timeout: Option<Duration>,
    /// Reaction to a child's death. `None`: the default of the engine.
    pub on_fault: Option<OnFault>,
    /// Response format of the answer, in the encoding of the HTTP layer. This crate does not read it.
    pub format: String,
}

impl NewRequest {
    /// Number of most likely tokens that a child reports for each token of the prompt. `None`: it reports none, and no
    /// log probabilities of the prompt.
    pub fn prompt_top(&self) -> Option<u8> {
        self.echo
            .and(self.params.logprobs)
            .max(self.prompt_logprobs)
    }
}

/// Reaction of a running request to its child's death.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum OnFault {
    /// The request continues on the next child, after the tokens that it has.
    #[default]
    Resume,
    /// The request ends with one retriable error.
    Fail,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum StreamEvent {
    Text(Piece),
    /// Successful end. No event follows.
    Finished(Completion),
    /// Vector of an embedding request. No event follows.
    Embedded(Embedding),
    /// Failed end. No event follows.
    Failed(Failure),
}

/// Text that one or more tokens added. Tokens without text yield no piece.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Piece {
    /// Complete characters.
    pub text: String,
    /// Index of the last token that contributed, counted from 0.
    pub index: u32,
    /// Number of pieces of this answer before this one.
    pub number: u32,
    /// The piece is the echoed prompt.
    pub echoes: bool,
    /// Tokens listed with the piece, if log probabilities are requested. The write-ahead log has no pieces, hence no
    /// such lists.
    #[serde(skip)]
    pub logprobs: Option<Box<Listed>>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Completion {
    pub stop_reason: StopReason,
    pub stop_sequence: Option<String>,
    pub tokens_in: u32,
    /// Number of tokens in `tokens_in` that were in the prefix cache of the first child.
    pub cached_tokens: u32,
    /// Number of generated tokens, including those without text, such as the end-of-generation token.
    pub tokens_out: u32,
    /// Drafts of these tokens. Unlike the tokens, they depend on the load and on deaths.
    pub drafts: Drafts,
    /// Time from acceptance to the first step. `None` if no child reported it.
    pub queued_for: Option<Duration>,
    /// Time from acceptance to the first token: queueing and prompt.
    pub first_token_after: Duration,
    /// Time from the first token to the end.
    pub decode_time: Duration,
    /// Number of children that died while they had the request.
    pub recoveries: u32,
}

impl Completion {
    /// True if a limit ended the answer.
    pub fn is_cut(&self) -> bool {
        self.stop_reason == StopReason::MaxTokens
    }
}

/// Vector of a prompt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Embedding {
    /// Vector of `n_embd` values, not normalised.
    pub values: Vec<f32>,
    /// Time from acceptance to the first step. `None` if no child reported it.
    pub queued_for: Option<Duration>,
    /// Number of children that died while they had the request.
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

/// End of a request without an answer.
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

/// A live request, shared by the driver, which appends to it, and one reader.
#[derive(Debug)]
pub struct Record {
    pub id: RequestId,
    pub request: NewRequest,
    pub on_fault: OnFault,
    pub deadline: Option<Instant>,
    /// Number of supervisors that crashed while they had the request.
    pub crashes: u8,
    /// Reserved memory for log probabilities of the prompt.
    pub room: Option<LogprobReservation>,
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
        let known = request.params.logprobs.map(|_| vec![]);
        let progress = Progress::new(now, &request, known);
        let progress = progress.with_prompt(&request, vec![]);
        Self {
            id,
            on_fault: request.on_fault.unwrap_or(default_on_fault),
            // A deadline beyond the range of `Instant` means no deadline.
            deadline: request.timeout.and_then(|timeout| now.checked_add(timeout)),
            request,
            crashes: 0,
            room: None,
            progress: Mutex::new(progress),
        }
    }

    /// Creates the record of a restored request.
    pub fn restored(restored: Restored, clock: Clock) -> Self {
        let request = restored.request;
        let accepted_at = clock.instant(restored.accepted_at_ms);
        let sent = request.params.logprobs.map(|_| restored.sent_logprobs);
        let progress = Progress::new(accepted_at, &request, sent);
        let first_token_at = restored.first_token_at_ms.map(|at| clock.instant(at));
        let progress = progress
            .restored(
                restored.generated,
                first_token_at,
                restored.recoveries,
                restored.end,
            )
            .with_cached_tokens(restored.cached_tokens)
            .with_drafts(restored.drafts)
            .with_prompt(&request, restored.sent_prompt);
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

    pub fn with_room(self, room: Option<LogprobReservation>) -> Self {
        Self { room, ..self }
    }

    /// Submission for the first child, or for the next one after the tokens that the request has.
    pub fn submission(&self) -> Submission {
        let progress = self.progress.lock();
        let sent = self.prompt_top().zip(progress.scores_sent());
        Submission {
            request: self.id,
            client: self.client,
            prompt: self.prompt.clone(),
            generated: progress.generated().to_vec(),
            sealed: None,
            params: Arc::clone(&self.params),
            prompt_logprobs: sent.map(|(top, sent)| PromptLogprobs {
                top,
                reported: sent,
            }),
            embeds: self.embeds,
        }
    }

    /// Id of the answer in the API.
    pub fn answer(&self) -> &str {
        self.part_of.as_deref().unwrap_or(&self.job_id)
    }

    pub fn tokens_in(&self) -> u32 {
        u32::try_from(self.prompt.len()).unwrap_or(u32::MAX)
    }
}
