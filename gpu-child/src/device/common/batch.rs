//! A batch as every device reads it: what it must keep to, which rows draw, and who watches.

use super::kv::PAGE_TOKENS;
use crate::device::{Checkpoint, SequenceWork, Tap};
use worker_orcd_ipc::TokenId;

/// Pages that hold all of a sequence's positions.
///
/// # Panics
/// When there are no tokens, or the page table is too short.
#[must_use]
pub fn pages_of(work: &SequenceWork<'_>) -> usize {
    let pages = (work.first_position as usize + work.tokens.len()).div_ceil(PAGE_TOKENS);
    assert!(!work.tokens.is_empty(), "a sequence without tokens");
    assert!(work.pages.len() >= pages, "a page table too short");
    pages
}

/// # Panics
/// When the token is not of the vocabulary.
#[must_use]
pub fn index_of(token: TokenId, vocab_size: usize) -> usize {
    let index = token.index();
    assert!(index < vocab_size, "a token outside the vocabulary");
    index
}

/// Sequence and position of every row, in order.
pub fn rows(sequences: &[SequenceWork<'_>]) -> impl Iterator<Item = (usize, u32)> {
    let positions = |work: &SequenceWork<'_>| (work.first_position..).take(work.tokens.len());
    let rows = sequences.iter().map(positions).enumerate();
    rows.flat_map(|(sequence, positions)| positions.map(move |position| (sequence, position)))
}

/// The last row of a sequence that draws.
#[derive(Debug, Clone, Copy)]
pub struct DrawingRow {
    pub row: usize,
    pub sequence: usize,
}

/// The rows that draw, in order.
#[must_use]
pub fn drawing_rows(sequences: &[SequenceWork<'_>]) -> Vec<DrawingRow> {
    let mut end = 0;
    let last = |(sequence, work): (usize, &SequenceWork<'_>)| {
        end += work.tokens.len();
        work.sample.map(|_| DrawingRow {
            row: end - 1,
            sequence,
        })
    };
    sequences.iter().enumerate().filter_map(last).collect()
}

/// Shows rows, each of a sequence at a position, to who wants them. `values` reads the values of a
/// row, which costs nothing where no tap wants it.
///
/// # Errors
/// As `values`.
pub fn watch<V: AsRef<[f32]>, E>(
    tap: &mut dyn Tap,
    sequences: &[SequenceWork<'_>],
    checkpoint: Checkpoint,
    rows: impl Iterator<Item = (usize, u32)>,
    values: impl Fn(usize) -> Result<V, E>,
) -> Result<(), E> {
    let wants = |tap: &dyn Tap, work: &SequenceWork<'_>| tap.wants(work.request, &checkpoint);
    if !sequences.iter().any(|work| wants(tap, work)) {
        return Ok(());
    }
    for (at, (sequence, position)) in rows.enumerate() {
        let work = &sequences[sequence];
        if wants(tap, work) {
            tap.see(work.request, &checkpoint, position, values(at)?.as_ref());
        }
    }
    Ok(())
}
