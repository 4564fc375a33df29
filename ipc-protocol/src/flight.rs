//! Format of the flight recorder: a ring of records of a child's work in shared memory, readable after any death.
//!
//! ```text
//! byte 0        64         128                 64 * (1 + capacity)
//! ┌─ header ─┬─ slot 0 ─┬─ slot 1 ─┬─ … ─┬─ note ─┬─ note ─┐   record n (counted from 1) lies in
//! └──────────┴──────────┴──────────┴─────┴────────┴────────┘   slot (n - 1) % capacity
//!
//! header: magic 8 │ version u32 │ capacity u32 │ generation u32 │ zeros
//! record: number u64 │ time u64 │ step u64 │ kind u8, zero u8, sequences u16, detail u32 │
//!         three request ids u64 │ checksum u64                              (little-endian)
//! ```
//!
//! The child writes; the supervisor reads after the child's death. A record that was being written at the death is torn:
//! its checksum does not match, and it is counted but not used. The same applies to records damaged by stray writes. Two
//! slots for a [`Note`] follow the records. Another thread writes them alternately, so one of them is always intact.
//!
//! Times are nanoseconds of `CLOCK_MONOTONIC`, which all processes of a machine share.
//!
//! Deliberately absent: memory maps, files, clocks.

mod note;

pub use note::{NOTE_BYTES, NOTES, Note};

use crate::ids::{Generation, RequestId};
use thiserror::Error;

/// Size of the header and of each record in bytes: one cache line.
pub const RECORD_BYTES: usize = 64;

/// Number of records in a ring: at least twenty steps of a model with 80 layers, each with one record per layer and five
/// more.
pub const RING_CAPACITY: u32 = 2048;
const _: () = assert!(RING_CAPACITY >= 20 * (80 + 5));

const MAGIC: [u8; 8] = *b"ORCDFLIT";
const VERSION: u32 = 3;
/// Number of requests that a record names.
pub const REQUESTS_PER_RECORD: usize = 3;

/// Encoded header or record.
pub type Line = [u8; RECORD_BYTES];

/// Header of a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Number of records in the ring.
    pub capacity: u32,
    pub generation: Generation,
}

/// Record of a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record {
    /// Sequence number, from 1 over the child's life.
    pub number: u64,
    /// Time of `CLOCK_MONOTONIC` in nanoseconds.
    pub time_ns: u64,
    /// Number of the step; 0 outside steps.
    pub step: u64,
    pub moment: Moment,
    pub requests: StepRequests,
}

/// Event of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    LoadBegin,
    LoadEnd,
    /// Start of a step with this many tokens in its batch.
    StepBegin {
        tokens: u32,
    },
    /// The record's sequence runs its prompt up to this position (exclusive). After a replay that includes generated tokens.
    Prompt {
        end: u32,
    },
    /// Start of a phase of the step.
    Phase(Phase),
    /// The layer with this index, from 0, has been computed.
    Layer(u32),
    /// The device returned the results of the step without an error.
    StepEnd,
}

/// Phase of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// All sequences run parts of their prompts.
    Prefill,
    /// All sequences run their latest token.
    Decode,
    /// Sequences of both phases.
    Mixed,
    /// The logits are computed, and tokens are being sampled.
    Sample,
    /// The draft model computes, for the sequences of this record and those of other records of this phase in the step.
    Draft,
}

/// Requests of a step: their number, and the ids of the first few.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepRequests {
    sequences: u16,
    first: [u64; REQUESTS_PER_RECORD],
}

/// Error for bytes that are not a ring of this version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("not a flight recorder of version {VERSION}: wrong magic, version, capacity or size")]
pub struct NotARing;

/// Contents of a ring after a death.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recording {
    pub generation: Generation,
    /// Intact records by ascending number.
    pub records: Vec<Record>,
    /// Number of slots with a damaged or outdated record.
    pub torn: u32,
    /// Latest intact note.
    pub note: Option<Note>,
}

/// Size of a ring in bytes.
#[must_use]
pub fn ring_bytes(capacity: u32) -> usize {
    Note::offset(NOTES, capacity)
}

impl Header {
    #[must_use]
    pub fn encode(&self) -> Line {
        let mut line = [0; RECORD_BYTES];
        line[..8].copy_from_slice(&MAGIC);
        line[8..12].copy_from_slice(&VERSION.to_le_bytes());
        line[12..16].copy_from_slice(&self.capacity.to_le_bytes());
        line[16..20].copy_from_slice(&self.generation.0.to_le_bytes());
        line
    }

    /// Decodes the first line of a ring.
    ///
    /// # Errors
    /// If it is not a header of this version.
    pub fn decode(line: &Line) -> Result<Self, NotARing> {
        let header = Self {
            capacity: u32_at(line, 12),
            generation: Generation(u32_at(line, 16)),
        };
        // Encoding the result again validates magic, version and zeros too.
        if header.capacity > 0 && header.encode() == *line {
            Ok(header)
        } else {
            Err(NotARing)
        }
    }
}

impl Record {
    /// Offset of record `number` from the start of the ring, in bytes.
    #[must_use]
    pub fn offset(number: u64, capacity: u32) -> usize {
        let slot = (number.wrapping_sub(1) % u64::from(capacity.max(1))) as usize;
        RECORD_BYTES * (1 + slot)
    }

    #[must_use]
    pub fn encode(&self) -> Line {
        let (kind, detail) = self.moment.to_parts();
        let tail =
            u64::from(kind) | u64::from(self.requests.sequences) << 16 | u64::from(detail) << 32;
        let [a, b, c] = self.requests.first;
        let words = [self.number, self.time_ns, self.step, tail, a, b, c];
        let mut line = [0; RECORD_BYTES];
        let all = words.into_iter().chain([checksum(&words)]);
        for (bytes, word) in line.chunks_exact_mut(8).zip(all) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        line
    }

    /// Decodes a slot. `None`: it was never written, or its content is damaged.
    #[must_use]
    pub fn decode(line: &Line) -> Option<Self> {
        let words: [u64; 7] = std::array::from_fn(|index| u64_at(line, 8 * index));
        let [number, time_ns, step, tail, a, b, c] = words;
        let (kind, zero) = (tail as u8, (tail >> 8) as u8);
        let moment = Moment::from_parts(kind, (tail >> 32) as u32)?;
        if number == 0 || zero != 0 || u64_at(line, 56) != checksum(&words) {
            return None;
        }
        Some(Self {
            number,
            time_ns,
            step,
            moment,
            requests: StepRequests {
                sequences: (tail >> 16) as u16,
                first: [a, b, c],
            },
        })
    }
}

impl Recording {
    /// Reads the ring of a dead child.
    ///
    /// # Errors
    /// If the header or the size is invalid. Damaged records are no error.
    pub fn read(ring: &[u8]) -> Result<Self, NotARing> {
        let (header, slots) = ring.split_first_chunk().ok_or(NotARing)?;
        let Header {
            capacity,
            generation,
        } = Header::decode(header)?;
        if ring.len() != ring_bytes(capacity) {
            return Err(NotARing);
        }
        let (mut records, mut torn) = (Vec::new(), 0);
        let (slots, notes) = slots.split_at(RECORD_BYTES * capacity as usize);
        let (lines, _) = slots.as_chunks::<RECORD_BYTES>();
        for (slot, line) in lines.iter().enumerate() {
            match Record::decode(line) {
                Some(record)
                    if Record::offset(record.number, capacity) == RECORD_BYTES * (1 + slot) =>
                {
                    records.push(record);
                }
                None if line.iter().all(|byte| *byte == 0) => {}
                Some(_) | None => torn += 1,
            }
        }
        records.sort_unstable_by_key(|record| record.number);
        // A record that is older than one turn of the ring is outdated: a newer one should have overwritten it.
        let newest = records.last().map_or(0, |record| record.number);
        let oldest = newest.saturating_sub(u64::from(capacity));
        let whole = records.len();
        records.retain(|record| record.number > oldest);
        torn += (whole - records.len()) as u32;
        Ok(Self {
            generation,
            records,
            torn,
            note: Note::newest(notes),
        })
    }
}

impl StepRequests {
    /// No requests, for records outside steps.
    pub const NONE: Self = Self {
        sequences: 0,
        first: [0; REQUESTS_PER_RECORD],
    };

    #[must_use]
    pub fn new(requests: impl Iterator<Item = RequestId>) -> Self {
        let mut of_step = Self::NONE;
        for request in requests {
            if let Some(id) = of_step.first.get_mut(usize::from(of_step.sequences)) {
                *id = request.0;
            }
            of_step.sequences = of_step.sequences.saturating_add(1);
        }
        of_step
    }

    /// Number of sequences in the step.
    #[must_use]
    pub fn sequences(&self) -> u16 {
        self.sequences
    }

    /// Ids of the first sequences, at most three.
    pub fn ids(&self) -> impl Iterator<Item = RequestId> {
        let count = usize::from(self.sequences).min(REQUESTS_PER_RECORD);
        self.first.into_iter().take(count).map(RequestId)
    }
}

impl Moment {
    fn to_parts(self) -> (u8, u32) {
        match self {
            Self::LoadBegin => (1, 0),
            Self::LoadEnd => (2, 0),
            Self::StepBegin { tokens } => (3, tokens),
            Self::Phase(phase) => (4, phase as u32),
            Self::Layer(layer) => (5, layer),
            Self::StepEnd => (6, 0),
            Self::Prompt { end } => (7, end),
        }
    }

    fn from_parts(kind: u8, detail: u32) -> Option<Self> {
        Some(match (kind, detail) {
            (1, 0) => Self::LoadBegin,
            (2, 0) => Self::LoadEnd,
            (3, tokens) => Self::StepBegin { tokens },
            (4, detail) => Self::Phase(Phase::ALL.into_iter().find(|it| *it as u32 == detail)?),
            (5, layer) => Self::Layer(layer),
            (6, 0) => Self::StepEnd,
            (7, end) => Self::Prompt { end },
            _ => return None,
        })
    }
}

impl Phase {
    pub const ALL: [Self; 5] = [
        Self::Prefill,
        Self::Decode,
        Self::Mixed,
        Self::Sample,
        Self::Draft,
    ];

    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Prefill => "prefill",
            Self::Decode => "decode",
            Self::Mixed => "mixed",
            Self::Sample => "sample",
            Self::Draft => "draft model",
        }
    }
}

/// Checksum that detects torn and stray writes, not manipulation. Each word affects all later states.
fn checksum(words: &[u64]) -> u64 {
    const ODD: u64 = 0x9E37_79B9_7F4A_7C15;
    let mixed = words.iter().fold(ODD, |state, word| {
        (state ^ word).wrapping_mul(ODD).rotate_left(29)
    });
    mixed ^ mixed >> 32
}

fn u32_at(line: &Line, at: usize) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|index| line[at + index]))
}

fn u64_at(line: &Line, at: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|index| line[at + index]))
}
