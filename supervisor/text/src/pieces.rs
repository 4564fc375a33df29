//! BPE merging of a text of any length, piece by piece.
//!
//! Merging repeatedly joins the adjacent pair with the lowest rank, the leftmost of equal ones, until no pair has a
//! rank. Its working memory is many times the text. But whether two tokens stay separate depends on these two alone: if
//! `X` merges to `… x` and `Y` to `y …`, and the text of `xy` merges to `x` and `y`, then `XY` merges to `… x y …`.
//!
//! Proof: suppose that merging `XY` joins pairs across the border, and take the first such pair. Until then no merge
//! crossed an end of `x` or of `y`, so the merges inside these two are the same, in the same order, as in the text of
//! `xy` alone. The pair therefore also exists there, and no other pair has a lower rank, so it is merged there too: a
//! contradiction.
//!
//! So a piece is merged, and its last tokens are dropped, because the following text may change them. The next piece
//! begins after the remaining tokens, or a token earlier if the two tokens at the border would not stay separate.

use std::ops::Range;
use thiserror::Error;
use worker_orcd_ipc::TokenId;

/// Bytes of a piece, at first. Shorter texts are merged whole.
const PIECE_BYTES: usize = 4 << 10;

/// Upper bound of a piece, in bytes. Pieces are doubled up to this size while smaller ones do not fit together.
const LONGEST_PIECE_BYTES: usize = 64 << 10;

/// Number of token borders that are tried for the end of a piece.
const PLACES: usize = 16;

/// Text that cannot be split into pieces. Only an adversarial vocabulary causes this error: in it, a token can depend
/// on all of the following text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error(
    "holds one word of more than {LONGEST_PIECE_BYTES} bytes that the model's vocabulary leaves undecided to its end"
)]
pub struct Undivided;

/// Text and merge rules of one tokenizer.
pub(super) trait Merge {
    type Token: Copy;

    fn len(&self) -> usize;

    /// Tokens of a part, merged alone, each with its length in bytes.
    fn merge(&self, part: Range<usize>) -> Vec<(Self::Token, usize)>;

    /// Appends the ids of one token, which covers this part.
    fn append(&self, token: Self::Token, part: Range<usize>, out: &mut Vec<TokenId>);

    /// Last offset, at most `at`, where a part may end.
    fn floor(&self, at: usize) -> usize;
}

/// Appends the ids of a text.
///
/// # Errors
/// If pieces of up to [`LONGEST_PIECE_BYTES`] do not fit together.
pub(super) fn encode(text: &impl Merge, out: &mut Vec<TokenId>) -> Result<(), Undivided> {
    encode_by(text, PIECE_BYTES, LONGEST_PIECE_BYTES, out)
}

fn encode_by(
    text: &impl Merge,
    least: usize,
    most: usize,
    out: &mut Vec<TokenId>,
) -> Result<(), Undivided> {
    let before = out.len();
    let mut bytes = least;
    loop {
        if encode_pieces_of(bytes, text, out).is_ok() {
            return Ok(());
        }
        out.truncate(before);
        if bytes >= most {
            return Err(Undivided);
        }
        bytes *= 2;
    }
}

fn encode_pieces_of<M: Merge>(
    bytes: usize,
    text: &M,
    out: &mut Vec<TokenId>,
) -> Result<(), Undivided> {
    let mut piece = Piece::new(text, 0, bytes);
    while piece.range.end < text.len() {
        let (kept, next) = piece.followed_by(text, bytes).ok_or(Undivided)?;
        piece.append(text, kept, out);
        piece = next;
    }
    piece.append(text, piece.tokens.len(), out);
    Ok(())
}

#[derive(Debug)]
struct Piece<T> {
    range: Range<usize>,
    tokens: Vec<(T, usize)>,
}

impl<T: Copy> Piece<T> {
    fn new(text: &impl Merge<Token = T>, start: usize, bytes: usize) -> Self {
        let range = start..text.floor((start + bytes).min(text.len()));
        let tokens = text.merge(range.clone());
        Self { range, tokens }
    }

    /// Number of tokens to keep, and the piece after them. `None` if no tried border fits.
    fn followed_by(&self, text: &impl Merge<Token = T>, bytes: usize) -> Option<(usize, Self)> {
        let settled = self.range.end - bytes / 8;
        let mut ends = Vec::with_capacity(self.tokens.len());
        let mut end = self.range.start;
        for (_, len) in &self.tokens {
            end += len;
            ends.push(end);
        }
        let most = ends.partition_point(|end| *end <= settled);
        (1..=most).rev().take(PLACES).find_map(|kept| {
            let end = ends[kept - 1];
            let next = Self::new(text, end, bytes);
            let (_, last) = self.tokens[kept - 1];
            let (_, first) = *next.tokens.first()?;
            stay_apart(text, end - last..end, first).then_some((kept, next))
        })
    }

    fn append(&self, text: &impl Merge<Token = T>, count: usize, out: &mut Vec<TokenId>) {
        let mut start = self.range.start;
        for (token, len) in &self.tokens[..count] {
            text.append(*token, start..start + len, out);
            start += len;
        }
    }
}

/// True if a token and the next one, merged alone, stay two tokens.
fn stay_apart(text: &impl Merge, left: Range<usize>, right: usize) -> bool {
    let both = text.merge(left.start..left.end + right);
    let lengths = both.iter().map(|(_, len)| *len);
    lengths.eq([left.len(), right])
}

#[cfg(test)]
pub(super) fn encode_small(
    text: &impl Merge,
    bytes: usize,
    out: &mut Vec<TokenId>,
) -> Result<(), Undivided> {
    encode_by(text, bytes, usize::MAX / 2, out)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Text of one token of any length, recognized only when all of it is merged.
    #[derive(Debug)]
    struct Undecided(usize);

    impl Merge for Undecided {
        type Token = ();

        fn len(&self) -> usize {
            self.0
        }

        fn merge(&self, part: Range<usize>) -> Vec<((), usize)> {
            vec![((), part.len())]
        }

        fn append(&self, (): (), _: Range<usize>, out: &mut Vec<TokenId>) {
            out.push(TokenId(7));
        }

        fn floor(&self, at: usize) -> usize {
            at
        }
    }

    #[test]
    fn what_no_piece_decides_is_merged_whole_up_to_a_length() {
        let mut ids = vec![TokenId(1)];
        encode(&Undecided(LONGEST_PIECE_BYTES), &mut ids).unwrap();
        assert_eq!(ids, [TokenId(1), TokenId(7)]);
        let longer = encode(&Undecided(LONGEST_PIECE_BYTES + 1), &mut ids);
        assert_eq!(longer, Err(Undivided));
    }
}
