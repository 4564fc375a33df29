//! Events from a child to the supervisor.

use crate::counters::Counters;
use crate::encoded::Encoded;
use crate::fault::Fault;
use crate::fd_passing::WeightsManifest;
use crate::ids::{Generation, RequestId, TokenId};
use crate::kv::Sealing;
use crate::logprobs::{DrawnLogprobs, Scored};
use crate::memory::MemoryReport;
use crate::model::{DeviceFacts, ModelFacts, ModelIdentity, SamplingAdvice, TokenizerFacts};
use serde::{Deserialize, Serialize};

/// Message from a child: its generation and an event.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Envelope {
    pub generation: Generation,
    pub event: Event,
}

/// Event of a child.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Event {
    /// Identification of the child. The first event, sent once.
    Hello(ChildHello),
    /// Progress of the load, in bytes. Sent while loading, at least every [`HEARTBEAT_INTERVAL_MS`]. Only an increase of
    /// `bytes_done` extends the load deadline.
    LoadProgress { bytes_done: u64, bytes_total: u64 },
    /// The model is loaded, and requests may be sent.
    Ready(Box<ReadyReport>),
    /// Heartbeat of a thread that does not compute. Sent in every state, each [`HEARTBEAT_INTERVAL_MS`].
    Heartbeat(Heartbeat),
    /// Results of a step. Sent once the device has finished the step without an error.
    Step(StepReport),
    /// Fault of a child, which then exits with the fault's exit code.
    Fault(Fault),
    /// Answer to [`Command::Shutdown`](crate::Command::Shutdown). Exit with code 0 follows.
    Goodbye,
    /// The logits trace cannot be written; the child continues without it. Sent at most once.
    TraceStopped { message: String },
    /// The ordered draft model is out of use; the child serves without it. Sent at most once, after [`Ready`](Self::Ready).
    DraftModelStopped { message: String },
}

/// Milliseconds between two heartbeats. Each carries the age of the step in progress, so a step deadline is detected at most
/// one interval late.
pub const HEARTBEAT_INTERVAL_MS: u64 = 25;

/// Identification of a child.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChildHello {
    /// Process id. Compared with the peer credentials of the socket.
    pub pid: u32,
    /// `CARGO_PKG_VERSION` of the child.
    pub build: String,
    /// Compile-time features that change the child's behaviour, such as `fault-injection`. The supervisor refuses features
    /// that its configuration does not accept.
    pub features: Vec<String>,
    /// Version of the memory layout of weights and KV pages. Memory of another layout cannot be adopted.
    pub arena_layout: u64,
    /// Sandbox features that are not in force, each with its reason. Empty: the sandbox is complete.
    pub confinement_gaps: Vec<String>,
}

/// Properties of a loaded child.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ReadyReport {
    pub model: ModelFacts,
    pub identity: ModelIdentity,
    pub weights: WeightsManifest,
    pub tokenizer: Encoded<TokenizerFacts>,
    pub sampling: SamplingAdvice,
    pub device: DeviceFacts,
    pub memory: MemoryReport,
    /// Maximum number of sequences that are decoded in one step.
    pub max_running: u32,
    /// Maximum of prompt plus completion of one request, in tokens.
    pub max_sequence_tokens: u32,
    /// Capacity of the KV cache in tokens.
    pub kv_capacity_tokens: u64,
    /// True if the child, as a standby, copies sealed pages before their requests arrive
    /// ([`Command::CopyAhead`](crate::Command::CopyAhead)).
    pub copies_ahead: bool,
    /// Name of the draft model. `None`: none was ordered, or [`DraftModelStopped`](Event::DraftModelStopped) follows.
    pub draft_model: Option<String>,
}

/// State of a child at a heartbeat.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Heartbeat {
    /// Steps finished since the child started.
    pub steps: u64,
    /// Age of the step in progress, in milliseconds. `None` between steps.
    pub step_elapsed_ms: Option<u64>,
    /// The step takes much longer than others of its size and may hang. Reported at once, before the interval ends.
    pub step_overdue: bool,
    pub load: Load,
    pub memory: MemoryReport,
}

/// Gauges and counters of the scheduler.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Load {
    pub running: u32,
    pub waiting: u32,
    pub kv_used_tokens: u64,
    pub counters: Counters,
    /// Time budget of the next step with both decoded and prompt tokens, in microseconds. `None` before the time of
    /// decoding is measured.
    pub step_budget_us: Option<u32>,
}

/// Results of one engine step. The fields apply in their order: the last token of a request in `finished` is in `drawn`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct StepReport {
    pub step: u64,
    /// Requests that this child computes for the first time in the next step. Reported before that step.
    pub began: Vec<Began>,
    /// Log probabilities of prompt tokens.
    pub scored: Vec<Scored>,
    pub drawn: Vec<Drawn>,
    /// Drafts that this step verified, for each request that had any, in the order of `drawn`.
    pub drafted: Vec<Drafted>,
    /// Log probabilities of the tokens in `drawn` for requests with `logprobs`, in the same order.
    pub logprobs: Vec<DrawnLogprobs>,
    pub finished: Vec<Finished>,
    pub sealed: Vec<Sealing>,
}

/// A request that is computed for the first time by this child.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Began {
    pub request: RequestId,
    /// Prompt tokens with keys and values in the prefix cache.
    pub cached_tokens: u32,
}

/// Generated token. The device samples it; the supervisor receives the same value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drawn {
    pub request: RequestId,
    /// Number of earlier generated tokens of this request, over all children. The supervisor accepts only the next index.
    pub index: u32,
    pub token: TokenId,
}

/// Drafts of a request in one step. A request has at most one token more than drafts in the report. The first token needed
/// the step; each other one is a draft that was accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drafted {
    pub request: RequestId,
    pub drafts: u32,
}

/// End of a request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Finished {
    pub request: RequestId,
    pub reason: FinishReason,
}

/// Reason for the end of a request. Exactly one is reported per accepted [`Submission`].
///
/// [`Submission`]: crate::Submission
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum FinishReason {
    /// `max_tokens` or the context length was reached.
    MaxTokens,
    /// The model generated an end-of-generation token. It is in `drawn` and has no text.
    EndOfSequence,
    /// The supervisor sent [`Command::Cancel`](crate::Command::Cancel).
    Cancelled,
    /// The request does not fit into the KV cache, or the device ran out of memory for this request alone.
    OutOfMemory {
        needed_bytes: u64,
        available_bytes: u64,
    },
    /// The request is invalid: an empty prompt, a token outside the vocabulary, or a prompt longer than the context.
    Refused { message: String },
    /// The answer cannot continue under the request's grammar: it does not compile, exceeds a limit, or allows no token of the
    /// vocabulary. Earlier tokens may have been reported.
    GrammarFailed { message: String },
    /// Result of a submission with [`embeds`](crate::Submission::embeds): the pooled hidden state after the final norm,
    /// `n_embd` finite values, not normalised; with [`Pooling::Rank`](crate::Pooling::Rank) one score from 0 to 1.
    Embedded { values: Vec<f32> },
}
