//! The request journal: admission, placement and replay of requests, quarantine of queries of death, and a write-ahead
//! log.
//!
//! ```text
//!  HTTP task                                     driver task
//!  Engine::submit ── Registry (admission) ──────► Requests ──► commands to the child
//!        │                                           │ ▲
//!  RequestStream ◄──── Record (prompt, parameters, ◄─┘ └────── tokens from the child
//!   (its own pace)      tokens so far, unread text)
//! ```
//!
//! No channel connects a child's tokens to a client: the [`record`] is the buffer. The driver adds a token under the
//! record's lock and wakes the reader. The reader takes all new text at once. A slow reader therefore delays no other
//! stream, and its unread text is bounded by its `max_tokens`. After a death the next child replays the request from
//! the same record.
//!
//! * [`record`]: one request, shared by driver and reader. [`progress`]: its mutable part: tokens, text and the single
//!   end. [`logprobs`]: log probabilities of its tokens. [`stream`], [`streams`]: readers of one request and of an
//!   answer of several.
//! * [`registry`]: admission control. [`refusal`]: reasons for a refused admission. [`logprob_memory`]: memory limit for
//!   log probabilities of prompts. [`error_code`]: error codes of the API.
//! * [`live`]: the driver's side: assignment to children, replay after a death, suspect scheduling. [`placement`]:
//!   choice of a child. [`prefixes`]: estimate of a child's prefix cache. [`determinism`]: determinism class of a device.
//!   [`violation`]: reports of a child that violate the protocol.
//! * [`scene`]: position of each request at a death. [`suspicion`]: evidence against one request. [`fingerprint`],
//!   [`quarantine`]: refusal of requests that killed children.
//! * [`wal`]: write-ahead log for the next supervisor. [`orphans`]: requests of an earlier supervisor that wait for
//!   their clients to reconnect.
//! * `drafts`: drafts of an answer's tokens. [`waits`]: histogram of the time between tokens. [`totals`]: counters.
//!   `testing` (feature `testing`): journal in memory for tests.
//!
//! Deliberately absent: sockets, processes, HTTP, async tasks, and prompts or answers in any log message.

#![forbid(unsafe_code)]
#![warn(unreachable_pub)]

mod determinism;
mod drafts;
pub mod error_code;
pub mod fingerprint;
pub mod live;
pub mod logprob_memory;
pub mod logprobs;
pub mod orphans;
pub mod placement;
mod prefixes;
pub mod progress;
pub mod quarantine;
pub mod record;
pub mod refusal;
pub mod registry;
pub mod scene;
pub mod stream;
pub mod streams;
mod suspicion;
mod totals;
mod violation;
mod waits;
pub mod wal;

#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;

pub use determinism::DeterminismClass;
pub use drafts::Drafts;
pub use fingerprint::Fingerprint;
pub use live::{Requests, ServedBy};
pub use logprobs::{Listed, ListedToken};
pub use progress::Skip;
pub use quarantine::Quarantined;
pub use record::{
    Completion, Embedding, Failure, NewRequest, OnFault, Piece, StopReason, StreamEvent,
};
pub use refusal::Refusal;
pub use registry::{Admitted, Registry};
pub use stream::{Abandon, Position, RequestStream};
pub use streams::Streams;
pub use violation::Violation;
pub use waits::Waits;
