//! Protocol between the supervisor and the GPU child: messages, their encoding, and framing.
//!
//! ```text
//! Command ─┐                                        ┌─ Command
//! (down)   ├─ codec (bincode, bounded) ─ frame ─ bytes ─ frame ─ codec
//! Event  ──┘                                        └─ Event
//! (up)
//! ```
//!
//! * [`command`]: messages to a child. [`event`]: messages from a child. Both are closed enums: after a new variant the
//!   compiler lists every decision to make about it.
//! * [`fault`]: faults, exit codes and ends of a child.
//! * [`frame`]: framing, without I/O. [`codec`]: encoding; the only file that uses bincode. [`encoded`]: fields with deferred
//!   decoding.
//! * [`model`], [`memory`], [`mod@model_parts`]: properties that a child reports, and names of split model files.
//! * [`params`], [`logprobs`], [`grammar`], [`thinking`], [`pooling`]: options of requests. [`vocabulary`]: bytes of each token.
//! * [`fd_passing`]: the socket for file descriptors. [`kv`]: pages of a KV cache that a later child may copy.
//! * [`flight`]: the flight recorder, a ring of records in shared memory.
//! * [`probe`]: commands that run the child's program without a socket.
//!
//! Deliberately absent: sockets, clocks, processes, CUDA. [`PROTOCOL_VERSION`] changes with each change of the bytes in
//! `tests/golden`.

#![forbid(unsafe_code)]
#![warn(unreachable_pub)]

pub mod codec;
pub mod command;
pub mod counters;
pub mod encoded;
pub mod event;
pub mod fault;
pub mod fd_passing;
pub mod flight;
pub mod frame;
pub mod grammar;
pub mod ids;
pub mod kv;
pub mod logprobs;
pub mod memory;
pub mod model;
pub mod model_parts;
pub mod params;
pub mod pooling;
pub mod probe;
pub mod thinking;
pub mod vocabulary;

pub use codec::{CodecError, decode, encode};
pub use command::{
    Command, ConversationState, DeviceSelector, LoadOrder, ModelFile, Role, Speculation,
    Submission, TraceOrder,
};
pub use counters::Counters;
pub use encoded::Encoded;
pub use event::{
    Began, ChildHello, Drafted, Drawn, Envelope, Event, FinishReason, Finished,
    HEARTBEAT_INTERVAL_MS, Heartbeat, Load, ReadyReport, StepReport,
};
pub use fault::{DeviceError, Exit, ExitCode, Fault, FaultKind};
pub use fd_passing::{FdKind, PlacedTensor, UnknownFdKind, WeightsManifest};
pub use frame::{FrameError, FrameReader, MAX_FRAME_BYTES, PREAMBLE_BYTES, Preamble};
pub use grammar::Grammar;
pub use ids::{ClientId, Generation, RequestId, TokenId};
pub use kv::{KvReaders, KvSource, MAX_PAGE_GROUPS, SealedPage, SealedPages, Sealing};
pub use logprobs::{DrawnLogprobs, Logprobs, MAX_TOP_LOGPROBS, PromptLogprobs, Scored};
pub use memory::{MemoryBound, MemoryReport};
pub use model::{
    DeviceFacts, ModelFacts, ModelIdentity, SamplingAdvice, TokenKind, TokenizerFacts,
    TokenizerKind,
};
pub use model_parts::{MAX_MODEL_PARTS, ModelPart, model_parts, model_stem};
pub use params::{GenerationParams, MAX_LOGIT_BIASES, Sampling};
pub use pooling::Pooling;
pub use probe::{
    CHECK_CONFINEMENT_FLAG, CHECK_MODEL_FLAG, CHILD_NAME, COUNT_DEVICES_FLAG, DIGEST_FLAG,
    PROBE_FLAG, PROBE_LINE_BYTES,
};
pub use thinking::{MAX_CLOSING_TOKENS, ThinkingBudget};
pub use vocabulary::Vocabulary;

/// Version of the protocol. The [`Preamble`] carries it outside bincode, so that peers with incompatible messages can still
/// compare it.
pub const PROTOCOL_VERSION: u16 = 32;
