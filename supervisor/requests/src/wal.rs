//! Write-ahead log of the journal: the state that another supervisor needs to continue every request after a crash or
//! an upgrade.
//!
//! ```text
//! page 0            previous segment        present segment
//! ┌───────────────┬───────────────────────┬──────────────────────────────────────────┐
//! │ magic, start ─┼─► entries             │ every live request, then new entries     │
//! └───────────────┴───────────────────────┴──────────────────────────────────────────┘
//! ```
//!
//! The log is a memfd: memory as private as the process's own, which outlives the process as long as a process or
//! systemd holds its descriptor (`supervisor/engine/src/handoff.rs`). An entry is written before the client can read the
//! event. The loss of a drawn token that no client has seen is harmless, because the replay draws the same token again.
//!
//! A segment above its size limit is followed by another one, which begins with all live requests. The previous segment
//! is kept for recently ended requests, and older memory is freed. An upgrade hands over a log that begins with its
//! last segment: an ended request without a reader here has none in the next supervisor.
//!
//! An entry that a kill truncated is the last one, and is ignored. Tokens without their requested log probabilities are
//! ignored as well.

#![expect(
    clippy::disallowed_methods,
    reason = "another process reads the clock of the machine"
)]

mod clock;
mod ended;
mod reading;

pub use self::clock::Clock;
use self::ended::Ended;
pub use self::reading::{Ending, read};
use crate::drafts::Drafts;
use crate::record::{NewRequest, OnFault, Record, StreamEvent};
use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, memfd_create};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io;
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tracing::error;
use worker_orcd_ipc::frame::write_frame;
use worker_orcd_ipc::{Logprobs, RequestId, SealedPages, TokenId, encode};

const MAGIC: [u8; 8] = *b"orcdwalb";

/// Size of the header, which contains the offset of the first entry.
const HEADER_BYTES: u64 = 4096;

const SEGMENT_BYTES: u64 = 4 << 20;

/// Capacity of the entry buffer that is kept between writes. A long answer may need more.
const BUFFER_BYTES: usize = 64 << 10;

/// Maximum number of log probabilities in one entry.
const LOGPROBS_AT_ONCE: usize = 4096;

/// Time after its end for which a request is still restored.
const RETOLD_FOR: Duration = Duration::from_secs(60);

/// Number of supervisor crashes after which a request is not restored, because it may be their cause.
const MAX_CRASHES: u8 = 3;

#[derive(Debug, Serialize, Deserialize)]
enum Entry {
    /// A request with all its tokens so far. It replaces earlier entries of the request.
    Accepted(Box<Restored>),
    /// First step of a request on a child, with the number of prompt tokens in the prefix cache.
    Began {
        request: RequestId,
        cached_tokens: u32,
    },
    /// Next token of each of these requests, log probabilities if they are requested, and drafts of the same steps.
    Drawn(
        Vec<(RequestId, TokenId)>,
        Vec<(RequestId, Logprobs)>,
        Vec<(RequestId, Drafts)>,
    ),
    /// Log probabilities of the next tokens of a prompt.
    Scored(RequestId, Vec<Logprobs>),
    /// End of a request. `end` is `None` if it has no reader.
    Ended {
        request: RequestId,
        end: Option<StreamEvent>,
        at_ms: u64,
    },
}

/// A request as restored from the log.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Restored {
    pub id: RequestId,
    /// Parameters. The log has no embedding requests: their clients lose the answer with the supervisor.
    pub request: NewRequest,
    pub generated: Vec<TokenId>,
    /// `None` before a child began the request.
    pub cached_tokens: Option<u32>,
    pub drafts: Drafts,
    /// Log probabilities of each token in `generated`, if they are requested. They are separate entries, because those
    /// of a long answer exceed one frame.
    pub sent_logprobs: Vec<Logprobs>,
    /// Log probabilities of all prompt tokens but the first, if they are requested. Separate entries as well.
    pub sent_prompt: Vec<Logprobs>,
    pub on_fault: OnFault,
    /// Unix time in milliseconds.
    pub accepted_at_ms: u64,
    /// Unix time in milliseconds.
    pub deadline_ms: Option<u64>,
    /// Unix time in milliseconds. `None` if the first token came after the beginning of the segment.
    pub first_token_at_ms: Option<u64>,
    /// Number of children that died while they had the request.
    pub recoveries: u32,
    /// Number of supervisors that crashed while they had the request.
    pub crashes: u8,
    /// Sealed pages of the last child, as of the beginning of the segment.
    pub sealed: Option<SealedPages>,
    pub end: Option<StreamEvent>,
}

impl Deref for Restored {
    type Target = NewRequest;

    fn deref(&self) -> &NewRequest {
        &self.request
    }
}

impl Restored {
    /// Maximum number of tokens of prompt and answer.
    pub fn most_tokens(&self) -> u64 {
        self.prompt.len() as u64 + u64::from(self.params.max_tokens)
    }

    /// Removes tokens without their log probabilities, which a kill truncated. The replay draws the same tokens again.
    fn forget_unsure(&mut self) {
        let known = self.sent_logprobs.len();
        if self.params.logprobs.is_some() && self.end.is_none() && known < self.generated.len() {
            self.generated.truncate(known);
            self.drafts.cut(known);
            // The pages may hold more tokens than remain.
            self.sealed = None;
        }
    }
}

#[derive(Debug)]
pub struct Wal {
    file: File,
    segment: u64,
    end: u64,
    /// Length at which the next segment begins, in bytes.
    segment_limit: u64,
    drawn: Vec<(RequestId, TokenId)>,
    logprobs: Vec<(RequestId, Logprobs)>,
    drafts: Vec<(RequestId, Drafts)>,
    buffer: Vec<u8>,
    still_read: Ended,
    clock: Clock,
}

impl Wal {
    /// Creates an empty log.
    ///
    /// # Errors
    /// The kernel has no memory or no descriptor for it.
    pub fn create(now: Instant) -> io::Result<Self> {
        let file = File::from(memfd_create("worker-orcd-wal", MemfdFlags::CLOEXEC)?);
        file.write_all_at(&MAGIC, 0)?;
        file.write_all_at(&HEADER_BYTES.to_le_bytes(), MAGIC.len() as u64)?;
        Ok(Self {
            file,
            segment: HEADER_BYTES,
            end: HEADER_BYTES,
            segment_limit: SEGMENT_BYTES,
            drawn: Vec::new(),
            logprobs: Vec::new(),
            drafts: Vec::new(),
            buffer: Vec::new(),
            still_read: Ended::default(),
            clock: Clock::at(now),
        })
    }

    pub fn accepted(&mut self, record: &Record) {
        self.note_request(record, None);
    }

    pub fn began(&mut self, request: RequestId, cached_tokens: u32) {
        self.note(&Entry::Began {
            request,
            cached_tokens,
        });
    }

    pub fn scored(&mut self, request: RequestId, logprobs: &[Logprobs]) {
        self.note(&Entry::Scored(request, logprobs.to_vec()));
    }

    pub fn drawn(&mut self, request: RequestId, token: TokenId, logprobs: Option<&Logprobs>) {
        self.drawn.push((request, token));
        self.logprobs
            .extend(logprobs.map(|logprobs| (request, logprobs.clone())));
    }

    /// Notes drafts, in the same entry as the tokens of [`drawn`](Self::drawn).
    pub fn drafted(&mut self, request: RequestId, drafts: Drafts) {
        self.drafts.push((request, drafts));
    }

    /// Notes the end of a request. `end` is `None` if it has no reader. Otherwise later segments repeat it until the
    /// reader is gone.
    pub fn ended(&mut self, record: &Arc<Record>, end: Option<StreamEvent>, now: Instant) {
        let at_ms = self.clock.unix_ms(now);
        self.note(&Entry::Ended {
            request: record.id,
            end: end.clone(),
            at_ms,
        });
        if let Some(end) = end {
            self.still_read.add(record, end);
        }
    }

    /// Writes pending entries. `live` returns all requests; it is called only if a new segment begins.
    ///
    /// # Errors
    /// The kernel has no memory for the log, which ends there.
    pub fn flush<'a, L>(&mut self, live: impl FnOnce() -> L) -> io::Result<()>
    where
        L: Iterator<Item = (&'a Record, Option<&'a SealedPages>)>,
    {
        self.note_drawn();
        if self.buffer.is_empty() {
            return Ok(());
        }
        self.write()?;
        if self.end - self.segment > self.segment_limit {
            self.begin_segment(live())?;
        }
        Ok(())
    }

    /// Begins a segment with all live requests.
    ///
    /// # Errors
    /// See [`flush`](Self::flush).
    pub fn begin_segment<'a>(
        &mut self,
        live: impl Iterator<Item = (&'a Record, Option<&'a SealedPages>)>,
    ) -> io::Result<()> {
        self.note_drawn();
        self.write()?;
        let before = std::mem::replace(&mut self.segment, self.end);
        for (record, sealed) in live {
            self.note_request(record, sealed);
            self.write()?;
        }
        let now = self.clock.unix_ms(Instant::now());
        for (record, end) in self.still_read.wanted() {
            self.note_request(&record, None);
            self.note(&Entry::Ended {
                request: record.id,
                end: Some(end),
                at_ms: now,
            });
            self.write()?;
        }
        let image = self.end - self.segment;
        self.segment_limit = SEGMENT_BYTES.max(2 * image);
        self.begin_at(before)
    }

    /// Closes the log for an upgrade, in which the next supervisor takes over every connection. The log then contains
    /// the live requests and the ended requests that still have a reader.
    ///
    /// # Errors
    /// See [`flush`](Self::flush).
    pub fn finish<'a>(
        &mut self,
        live: impl Iterator<Item = (&'a Record, Option<&'a SealedPages>)>,
    ) -> io::Result<()> {
        self.begin_segment(live)?;
        self.begin_at(self.segment)
    }

    /// Makes the log begin at byte `start`, and frees the memory before it.
    fn begin_at(&self, start: u64) -> io::Result<()> {
        self.file
            .write_all_at(&start.to_le_bytes(), MAGIC.len() as u64)?;
        let given_back = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        if start > HEADER_BYTES {
            fallocate(&self.file, given_back, HEADER_BYTES, start - HEADER_BYTES)?;
        }
        Ok(())
    }

    /// Adds a request. An embedding request is skipped, because another supervisor has no partial answer to resume.
    fn note_request(&mut self, record: &Record, sealed: Option<&SealedPages>) {
        if record.embeds.is_some() {
            return;
        }
        self.note(&Entry::Accepted(Box::new(self.snapshot(record, sealed))));
        let progress = record.progress.lock();
        for some in progress.prompt_logprobs().chunks(LOGPROBS_AT_ONCE) {
            self.note(&Entry::Scored(record.id, some.to_vec()));
        }
        for some in progress.logprobs().chunks(LOGPROBS_AT_ONCE) {
            let some = some.iter().map(|it| (record.id, it.clone()));
            self.note(&Entry::Drawn(Vec::new(), some.collect(), Vec::new()));
        }
    }

    fn note_drawn(&mut self) {
        if !self.drawn.is_empty() {
            let drawn = std::mem::take(&mut self.drawn);
            let logprobs = std::mem::take(&mut self.logprobs);
            let drafts = std::mem::take(&mut self.drafts);
            self.note(&Entry::Drawn(drawn, logprobs, drafts));
        }
    }

    /// Adds an entry in the order of events: after the tokens that were noted before.
    fn note(&mut self, entry: &Entry) {
        if !matches!(entry, Entry::Drawn(..)) {
            self.note_drawn();
        }
        let framed = encode(entry).map(|bytes| write_frame(&mut self.buffer, &bytes));
        if let Ok(Ok(())) = framed {
            return;
        }
        // A request that fits a command also fits a frame of the log.
        error!("wal_entry_too_large");
    }

    fn write(&mut self) -> io::Result<()> {
        self.file.write_all_at(&self.buffer, self.end)?;
        self.end += self.buffer.len() as u64;
        self.buffer.clear();
        self.buffer.shrink_to(BUFFER_BYTES);
        Ok(())
    }

    fn snapshot(&self, record: &Record, sealed: Option<&SealedPages>) -> Restored {
        let progress = record.progress.lock();
        Restored {
            id: record.id,
            request: record.request.clone(),
            generated: progress.generated().to_vec(),
            cached_tokens: progress.cached_tokens(),
            drafts: progress.drafts(),
            sent_logprobs: Vec::new(),
            sent_prompt: Vec::new(),
            on_fault: record.on_fault,
            accepted_at_ms: self.clock.unix_ms(progress.accepted_at()),
            deadline_ms: record.deadline.map(|at| self.clock.unix_ms(at)),
            first_token_at_ms: progress.first_token_at().map(|at| self.clock.unix_ms(at)),
            recoveries: progress.recoveries(),
            crashes: record.crashes,
            sealed: sealed.cloned(),
            end: None,
        }
    }
}

impl AsFd for Wal {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

#[cfg(test)]
mod tests;
