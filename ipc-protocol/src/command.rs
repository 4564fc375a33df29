//! Commands from the supervisor to a child.

use crate::fd_passing::WeightsManifest;
use crate::ids::{ClientId, Generation, RequestId, TokenId};
use crate::kv::{KvReaders, KvSource, SealedPage, SealedPages};
use crate::logprobs::PromptLogprobs;
use crate::params::GenerationParams;
use crate::pooling::Pooling;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;

/// Command from the supervisor to a child. Each variant lists the states in which it is legal. A child that receives one in
/// another state ([`Command::check`]) exits with [`FaultKind::Protocol`](crate::FaultKind::Protocol).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Command {
    /// Load the model. The first command, sent once, after the supervisor accepted the child's
    /// [`Hello`](crate::Event::Hello).
    Load(LoadOrder),
    /// Compute a request. Legal after [`Ready`](crate::Event::Ready); for a standby, after `Promote`.
    Submit(Box<Submission>),
    /// Stop computing a request. Legal while loading and serving. An unknown or ended request is not an error.
    Cancel { request: RequestId },
    /// Drop all requests, send [`Goodbye`](crate::Event::Goodbye) and exit with code 0. Always legal. The supervisor waits
    /// for running requests before it sends this command.
    Shutdown,
    /// Allocate the remaining memory and serve. Sent once to a child that was loaded as [`Role::Standby`], after its
    /// [`Ready`](crate::Event::Ready). `traces`: whether to write the trace of its load order. It is `false` if the
    /// trace has stopped since that order, because the trace file must have no gap.
    Promote { traces: bool },
    /// Copy full pages that the child of [`adopts_from`](LoadOrder::adopts_from) has sealed, before their requests arrive.
    /// Legal for a standby that reports [`copies_ahead`](crate::ReadyReport::copies_ahead).
    CopyAhead { pages: Vec<SealedPage> },
    /// Allow adoption of pages of this child of another device. Legal while serving. The descriptor of its KV cache is in
    /// the second fd socket.
    Attach(KvSource),
    /// Unmap the KV cache of this child; no more of its pages will be adopted. Legal while serving.
    ReleaseKv { child: Generation },
}

/// Role of a child.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Role {
    /// The child computes requests.
    Active,
    /// The child has loaded as much as memory allows, and waits for [`Command::Promote`].
    Standby,
}

/// State of the protocol on the child's side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConversationState {
    AwaitingLoad,
    Loading,
    StandingBy,
    Serving,
}

impl Command {
    /// Checks that the command is legal in this state.
    ///
    /// # Errors
    /// The reason, for [`Fault::Protocol`](crate::Fault::Protocol).
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
            (Self::Load(_), _) => Err("a second load command"),
            (Self::Submit(_), _) => Err("a request before the model is ready"),
            (Self::Cancel { .. }, _) => Err("a cancellation before any request can exist"),
            (Self::Attach(_), _) => Err("a KV cache before the model is ready"),
            (Self::ReleaseKv { .. }, _) => Err("a release of a KV cache before the model is ready"),
            (Self::CopyAhead { .. }, _) => Err("pages for a child that is not a standby"),
            (Self::Promote { .. }, _) => Err("a promotion of a child that is not a standby"),
        }
    }
}

/// Parameters of a load: model, device, and limits on memory and work.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoadOrder {
    /// Path of a GGUF file that the child can read, or of the first of [several](mod@crate::model_parts). The supervisor
    /// never opens the files.
    pub model_path: String,
    pub model_file: ModelFile,
    /// Path of the GGUF file of a draft model, which the child reads at every load. The first child refuses one that cannot
    /// draft for the model; a child with a handed-over model file serves without it.
    pub draft_model: Option<String>,
    /// Manifest of the weights of an earlier child. The descriptor of their memory is in the fd socket
    /// ([`FdKind::Weights`](crate::FdKind::Weights)). `None`: the child reads the file and sends the descriptor of its
    /// weights before `Ready`.
    pub weights: Option<WeightsManifest>,
    /// Children that copy pages of this child's KV cache. Unless `None`, the cache is allocated in memory that outlives the
    /// child, its descriptor is sent before `Ready`, and pages are [sealed](crate::kv). A device without such memory sends
    /// no descriptor. Requires `prefix_cache`, which finds adopted pages.
    pub kv_readers: KvReaders,
    /// KV cache from which sealed pages may be adopted.
    pub adopts_from: Option<KvSource>,
    /// The fd socket carries a second one, through which KV caches of other devices' children arrive while the child serves
    /// ([`FdKind::SecondSocket`](crate::FdKind::SecondSocket)).
    pub has_second_fd_socket: bool,
    pub device: DeviceSelector,
    /// Size of the KV cache in bytes. `None`: the child takes the free memory of its device.
    pub kv_cache_bytes: Option<u64>,
    /// Thousandths of the device's memory for weights, KV cache and scratch together. Only for a CUDA device without
    /// `kv_cache_bytes`.
    pub memory_permille: u16,
    /// Maximum number of sequences that are decoded in one step.
    pub max_running: u32,
    /// Maximum of prompt plus completion, in tokens. `None`: the model's context length.
    pub max_sequence_tokens: Option<u32>,
    /// Maximum number of prompt tokens in one step, over all sequences.
    pub prefill_chunk_tokens: u32,
    /// Time budget of a step that decodes and has prompt tokens, in microseconds. `None`: the child derives it from the time
    /// of steps that only decode.
    pub step_budget_us: Option<u32>,
    /// Threads of the compute pool. Only for the CPU device. `None`: all cores.
    pub threads: Option<u32>,
    /// Whether requests share the KV pages of equal prefixes.
    pub prefix_cache: bool,
    pub speculation: Speculation,
    pub trace: Option<TraceOrder>,
    pub role: Role,
}

/// Source of the drafts of speculative decoding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Speculation {
    /// No drafts.
    Off,
    /// Earlier text of the same request.
    Text,
    /// Earlier text, and a draft model where it offers nothing.
    Auto,
}

/// Source of the model file, or of all [its files](mod@crate::model_parts).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ModelFile {
    /// The child opens the path and sends the descriptors ([`FdKind::ModelFile`](crate::FdKind::ModelFile)) before `Ready`.
    AtPath,
    /// The fd socket carries the descriptors of an earlier child, in order. The path may refer to another file since then.
    HandedOver { parts: u16 },
}

/// Destination of the logits trace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceOrder {
    pub path: String,
    /// Number of values of each row that are written.
    pub first_values: u32,
}

/// Device of a child.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum DeviceSelector {
    Cpu,
    /// Ordinal in the enumeration of NVIDIA's driver.
    Cuda(u32),
}

/// Syntax of the command line: `cpu`, `cuda:N`.
impl fmt::Display for DeviceSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(ordinal) => write!(f, "cuda:{ordinal}"),
        }
    }
}

/// Request to a child. `generated` is empty for a new request. For a request of a dead child it has the accepted tokens, and
/// generation continues after them with the same result as without the death.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Submission {
    pub request: RequestId,
    /// Client for fair scheduling: prompts of different clients get equal shares of the steps.
    pub client: ClientId,
    pub prompt: Vec<TokenId>,
    pub generated: Vec<TokenId>,
    /// Pages that another child has sealed. They are copied instead of computed, if their checksums match.
    pub sealed: Option<SealedPages>,
    pub params: Arc<GenerationParams>,
    /// Report log probabilities of the prompt's tokens, before the first generated token.
    pub prompt_logprobs: Option<PromptLogprobs>,
    /// Compute the prompt's embedding or score, and no token. The result is
    /// [`FinishReason::Embedded`](crate::FinishReason::Embedded).
    pub embeds: Option<Pooling>,
}
