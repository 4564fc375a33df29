//! The flight recorder's ring: what a child was doing, readable after any death.
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
//! The child writes, the supervisor reads when the child is dead. A record that was being
//! written at that moment is torn: its checksum does not fit, and it is counted, not believed.
//! The same goes for anything that a wild write left behind. Behind the records are two places for
//! a [`Note`], which another thread than theirs writes, in turns: one of them is whole.
//!
//! Times are nanoseconds of `CLOCK_MONOTONIC`, which all processes of a machine share.
//!
//! Deliberately absent: memory maps, files, clocks.

mod note;

pub use note::{NOTE_BYTES, NOTES, Note};

use crate::ids::{Generation, RequestId};
use thiserror::Error;

/// Bytes of the header and of each record: one cache line.
pub const RECORD_BYTES: usize = 64;

/// Records of a ring: those of twenty steps of a model with eighty layers, which has one for each
/// layer and some more.
pub const RING_CAPACITY: u32 = 2048;
const _: () = assert!(RING_CAPACITY >= 20 * (80 + 5));

const MAGIC: [u8; 8] = *b"ORCDFLIT";
const VERSION: u32 = 2;
const REQUESTS_PER_RECORD: usize = 3;

/// A cache line of a ring, encoded.
pub type Line = [u8; RECORD_BYTES];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Records that the ring holds.
    pub capacity: u32,
    pub generation: Generation,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record {
    /// Number of the record, counted from 1 over the child's life.
    pub number: u64,
    /// Time of `CLOCK_MONOTONIC`.
    pub time_ns: u64,
    /// 0 outside steps.
    pub step: u64,
    pub moment: Moment,
    pub who: Who,
}

/// The event of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    LoadBegin,
    LoadEnd,
    /// A batch of so many tokens.
    StepBegin {
        tokens: u32,
    },
    /// The named sequence of the step runs its prompt up to this position, the end excluded, or
    /// after a replay also what was generated.
    Prompt {
        end: u32,
    },
    Phase(Phase),
    /// Layer, counted from 0, that has been computed.
    Layer(u32),
    /// The device gave its results and reported no error.
    StepEnd,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Every sequence runs part of its prompt.
    Prefill,
    /// Every sequence runs its newest token.
    Decode,
    /// Sequences of both phases.
    Mixed,
    /// The logits are there, tokens are being drawn.
    Sample,
}

/// The requests in a step: how many, and the first few by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Who {
    sequences: u16,
    first: [u64; REQUESTS_PER_RECORD],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("this is no flight recorder of this version")]
pub struct NotARing;

/// The contents of a ring after a death.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recording {
    pub generation: Generation,
    /// Oldest first, numbers rising.
    pub records: Vec<Record>,
    /// Slots whose content is no whole record of this ring.
    pub torn: u32,
    /// The newest.
    pub note: Option<Note>,
}

/// Bytes of a ring.
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

    /// # Errors
    /// When these are not the first bytes of a ring that this version can use.
    pub fn decode(line: &Line) -> Result<Self, NotARing> {
        let header = Self {
            capacity: u32_at(line, 12),
            generation: Generation(u32_at(line, 16)),
        };
        // Encoding again compares magic, version and zeros at once.
        if header.capacity > 0 && header.encode() == *line {
            Ok(header)
        } else {
            Err(NotARing)
        }
    }
}

impl Record {
    /// Offset of record `number`, in bytes from the start of a ring.
    #[must_use]
    pub fn offset(number: u64, capacity: u32) -> usize {
        let slot = (number.wrapping_sub(1) % u64::from(capacity.max(1))) as usize;
        RECORD_BYTES * (1 + slot)
    }

    #[must_use]
    pub fn encode(&self) -> Line {
        let (kind, detail) = self.moment.to_parts();
        let tail = u64::from(kind) | u64::from(self.who.sequences) << 16 | u64::from(detail) << 32;
        let [a, b, c] = self.who.first;
        let words = [self.number, self.time_ns, self.step, tail, a, b, c];
        let mut line = [0; RECORD_BYTES];
        let all = words.into_iter().chain([checksum(&words)]);
        for (bytes, word) in line.chunks_exact_mut(8).zip(all) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        line
    }

    /// `None` for a slot that was never written, is torn, or holds anything else.
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
            who: Who {
                sequences: (tail >> 16) as u16,
                first: [a, b, c],
            },
        })
    }
}

impl Recording {
    /// Reads what a dead child left.
    ///
    /// # Errors
    /// When it is no ring at all.
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
        // Older than one turn of the ring: its slot should hold a newer one.
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

impl Who {
    pub const NOBODY: Self = Self {
        sequences: 0,
        first: [0; REQUESTS_PER_RECORD],
    };

    #[must_use]
    pub fn new(requests: impl Iterator<Item = RequestId>) -> Self {
        let mut who = Self::NOBODY;
        for request in requests {
            if let Some(place) = who.first.get_mut(usize::from(who.sequences)) {
                *place = request.0;
            }
            who.sequences = who.sequences.saturating_add(1);
        }
        who
    }

    /// Sequences of the step, with or without a name here.
    #[must_use]
    pub fn sequences(&self) -> u16 {
        self.sequences
    }

    pub fn requests(&self) -> impl Iterator<Item = RequestId> {
        let named = usize::from(self.sequences).min(REQUESTS_PER_RECORD);
        self.first.into_iter().take(named).map(RequestId)
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
    pub const ALL: [Self; 4] = [Self::Prefill, Self::Decode, Self::Mixed, Self::Sample];

    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Prefill => "prefill",
            Self::Decode => "decode",
            Self::Mixed => "mixed",
            Self::Sample => "sample",
        }
    }
}

/// Against torn and wild writes, not against malice: every word changes every later state.
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
