//! The child's side of the connection, over any `Read` and `Write`.
//!
//! ```text
//!              ┌──────────────┐ commands, bounded ┌───────────────┐
//!   socket ──► │ reader thread├──────────────────►│ engine thread │ (the caller's)
//!              └──────┬───────┘                   └───┬───────┬───┘
//!     EOF: exit       │ Shutdown: Goodbye, exit       │       │ after each step
//!              ┌──────▼──────────────────────┐        │   ┌───▼────┐
//!   socket ◄── │ Link (one frame at a time)  │◄───────┘   │ Status │
//!              └──────▲──────────────────────┘            └───┬────┘
//!                     │            each beat                  │
//!              ┌──────┴──────────┐                            │
//!              │ heartbeat thread│◄───────────────────────────┘
//!              └─────────────────┘
//! ```
//!
//! States: awaiting `Load` → loading → (standby →) serving. The reader checks that each command is legal in the state;
//! any other ends the child with `FaultKind::Protocol`. The reader itself ends the process when the socket closes or a
//! shutdown is ordered, so that neither waits for the end of a step or a load: the operating system frees the
//! resources.
//!
//! One more thread ([`watch`]) observes long steps and records notes for the crash report.

mod heartbeat;
mod link;
mod pacer;
mod reader;
mod status;
mod step_loop;
mod step_times;
mod watch;

pub use link::Link;

use crate::device::{ARENA_LAYOUT, Executor};
use crate::fd_socket::FdSocket;
use crate::flight_recorder::FlightRecorder;
use crate::pooling::RankHead;
use reader::Conversation;
use status::{Doing, Status};
use std::io::Read;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::thread;
use worker_orcd_ipc::{
    ChildHello, Event, Fault, Generation, LoadOrder, ModelFacts, ModelIdentity, SamplingAdvice,
    TokenId, TokenizerFacts, WeightsManifest,
};

/// Maximum queued commands. The supervisor bounds its submissions far below this; a peer that fills the queue violates
/// the protocol.
const COMMAND_QUEUE: usize = 8192;

/// A loaded model.
#[expect(
    missing_debug_implementations,
    reason = "an executor has nothing to show"
)]
pub struct Loaded {
    pub executor: Box<dyn Executor>,
    pub model: ModelFacts,
    pub identity: ModelIdentity,
    pub weights: WeightsManifest,
    pub tokenizer: TokenizerFacts,
    pub sampling: SamplingAdvice,
    /// Tokens that are never sampled.
    pub suppressed: Vec<TokenId>,
    /// Classification head of a reranker.
    pub rank_head: Option<RankHead>,
    /// Maximum tokens of one request, prompt plus completion.
    pub max_sequence_tokens: u32,
    /// The ordered draft model, or the reason for which the child serves without it.
    pub draft: Option<Result<LoadedDraft, String>>,
    /// Child with a KV cache from which sealed pages may be adopted.
    pub adopts_from: Option<Generation>,
    /// Socket over which KV caches of other devices' children arrive.
    pub late_fd_socket: Option<FdSocket>,
}

/// A loaded draft model.
#[expect(
    missing_debug_implementations,
    reason = "an executor has nothing to show"
)]
pub struct LoadedDraft {
    pub executor: Box<dyn Executor>,
    pub name: String,
    pub vocab_size: u32,
    /// Maximum tokens of a sequence.
    pub max_sequence_tokens: u32,
}

/// Callback during a load: bytes done, total bytes.
pub type Progress<'a> = &'a (dyn Fn(u64, u64) + Sync);

/// The `Hello` of this process, with the gaps in its confinement.
#[must_use]
pub fn hello(features: &[&str], confinement_gaps: Vec<String>) -> ChildHello {
    ChildHello {
        pid: std::process::id(),
        build: env!("CARGO_PKG_VERSION").to_owned(),
        features: features.iter().map(|&feature| feature.to_owned()).collect(),
        arena_layout: ARENA_LAYOUT,
        confinement_gaps,
    }
}

/// Sends `Hello`, loads the ordered model, and serves until the connection ends. Returns only if the link's
/// [`ExitHook`](crate::exit::ExitHook) does.
pub fn serve<R, L>(
    reader: R,
    link: Arc<Link>,
    hello: ChildHello,
    recorder: FlightRecorder,
    loader: L,
) where
    R: Read + Send + 'static,
    L: FnOnce(&LoadOrder, Progress<'_>) -> Result<Loaded, Fault>,
{
    let (status, conversation) = (Arc::new(Status::new()), Arc::new(Conversation::new()));
    let (sender, commands) = sync_channel(COMMAND_QUEUE);
    link.send(Event::Hello(hello));
    let threads = [
        {
            let (link, conversation) = (Arc::clone(&link), Arc::clone(&conversation));
            spawn("reader", move || {
                reader::read_commands(reader, &link, &conversation, &sender)
            })
        },
        {
            let (link, status) = (Arc::clone(&link), Arc::clone(&status));
            spawn("heartbeat", move || heartbeat::beat(&link, &status))
        },
    ];
    for thread in threads {
        if let Err(error) = thread {
            let message = format!("a thread cannot be started: {error}");
            return link.last_words(Fault::Io { message });
        }
    }
    if let Err(fault) = step_loop::run(&link, &status, &conversation, &commands, recorder, loader) {
        link.last_words(fault);
    }
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    thread::Builder::new()
        .name(name.to_owned())
        .spawn(run)
        .map(drop)
}

#[cfg(test)]
mod tests;
