//! Everything a child can say.

use crate::custody::WeightsManifest;
use crate::encoded::Encoded;
use crate::fault::Fault;
use crate::ids::{Generation, RequestId, TokenId};
use crate::kv::Sealing;
use crate::logprobs::{DrawnLogprobs, Scored};
use crate::memory::MemoryReport;
use crate::model::{DeviceFacts, ModelFacts, ModelIdentity, SamplingAdvice, TokenizerFacts};
use serde::{Deserialize, Serialize};

/// Every frame that travels up: who speaks, and what is said.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Envelope {
    pub generation: Generation,
    pub event: Event,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Event {
    /// First and once.
    Hello(ChildHello),
    /// While loading, at least every [`HEARTBEAT_INTERVAL_MS`]. A load whose `bytes_done` does
    /// not advance is what the load deadline measures.
    LoadProgress { bytes_done: u64, bytes_total: u64 },
    /// The model is loaded and requests may come.
    Ready(Box<ReadyReport>),
    /// A sign of life from a thread that does not compute, at [`HEARTBEAT_INTERVAL_MS`], in every
    /// state.
    Heartbeat(Heartbeat),
    /// Results of a step. Sent after the step, when the device has reported no error.
    Step(StepReport),
    /// The last words of a child that is about to exit with the fault's exit code.
    Fault(Fault),
    /// The answer to [`Command::Shutdown`](crate::Command::Shutdown); exit 0 follows.
    Goodbye,
    /// The logits trace cannot be written any more; the child goes on without it. Once.
    TraceStopped { message: String },
}

/// Milliseconds between two heartbeats. Each tells the age of the step in progress, so a step
/// deadline is noticed one interval late at most.
pub const HEARTBEAT_INTERVAL_MS: u64 = 25;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChildHello {
    /// Checked against the peer credentials of the socket.
    pub pid: u32,
    /// `CARGO_PKG_VERSION` of the child.
    pub build: String,
    /// Compile-time features that change what the child may do, such as `fault-injection`.
    /// The supervisor refuses any that it was not configured to accept.
    pub features: Vec<String>,
    /// A number for how weights and KV pages lie in memory: what a child with another number left is
    /// nothing to this one.
    pub arena_layout: u64,
    /// What of its confinement is not in force, in words, and why. Empty: the child is confined.
    pub confinement_gaps: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ReadyReport {
    pub model: ModelFacts,
    pub identity: ModelIdentity,
    pub weights: WeightsManifest,
    pub tokenizer: Encoded<TokenizerFacts>,
    pub sampling: SamplingAdvice,
    pub device: DeviceFacts,
    pub memory: MemoryReport,
    /// Sequences that may be decoded in one step.
    pub max_running: u32,
    /// Prompt plus completion of one request, in tokens.
    pub max_sequence_tokens: u32,
    /// KV cache, in tokens.
    pub kv_capacity_tokens: u64,
    /// As a standby it copies sealed pages before their requests come
    /// ([`Command::CopyAhead`](crate::Command::CopyAhead)).
    pub copies_ahead: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Heartbeat {
    /// Steps finished since the child started.
    pub steps: u64,
    /// Age of the step in progress; `None` between steps.
    pub step_elapsed_ms: Option<u64>,
    /// The device takes far longer for that step than for others of its size: perhaps it will not end. Told at
    /// once, ahead of the interval.
    pub step_overdue: bool,
    pub load: Load,
    pub memory: MemoryReport,
}

/// Gauges of the scheduler.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Load {
    pub running: u32,
    pub waiting: u32,
    pub kv_used_tokens: u64,
    /// Prompt tokens that did not have to be computed because of the prefix cache, since start.
    pub prefix_hit_tokens: u64,
    pub prompt_tokens: u64,
    pub generated_tokens: u64,
    /// Tokens that did not have to be computed again because their pages were adopted, since start.
    pub adopted_tokens: u64,
    /// Pages that were to be adopted and are not what they were when they were sealed, since start.
    pub changed_pages: u64,
    /// Steps that decoded and had prompt tokens, too, and how many of those, since start.
    pub mixed_steps: u64,
    pub mixed_prompt_tokens: u64,
    /// Time, in microseconds, that the next such step may take; `None` while nobody knows what decoding
    /// takes.
    pub step_budget_us: Option<u32>,
}

/// A step of the engine. Prompts come before tokens, and tokens before endings: a request that ends in this
/// step has its last token in `drawn`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct StepReport {
    pub step: u64,
    /// Requests that are in the next step, and were in none of this child's before: said ahead of it.
    pub began: Vec<Began>,
    /// Parts of prompts whose log probabilities are wanted.
    pub scored: Vec<Scored>,
    pub drawn: Vec<Drawn>,
    /// One for each of `drawn` whose request asked for it, in the same order.
    pub logprobs: Vec<DrawnLogprobs>,
    pub finished: Vec<Finished>,
    pub sealed: Vec<Sealing>,
}

/// A request that is computed for the first time by this child.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Began {
    pub request: RequestId,
    /// Tokens of its prompt whose keys and values were there already.
    pub cached_tokens: u32,
}

/// The draw of a row of a step. The device makes it, and the supervisor gets the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drawn {
    pub request: RequestId,
    /// Tokens of this request that were generated before this one, over all children. The
    /// supervisor accepts exactly the next index.
    pub index: u32,
    pub token: TokenId,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Finished {
    pub request: RequestId,
    pub reason: FinishReason,
}

/// Why a child stops working on a request. Exactly one per accepted [`Submission`].
///
/// [`Submission`]: crate::Submission
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum FinishReason {
    /// `max_tokens`, or the end of the context, was reached.
    MaxTokens,
    /// The model produced an end-of-generation token; that token is in `drawn` and has no text.
    EndOfSequence,
    Cancelled,
    /// The request can never fit the KV cache, or the device ran out of memory for it alone.
    OutOfMemory {
        needed_bytes: u64,
        available_bytes: u64,
    },
    /// The request is impossible: an empty prompt, a token outside the vocabulary, a prompt
    /// longer than the context.
    Refused {
        message: String,
    },
    /// The answer cannot go on under the request's grammar: it does not compile, exceeds a limit, or the
    /// vocabulary has no token to go on with. Tokens may have come before.
    GrammarFailed {
        message: String,
    },
    /// The answer to a submission that [`embeds`](crate::Submission::embeds): `n_embd` finite numbers behind the
    /// final norm, pooled, of any length as a vector; with [`Pooling::Rank`](crate::Pooling::Rank) one score from 0 to 1.
    Embedded {
        values: Vec<f32>,
    },
}
