//! Unread text in pieces, and the pieces that the client already has.

use crate::logprobs::Ledger;
use crate::record::{Piece, StreamEvent};
use serde::{Deserialize, Serialize};

/// Pieces that the client already has. They are not delivered again.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Skip {
    #[default]
    Nothing,
    /// The first pieces, by number.
    Pieces(u32),
    /// Pieces up to that of the token with this index.
    ThroughToken(u32),
}

impl Skip {
    /// True for a skipped piece. `number`: its number in the answer. `index`: index of the token that completed it.
    pub fn covers(self, number: u32, index: u32) -> bool {
        match self {
            Self::Nothing => false,
            Self::Pieces(pieces) => number < pieces,
            Self::ThroughToken(last) => index <= last,
        }
    }
}

/// Maximum number of pieces per read. A connection buffers them until the client has read them, in addition to the
/// record.
const PIECES_AT_ONCE: usize = 256;

/// Text in one buffer, cut where tokens ended. The buffer is cleared once all text is taken, so its memory is reused.
/// Until then taken text stays in front, so a long answer is not moved for each read.
#[derive(Debug, Default)]
pub(super) struct Unread {
    pub(super) text: String,
    cuts: Vec<Cut>,
    /// Number of cuts that were taken.
    taken: usize,
}

/// End of a piece.
#[derive(Debug, Clone, Copy)]
struct Cut {
    /// Byte offset in the unread text.
    at: usize,
    /// Index of the token that completed the piece.
    index: u32,
    /// Number of tokens listed with the piece.
    listed: usize,
    echoes: bool,
}

impl Unread {
    /// Makes a piece of the text since `before`, unless it is empty and lists no token.
    pub(super) fn cut(&mut self, before: usize, index: u32, listed: usize) {
        self.cut_piece(before, index, listed, false);
    }

    /// Variant of [`cut`](Self::cut) for the echoed prompt.
    pub(super) fn cut_prompt(&mut self, before: usize, listed: usize) {
        self.cut_piece(before, 0, listed, true);
    }

    fn cut_piece(&mut self, before: usize, index: u32, listed: usize, echoes: bool) {
        let at = self.text.len();
        if at > before || listed > 0 {
            self.cuts.push(Cut {
                at,
                index,
                listed,
                echoes,
            });
        }
    }

    /// Pushes the next pieces. Returns their number.
    pub(super) fn take(
        &mut self,
        push: &mut impl FnMut(StreamEvent),
        taken: &mut u32,
        skip: Skip,
        mut ledger: Option<&mut Ledger>,
    ) -> usize {
        let mut start = match self.taken {
            0 => 0,
            before => self.cuts[before - 1].at,
        };
        let mut pushed = 0;
        for &Cut {
            at,
            index,
            listed,
            echoes,
        } in &self.cuts[self.taken..]
        {
            if pushed == PIECES_AT_ONCE {
                break;
            }
            let number = *taken;
            *taken += 1;
            self.taken += 1;
            let text = &self.text[start..at];
            start = at;
            let logprobs = ledger.as_mut().and_then(|ledger| ledger.take(listed));
            if !skip.covers(number, index) {
                let text = text.to_owned();
                pushed += 1;
                push(StreamEvent::Text(Piece {
                    text,
                    index,
                    number,
                    echoes,
                    logprobs,
                }));
            }
        }
        if self.is_empty() {
            self.text.clear();
            self.cuts.clear();
            self.taken = 0;
        }
        pushed
    }

    pub(super) fn is_empty(&self) -> bool {
        self.taken == self.cuts.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_takes_a_long_answer_in_parts_and_what_it_has_is_no_part() {
        let mut unread = Unread::default();
        for index in 0..600 {
            let before = unread.text.len();
            unread.text.push_str("ab");
            unread.cut(before, index, 0);
        }
        let (mut out, mut taken, skip) = (Vec::new(), 0, Skip::Pieces(300));
        for (count, is_empty) in [(256, false), (300, true), (300, true)] {
            unread.take(&mut |event| out.push(event), &mut taken, skip, None);
            assert_eq!((out.len(), unread.is_empty()), (count, is_empty));
        }
        assert!(unread.text.is_empty() && taken == 600);
        unread.text.push('c');
        unread.cut(0, 600, 0);
        unread.take(&mut |event| out.push(event), &mut taken, skip, None);
        assert!(matches!(out.pop(), Some(StreamEvent::Text(piece)) if piece.text == "c"));
        for (number, event) in (300..).zip(out) {
            let StreamEvent::Text(piece) = event else {
                panic!("{event:?}");
            };
            assert_eq!(
                (piece.number, piece.index, &*piece.text),
                (number, number, "ab")
            );
        }
    }
}
