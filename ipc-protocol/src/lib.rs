//! The words that the supervisor and the GPU child exchange, and how they are framed.
//!
//! Bird's eye:
//!
//! ```text
//! Command ─┐                                        ┌─ Command
//! (down)   ├─ codec (bincode, bounded) ─ frame ─ bytes ─ frame ─ codec
//! Event  ──┘                                        └─ Event
//! (up)
//! ```
//!
//! * [`command`] is everything a supervisor can ask; [`event`] everything a child can say.
//!   Both are closed enums: a new word makes the compiler list every decision left to take.
//! * [`fault`] names what can go wrong in a child and gives each cause of death an exit code.
//! * [`frame`] cuts a byte stream into frames and never does I/O; [`codec`] is the only file
//!   that names bincode.
//! * [`encoded`] is a part of a message that is read later.
//! * [`logprobs`] is what a client may want to know of each token.
//! * [`grammar`] is what an answer may be held to; [`vocabulary`] the bytes of each token.
//! * [`pooling`] is how hidden states become an embedding.
//! * [`custody`] is what crosses the other socket, the one for descriptors; [`kv`] which pages of a KV cache a
//!   later child may find there.
//! * [`flight`] is what a child leaves behind: a ring of records in shared memory, no message.
//! * [`probe`] is the question that comes before any child.
//!
//! Deliberately absent: sockets, clocks, processes, CUDA. A version of this crate is a version
//! of the protocol: [`PROTOCOL_VERSION`] changes whenever a golden byte in `tests/golden` does.

#![forbid(unsafe_code)]
#![warn(unreachable_pub)]

pub mod codec;
pub mod command;
pub mod custody;
pub mod encoded;
pub mod event;
pub mod fault;
pub mod flight;
pub mod frame;
pub mod grammar;
pub mod ids;
pub mod kv;
pub mod logprobs;
pub mod memory;
pub mod model;
pub mod model_parts;
pub mod pooling;
pub mod probe;
pub mod thinking;
pub mod vocabulary;

pub use codec::{CodecError, decode, encode};
pub use command::{
    Command, ConversationState, DeviceSelector, LoadOrder, MAX_LOGIT_BIASES, ModelFile, Role,
    Sampling, Submission, TraceOrder,
};
pub use custody::{Article, NotAnArticle, PlacedTensor, WeightsManifest};
pub use encoded::Encoded;
pub use event::{
    Began, ChildHello, Drawn, Envelope, Event, FinishReason, Finished, HEARTBEAT_INTERVAL_MS,
    Heartbeat, Load, ReadyReport, StepReport,
};
pub use fault::{DeviceError, ExitCode, Fault, FaultKind};
pub use frame::{FrameError, FrameReader, MAX_FRAME_BYTES, PREAMBLE_BYTES, Preamble};
pub use grammar::Grammar;
pub use ids::{ClientId, Generation, RequestId, TokenId};
pub use kv::{KvReaders, KvSource, MAX_LAYER_GROUPS, SealedPage, SealedPages, Sealing};
pub use logprobs::{DrawnLogprobs, Logprobs, MAX_TOP_LOGPROBS, PromptLogprobs, Scored};
pub use memory::{MemoryBound, MemoryReport};
pub use model::{
    DeviceFacts, ModelFacts, ModelIdentity, SamplingAdvice, TokenKind, TokenizerFacts,
    TokenizerKind,
};
pub use model_parts::{MAX_MODEL_PARTS, ModelPart, model_parts, model_stem};
pub use pooling::Pooling;
pub use probe::{
    CHECK_CONFINEMENT_FLAG, CHECK_MODEL_FLAG, CHILD_NAME, COUNT_DEVICES_FLAG, DIGEST_FLAG,
    PROBE_FLAG, PROBE_LINE_BYTES,
};
pub use thinking::{MAX_CLOSING_TOKENS, ThinkingBudget};
pub use vocabulary::Vocabulary;

/// Sent in the clear in the [`Preamble`], before any bincode: two versions that cannot read
/// each other's messages can still read this and say so.
pub const PROTOCOL_VERSION: u16 = 24;
