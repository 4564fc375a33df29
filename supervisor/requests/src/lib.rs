//! The request journal: what every client was promised, and how far it got.
//!
//! ```text
//!  HTTP task                                     driver task
//!  Engine::submit ── Registry (admission) ──────► Requests ──► commands to the child
//!        │                                           │ ▲
//!  RequestStream ◄──── Record (prompt, parameters, ◄─┘ └────── tokens from the child
//!   (its own pace)      tokens so far, text to read)
//! ```
//!
//! There is no channel between a child's tokens and a client: the [`record`] is the buffer. The
//! driver adds a token under the record's lock and wakes the reader; the reader takes all that
//! is new at once. A slow reader therefore slows nobody, and what it leaves unread is bounded by
//! its own `max_tokens`. The same record is what a new child is given when the old one dies.
//!
//! * [`record`] one request, shared by both sides; [`progress`] its changing half: tokens, text
//!   and the one end; [`logprobs`] what is told of each token; [`stream`] the reader; [`registry`] who may come in ([`refusal`] who may not), [`told_prompts`] what some of them take; [`live`] the driver's
//!   side: what is with which child, what waits, and what follows when a child dies; [`violation`] what no
//!   child says of them.
//! * [`kin`] is which children compute the same bits.
//! * [`waits`] counts how long streams wait for their next
//!   token, and [`totals`] everything else.
//! * [`wal`] is the journal as another supervisor would find it, and [`orphans`] are those of its requests whose
//!   client has not come back yet.
//! * A query of death: [`scene`] is where a death met each request, [`suspicion`] what deaths say
//!   about it, [`live`]'s probation lets suspects run alone, [`fingerprint`] and [`quarantine`] keep the guilty out.
//!
//! Deliberately absent: sockets, processes, HTTP, async tasks, and the text itself in any log.

#![forbid(unsafe_code)]
#![warn(unreachable_pub)]

pub mod error_code;
pub mod fingerprint;
mod kin;
pub mod live;
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
pub mod told_prompts;
mod totals;
mod violation;
mod waits;
pub mod wal;

#[cfg(test)]
mod any_order;
#[cfg(test)]
mod bad_machine;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

pub use fingerprint::Fingerprint;
pub use kin::Kin;
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
