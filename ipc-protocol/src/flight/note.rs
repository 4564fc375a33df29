//! Notes on a step that does not end, in words: written while it does not, read when the child is
//! dead.
//!
//! ```text
//! time u64 │ step u64 │ bytes of text u64 │ checksum u64 │ printable ASCII, then zeros
//! ```

use super::{RECORD_BYTES, checksum};

/// Bytes of each note.
pub const NOTE_BYTES: usize = 1024;
/// Places for them, taken in turns.
pub const NOTES: usize = 2;

const HEAD_BYTES: usize = 32;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    /// Time of `CLOCK_MONOTONIC`.
    pub time_ns: u64,
    /// The oldest that had not ended.
    pub step: u64,
    /// Text. What does not fit is cut off; a character that is no printable ASCII becomes a
    /// question mark.
    pub text: String,
}

impl Note {
    /// Offset of the place `index`, in bytes from the start of a ring.
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
        for (place, it) in text.iter_mut().zip(self.text.chars().map(printable)) {
            *place = it;
            length += 1;
        }
        let sum = Self::sum(self.time_ns, self.step, length, text);
        let head = [self.time_ns, self.step, length, sum];
        for (place, word) in bytes.chunks_exact_mut(8).zip(head) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// `None` for a place that was never written, is torn, or holds anything else.
    #[must_use]
    pub fn decode(bytes: &[u8; NOTE_BYTES]) -> Option<Self> {
        let (words, _) = bytes.as_chunks::<8>();
        let [time_ns, step, length, sum] =
            std::array::from_fn(|index| u64::from_le_bytes(words[index]));
        let text = &bytes[HEAD_BYTES..];
        let said = text.get(..usize::try_from(length).ok()?)?;
        let is_text = said.iter().all(|it| (b' '..=b'~').contains(it));
        (sum == Self::sum(time_ns, step, length, text) && is_text).then(|| Self {
            time_ns,
            step,
            text: String::from_utf8_lossy(said).into_owned(),
        })
    }

    /// The newest note among those that are whole in these bytes.
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
