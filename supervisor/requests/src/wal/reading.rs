//! Reader of a log that another supervisor wrote.

use super::clock::Clock;
use super::ended::forget_old;
use super::{Entry, MAGIC, MAX_CRASHES, RETOLD_FOR, Restored};
use crate::drafts::Drafts;
use crate::error_code::ErrorCode;
use crate::record::{Failure, OnFault, StreamEvent};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, ErrorKind, Read as _, Seek as _, SeekFrom};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;
use std::time::Instant;
use tracing::{error, warn};
use worker_orcd_ipc::{FrameReader, Logprobs, Preamble, RequestId, TokenId, decode};

/// End of the supervisor that wrote a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    Crash,
    Upgrade,
}

/// Reads the requests of a log that have not ended, or ended recently, in order of arrival.
///
/// # Errors
/// The file is not a log of this version, or cannot be read.
pub fn read(log: OwnedFd, ending: Ending) -> io::Result<Vec<Restored>> {
    let now = Clock::at(Instant::now());
    let oldest_ms = now
        .unix_ms(now.at)
        .saturating_sub(RETOLD_FOR.as_millis() as u64);
    let mut requests: BTreeMap<RequestId, Restored> = BTreeMap::new();
    let mut old = BTreeSet::new();
    read_entries(File::from(log), |entry| match entry {
        Entry::Accepted(request) => {
            old.remove(&request.id);
            requests.insert(request.id, *request);
        }
        Entry::Began {
            request,
            cached_tokens,
        } => {
            if let Some(request) = requests.get_mut(&request) {
                request.cached_tokens = Some(cached_tokens);
            }
        }
        Entry::Drawn(tokens, logprobs, drafts) => {
            add_tokens(&mut requests, tokens, logprobs, drafts);
        }
        Entry::Scored(request, logprobs) => {
            if let Some(request) = requests.get_mut(&request) {
                request.sent_prompt.extend(logprobs);
            }
        }
        Entry::Ended {
            request,
            end: Some(end),
            at_ms,
        } => {
            if at_ms < oldest_ms {
                old.insert(request);
            }
            if let Some(request) = requests.get_mut(&request) {
                request.end = Some(end);
            }
        }
        Entry::Ended {
            request, end: None, ..
        } => {
            requests.remove(&request);
        }
    })?;
    let mut requests: Vec<_> = requests.into_values().collect();
    forget_old(&mut requests, &old);
    requests.iter_mut().for_each(Restored::forget_unsure);
    if ending == Ending::Crash {
        requests.retain_mut(|request| {
            request.crashes += 1;
            // The child died with its supervisor.
            request.recoveries += u32::from(!request.generated.is_empty());
            if request.end.is_none() && request.on_fault == OnFault::Fail {
                let message = "the worker lost its supervisor, and its child with it";
                let failure = Failure::new(ErrorCode::WorkerUnhealthy, message);
                request.end = Some(StreamEvent::Failed(failure));
            }
            let goes_on = request.crashes < MAX_CRASHES;
            if !goes_on {
                let (job_id, crashes) = (&request.job_id, request.crashes);
                error!(job_id, crashes, "request_not_restored");
            }
            goes_on
        });
    }
    Ok(requests)
}

fn add_tokens(
    requests: &mut BTreeMap<RequestId, Restored>,
    tokens: Vec<(RequestId, TokenId)>,
    logprobs: Vec<(RequestId, Logprobs)>,
    drafts: Vec<(RequestId, Drafts)>,
) {
    for (request, token) in tokens {
        if let Some(request) = requests.get_mut(&request) {
            request.generated.push(token);
        }
    }
    for (request, logprobs) in logprobs {
        if let Some(request) = requests.get_mut(&request) {
            request.sent_logprobs.push(logprobs);
        }
    }
    for (request, drafts) in drafts {
        if let Some(request) = requests.get_mut(&request) {
            request.drafts = request.drafts.plus(drafts);
        }
    }
}

fn read_entries(mut log: File, mut each: impl FnMut(Entry)) -> io::Result<()> {
    let invalid = |what: String| io::Error::new(ErrorKind::InvalidData, what);
    let mut header = [0; 16];
    log.read_exact_at(&mut header, 0)?;
    let (magic, start) = header.split_at(MAGIC.len());
    if magic != MAGIC {
        return Err(invalid("no write-ahead log of this version".to_owned()));
    }
    let start = start
        .iter()
        .rev()
        .fold(0, |sum, byte| sum << 8 | u64::from(*byte));
    log.seek(SeekFrom::Start(start))?;
    let mut frames = FrameReader::new();
    // The log may begin anywhere, so its version is in the header and the reader's preamble is synthetic.
    frames.push(&Preamble::OURS.to_bytes());
    let mut chunk = vec![0; 1 << 20];
    let mut entries = 0_u64;
    loop {
        let bytes = log.read(&mut chunk)?;
        if bytes == 0 {
            return Ok(());
        }
        frames.push(&chunk[..bytes]);
        loop {
            match next_entry(&mut frames) {
                Ok(Some(entry)) => each(entry),
                Ok(None) => break,
                Err(reason) if entries == 0 => return Err(invalid(reason)),
                // Entries before the damage remain valid, as if the writer had died there. Later tokens are drawn
                // again.
                Err(reason) => {
                    warn!(entries, reason, "wal_torn");
                    return Ok(());
                }
            }
            entries += 1;
        }
    }
}

fn next_entry(frames: &mut FrameReader) -> Result<Option<Entry>, String> {
    let frame = frames.next_frame().map_err(|error| error.to_string())?;
    frame
        .map(decode)
        .transpose()
        .map_err(|error| error.to_string())
}
