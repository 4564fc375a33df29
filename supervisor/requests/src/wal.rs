//! The write-ahead log of the journal: what another supervisor needs to go on with every request, should
//! this one die or be replaced.
//!
//! ```text
//! page 0            segment before          present segment
//! ┌───────────────┬───────────────────────┬──────────────────────────────────────────┐
//! │ magic, start ─┼─► entries             │ every live request, then entries as they │
//! └───────────────┴───────────────────────┴─ come ───────────────────────────────────┘
//! ```
//!
//! It lies in a memfd, so it is memory, as private as this process's own, and outlives the process as long
//! as a process or systemd holds its descriptor (`supervisor/src/estate.rs`). An entry is written before the
//! client can read what it tells. A token that was sent and is not in it does no harm: it is drawn again,
//! and is the same.
//!
//! A segment that has grown is followed by another one, which begins with the requests that live. The
//! segment before it stays for those that have just ended, and what is older is given back. A log that an
//! upgrade hands to the next supervisor begins with its last segment, because a request that has ended and has no reader here has
//! none there. An entry
//! that a kill cut off in the middle is the last, and is ignored; so are tokens of a request whose log
//! probabilities should have come behind it.

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

const MAGIC: [u8; 8] = *b"orcdwal6";

/// The first page tells where to begin.
const HEADER_BYTES: u64 = 4096;

const SEGMENT_BYTES: u64 = 4 << 20;

/// Memory that is kept for the next entries. Those of a long answer are more.
const BUFFER_BYTES: usize = 64 << 10;

/// Log probabilities of an answer that are in one entry, at most.
const LOGPROBS_AT_ONCE: usize = 4096;

/// An ended request is told again this long.
const RETOLD_FOR: Duration = Duration::from_secs(60);

/// A request that was there in so many crashes of a supervisor may be their cause, and is not tried again.
const MAX_CRASHES: u8 = 3;

#[derive(Debug, Serialize, Deserialize)]
enum Entry {
    /// With all that was drawn until then. Told again, it replaces what was known.
    Accepted(Box<Restored>),
    /// A child computes it for the first time, and had so many tokens of its prompt.
    Began {
        request: RequestId,
        cached_tokens: u32,
    },
    /// The next token of each of these requests, and log probabilities of those that want them.
    Drawn(Vec<(RequestId, TokenId)>, Vec<(RequestId, Logprobs)>),
    /// Log probabilities of the next tokens of a prompt.
    Scored(RequestId, Vec<Logprobs>),
    /// `end` is `None` where nobody reads it any more.
    Ended {
        request: RequestId,
        end: Option<StreamEvent>,
        at_ms: u64,
    },
}

/// A request as the log has it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Restored {
    pub id: RequestId,
    /// Of requests for vectors the log has none: their clients go with the supervisor that they asked.
    pub request: NewRequest,
    pub generated: Vec<TokenId>,
    /// `None` before a child began with it.
    pub cached_tokens: Option<u32>,
    /// Of each token in `generated`, where they are wanted. They are written in entries of their own, for
    /// those of a long answer are too many for one.
    pub told_logprobs: Vec<Logprobs>,
    /// Of the prompt's tokens but the first, where they are wanted, in entries of their own as well.
    pub told_prompt: Vec<Logprobs>,
    pub on_fault: OnFault,
    /// Unix time in milliseconds.
    pub accepted_at_ms: u64,
    /// Unix time in milliseconds.
    pub deadline_ms: Option<u64>,
    /// Unix time in milliseconds, as far as the segment's beginning tells.
    pub first_token_at_ms: Option<u64>,
    /// Children that died under it.
    pub recoveries: u32,
    /// Supervisors that died under it.
    pub crashes: u8,
    /// Pages of the last child that hold its first tokens, as far as the segment's beginning tells.
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
    /// So many tokens it may have in the end.
    pub fn most_tokens(&self) -> u64 {
        self.prompt.len() as u64 + u64::from(self.max_tokens)
    }

    /// Forgets tokens whose log probabilities a kill cut off. They are drawn again, and are the same.
    fn forget_unsure(&mut self) {
        let known = self.told_logprobs.len();
        if self.logprobs.is_some() && self.end.is_none() && known < self.generated.len() {
            self.generated.truncate(known);
            // They may hold more tokens than are left.
            self.sealed = None;
        }
    }
}

#[derive(Debug)]
pub struct Wal {
    file: File,
    segment: u64,
    end: u64,
    /// Length at which the present segment is followed by another one.
    segment_limit: u64,
    drawn: Vec<(RequestId, TokenId)>,
    logprobs: Vec<(RequestId, Logprobs)>,
    buffer: Vec<u8>,
    still_read: Ended,
    clock: Clock,
}

impl Wal {
    /// # Errors
    /// When the kernel has no memory or no descriptor for it.
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

    /// `end` is `None` where nobody reads it any more. Otherwise it stays in the log as long as somebody does.
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

    /// Writes what was noted. `live` is asked for every request where a new segment begins.
    ///
    /// # Errors
    /// When the kernel has no memory for it; the log ends there.
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

    /// Writes every request as it is now.
    ///
    /// # Errors
    /// As [`flush`](Self::flush).
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

    /// Ends the log for an upgrade: the next supervisor takes over every connection. The log then holds the requests that
    /// run and those that have ended and still have a reader, and nothing that was written before.
    ///
    /// # Errors
    /// As [`flush`](Self::flush).
    pub fn finish<'a>(
        &mut self,
        live: impl Iterator<Item = (&'a Record, Option<&'a SealedPages>)>,
    ) -> io::Result<()> {
        self.begin_segment(live)?;
        self.begin_at(self.segment)
    }

    /// Makes the log begin at the byte `start`, and gives the memory before it back.
    fn begin_at(&self, start: u64) -> io::Result<()> {
        self.file
            .write_all_at(&start.to_le_bytes(), MAGIC.len() as u64)?;
        let given_back = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        if start > HEADER_BYTES {
            fallocate(&self.file, given_back, HEADER_BYTES, start - HEADER_BYTES)?;
        }
        Ok(())
    }

    /// A vector has no rest that another supervisor could tell, so nothing is written of who wants one.
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
            self.note(&Entry::Drawn(Vec::new(), some.collect()));
        }
    }

    fn note_drawn(&mut self) {
        if !self.drawn.is_empty() {
            let drawn = std::mem::take(&mut self.drawn);
            let logprobs = std::mem::take(&mut self.logprobs);
            self.note(&Entry::Drawn(drawn, logprobs));
        }
    }

    /// In the order of what happened: tokens that were noted before come first.
    fn note(&mut self, entry: &Entry) {
        if !matches!(entry, Entry::Drawn(..)) {
            self.note_drawn();
        }
        let framed = encode(entry).map(|bytes| write_frame(&mut self.buffer, &bytes));
        if let Ok(Ok(())) = framed {
            return;
        }
        // A request that fits a command fits a frame here, too.
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
            told_logprobs: Vec::new(),
            told_prompt: Vec::new(),
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
