//! Text notes about a hanging step, written while it hangs and read after the child's death.
//!
//! ```text
//! time u64 │ step u64 │ bytes of text u64 │ checksum u64 │ printable ASCII, then zeros
//! ```

use super::{RECORD_BYTES, checksum};

/// Size of a note in bytes.
pub const NOTE_BYTES: usize = 1024;
/// Number of note slots, written alternately.
pub const NOTES: usize = 2;

const HEAD_BYTES: usize = 32;

/// Note about a hanging step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    /// Time of `CLOCK_MONOTONIC` in nanoseconds.
    pub time_ns: u64,
    /// Number of the oldest unfinished step.
    pub step: u64,
    /// Text. [`Note::encode`] truncates it to the slot and replaces characters that are not printable ASCII by question
    /// marks.
    pub text: String,
}

impl Note {
    /// Offset of note slot `index` from the start of the ring, in bytes.
    #[must_use]
    pub fn offset(index: usize, capacity: u32) -> usize {
        RECORD_BYTES * (1 + capacity as usize) + NOTE_BYTES * index
    }

    #[must_use]
    pub fn encode(&self) -> [u8; NOTE_BYTES] {
        let mut bytes = [0; NOTE_BYTES];
        let text = &mut bytes[HEAD_BYTES..];
        let printable = |it: char| match it {
            ' '..='~' => it as u8,
            _ => b'?',
        };
        let mut length: u64 = 0;
        for (byte, it) in text.iter_mut().zip(self.text.chars().map(printable)) {
            *byte = it;
            length += 1;
        }
        let sum = Self::sum(self.time_ns, self.step, length, text);
        let head = [self.time_ns, self.step, length, sum];
        for (target, word) in bytes.chunks_exact_mut(8).zip(head) {
            target.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Decodes a note slot. `None`: it was never written, or its content is damaged.
    #[must_use]
    pub fn decode(bytes: &[u8; NOTE_BYTES]) -> Option<Self> {
        let (words, _) = bytes.as_chunks::<8>();
        let [time_ns, step, length, sum] =
            std::array::from_fn(|index| u64::from_le_bytes(words[index]));
        let text = &bytes[HEAD_BYTES..];
        let written = text.get(..usize::try_from(length).ok()?)?;
        let is_text = written.iter().all(|it| (b' '..=b'~').contains(it));
        (sum == Self::sum(time_ns, step, length, text) && is_text).then(|| Self {
            time_ns,
            step,
            text: String::from_utf8_lossy(written).into_owned(),
        })
    }

    /// Latest intact note of these slots.
    #[must_use]
    pub(super) fn newest(notes: &[u8]) -> Option<Self> {
        let (notes, _) = notes.as_chunks::<NOTE_BYTES>();
        let whole = notes.iter().filter_map(Self::decode);
        whole.max_by_key(|note| note.time_ns)
    }

    fn sum(time_ns: u64, step: u64, length: u64, text: &[u8]) -> u64 {
        let (text, _) = text.as_chunks::<8>();
        let text = text.iter().map(|word| u64::from_le_bytes(*word));
        let words: Vec<u64> = [time_ns, step, length].into_iter().chain(text).collect();
        checksum(&words)
    }
}
