//! Everything a supervisor can ask of a child.

use crate::custody::WeightsManifest;
use crate::grammar::Grammar;
use crate::ids::{ClientId, Generation, RequestId, TokenId};
use crate::kv::{KvReaders, KvSource, SealedPage, SealedPages};
use crate::logprobs::PromptLogprobs;
use crate::pooling::Pooling;
use crate::thinking::ThinkingBudget;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::RangeInclusive;

/// Commands, from the supervisor down. Each variant says when it is legal; a child that gets one at
/// another time ([`Command::check`]) ends with [`FaultKind::Protocol`](crate::FaultKind::Protocol).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Command {
    /// First and once, after the child's [`Hello`](crate::Event::Hello) was accepted.
    Load(LoadOrder),
    /// A request, after [`Ready`](crate::Event::Ready), or after `Promote` for a standby.
    Submit(Box<Submission>),
    /// Any time after `Load`; a request that is unknown or already ended is not an error.
    Cancel { request: RequestId },
    /// Any time. The child drops what it runs, says [`Goodbye`](crate::Event::Goodbye) and
    /// exits 0. Waiting for work to finish is the supervisor's business.
    Shutdown,
    /// Once, after the [`Ready`](crate::Event::Ready) of a child that was loaded as a
    /// [`Role::Standby`]: it takes the memory that it has left to others, and serves. `traces`: it writes the
    /// trace that it was ordered to; one that stopped since then must not go on behind a hole.
    Promote { traces: bool },
    /// To a standby that [`copies_ahead`](crate::ReadyReport::copies_ahead): whole pages that the child which it
    /// adopts from has sealed by now. Their requests come when it serves.
    CopyAhead { pages: Vec<SealedPage> },
    /// While it serves: pages of this child of another device may be adopted from now on. Its KV cache lies in the
    /// mailbox.
    Attach(KvSource),
    /// While it serves: nothing more of this child will be adopted, and its KV cache is let go.
    ReleaseKv { child: Generation },
}

/// The part of a child.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Role {
    /// The child serves.
    Active,
    /// The child is as ready as memory allows, and waits for [`Command::Promote`].
    Standby,
}

/// State of a conversation, as the child sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConversationState {
    AwaitingLoad,
    Loading,
    StandingBy,
    Serving,
}

impl Command {
    /// Whether the command is legal in that state.
    ///
    /// # Errors
    /// A sentence that says why it is not.
    pub fn check(&self, state: ConversationState) -> Result<(), &'static str> {
        match (self, state) {
            (Self::Load(_), ConversationState::AwaitingLoad)
            | (
                Self::Submit(_) | Self::Attach(_) | Self::ReleaseKv { .. },
                ConversationState::Serving,
            )
            | (Self::Promote { .. } | Self::CopyAhead { .. }, ConversationState::StandingBy)
            | (Self::Cancel { .. }, ConversationState::Loading | ConversationState::Serving)
            | (Self::Shutdown, _) => Ok(()),
            (Self::Load(_), _) => Err("a second order to load"),
            (Self::Submit(_), _) => Err("a request before the model is ready"),
            (Self::Cancel { .. }, _) => Err("a cancellation of what was never submitted"),
            (Self::Attach(_), _) => Err("a KV cache before the model is ready"),
            (Self::ReleaseKv { .. }, _) => Err("an end of adopting before the model is ready"),
            (Self::CopyAhead { .. }, _) => Err("pages for a child that does not stand by"),
            (Self::Promote { .. }, _) => Err("a promotion of a child that does not stand by"),
        }
    }
}

/// The order to load: which model, where, and how much of the machine may be used for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoadOrder {
    /// Path of a GGUF file, readable by the child, or of the first of [several](mod@crate::model_parts). The supervisor
    /// never opens them.
    pub model_path: String,
    pub model_file: ModelFile,
    /// Weights that an earlier child has placed, and whose memory waits on the socket for
    /// descriptors ([`Article::Weights`](crate::Article::Weights)). `None`: they are read from the
    /// file, and their memory is handed over before the child is ready.
    pub weights: Option<WeightsManifest>,
    /// The KV cache is to lie in memory that may outlive the child. It is handed over before the child is
    /// ready, and pages are [sealed](crate::kv). A device that cannot do so hands nothing over. Only with
    /// `prefix_cache`, by which adopted pages are found.
    pub kv_readers: KvReaders,
    /// The KV cache that sealed pages may be adopted from.
    pub adopts_from: Option<KvSource>,
    /// KV caches of other devices' children will come, through a socket that waits on the one for descriptors
    /// ([`Article::Mailbox`](crate::Article::Mailbox)).
    pub has_mailbox: bool,
    pub device: DeviceSelector,
    /// Bytes of KV cache; `None` lets the child take what its device can spare.
    pub kv_cache_bytes: Option<u64>,
    /// CUDA device only, without `kv_cache_bytes`: the part of the device's memory, in thousandths,
    /// that weights, KV cache and scratch may take together.
    pub memory_permille: u16,
    /// Sequences that may be decoded in one step.
    pub max_running: u32,
    /// Prompt plus completion, in tokens; `None` means the model's own context length.
    pub max_sequence_tokens: Option<u32>,
    /// Prompt tokens run in one step, over all sequences.
    pub prefill_chunk_tokens: u32,
    /// Time that a step which decodes may take with prompts in it, in microseconds. `None` lets the child
    /// follow what decoding alone takes.
    pub step_budget_us: Option<u32>,
    /// CPU device only: threads of the compute pool; `None` means all cores.
    pub threads: Option<u32>,
    /// Reuse KV pages of equal prefixes between requests.
    pub prefix_cache: bool,
    pub trace: Option<TraceOrder>,
    pub role: Role,
}

/// The file that is the model, or all [its files](mod@crate::model_parts).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ModelFile {
    /// The one at the path. The child that opens it hands it over
    /// ([`Article::ModelFile`](crate::Article::ModelFile)) before it is ready.
    AtPath,
    /// The ones that an earlier child handed over, and that wait on the socket for descriptors, in order:
    /// whatever has become of the path since.
    HandedOver { parts: u16 },
}

/// Destination of the logits trace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceOrder {
    pub path: String,
    /// Values of each row that are written; the largest also decides the size of a line.
    pub first_values: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum DeviceSelector {
    Cpu,
    /// Ordinal in NVIDIA's driver's enumeration.
    Cuda(u32),
}

/// The device as it is written on the command line.
impl fmt::Display for DeviceSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(ordinal) => write!(f, "cuda:{ordinal}"),
        }
    }
}

/// A request. `generated` is empty for a new one; when a child takes over from a dead one it holds
/// the tokens already accepted, and generation goes on behind them as if it had never stopped.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Submission {
    pub request: RequestId,
    /// Prompts of different clients get equal shares of the child's steps.
    pub client: ClientId,
    pub prompt: Vec<TokenId>,
    pub generated: Vec<TokenId>,
    /// Pages that another child has sealed and that need not be computed again, as far as they are still
    /// what they were.
    pub sealed: Option<SealedPages>,
    pub sampling: Sampling,
    /// Tokens to generate in all, `generated` included. 0: the prompt is all there is.
    pub max_tokens: u32,
    /// Go on past an end-of-generation token (`ignore_eos`, for benchmarks).
    pub ignore_eos: bool,
    /// Log probabilities of each token that is drawn, and of so many of the most likely ones, at most
    /// [`MAX_TOP_LOGPROBS`](crate::MAX_TOP_LOGPROBS).
    pub logprobs: Option<u8>,
    /// Log probabilities of the prompt's tokens, which are told before anything is drawn.
    pub prompt_logprobs: Option<PromptLogprobs>,
    /// What the answer is held to: each token is drawn from those that the grammar allows behind `generated`.
    pub grammar: Option<Box<Grammar>>,
    /// Added to the logits of these tokens, by ascending id, each id once. At most [`MAX_LOGIT_BIASES`] of
    /// them, within [`Sampling::LOGIT_BIAS`].
    pub logit_bias: Vec<(TokenId, f32)>,
    /// How long its thoughts may be; `None` lets them take what they take.
    pub thinking: Option<Box<ThinkingBudget>>,
    /// The prompt's embedding or score is wanted, and no token. Its one answer is
    /// [`FinishReason::Embedded`](crate::FinishReason::Embedded).
    pub embeds: Option<Pooling>,
}

/// Tokens of one request that have a bias, at most.
pub const MAX_LOGIT_BIASES: usize = 1024;

/// Parameters of the draw of a next token. The order is: biases, penalties, temperature, top-k, top-p,
/// min-p, draw; the definitions are in `gpu-child/src/sampler.rs`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Sampling {
    /// 0 means argmax, ties to the lowest token id.
    pub temperature: f32,
    /// 0 means off.
    pub top_k: u32,
    /// 1 means off.
    pub top_p: f32,
    /// 0 means off.
    pub min_p: f32,
    /// 1 means off; over prompt and generated tokens (CTRL, arXiv:1909.05858, section 4.1).
    pub repetition_penalty: f32,
    /// 0 means off; over generated tokens, as the OpenAI API defines it.
    pub frequency_penalty: f32,
    /// 0 means off; over generated tokens, as the OpenAI API defines it.
    pub presence_penalty: f32,
    /// Key of the counter-based generator; the counter is the token's position.
    pub seed: u64,
}

/// Ranges of what a request or a model file may ask for. A repetition penalty of 0 would be a
/// division by it: its range begins above.
impl Sampling {
    /// Argmax, nothing penalised.
    pub const GREEDY: Self = Self {
        temperature: 0.0,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        repetition_penalty: 1.0,
        frequency_penalty: 0.0,
        presence_penalty: 0.0,
        seed: 0,
    };

    pub const TEMPERATURE: RangeInclusive<f64> = 0.0..=2.0;
    pub const TOP_P: RangeInclusive<f64> = 0.0..=1.0;
    pub const MIN_P: RangeInclusive<f64> = 0.0..=1.0;
    pub const REPETITION_PENALTY: RangeInclusive<f64> = 0.0..=2.0;
    pub const FREQUENCY_PENALTY: RangeInclusive<f64> = -2.0..=2.0;
    pub const PRESENCE_PENALTY: RangeInclusive<f64> = -2.0..=2.0;
    pub const LOGIT_BIAS: RangeInclusive<f64> = -100.0..=100.0;
}

impl Default for Sampling {
    fn default() -> Self {
        Self::GREEDY
    }
}
