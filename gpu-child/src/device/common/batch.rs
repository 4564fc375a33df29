//! Common reading of a batch: its contract, its sampling rows, and its taps.

use super::kv::PAGE_TOKENS;
use crate::device::{Checkpoint, SequenceWork, Tap};
use worker_orcd_ipc::{RequestId, TokenId};

/// Blocks that hold all of a sequence's positions, with a page for each of `groups` groups of layers.
///
/// # Panics
/// If there are no tokens, or the page table is too short.
#[must_use]
pub fn blocks_of(work: &SequenceWork<'_>, groups: usize) -> usize {
    let blocks = (work.first_position as usize + work.tokens.len()).div_ceil(PAGE_TOKENS);
    assert!(!work.tokens.is_empty(), "a sequence without tokens");
    assert!(
        work.pages.len() >= blocks * groups,
        "a page table too short"
    );
    blocks
}

/// Row of the embedding table.
///
/// # Panics
/// If the token is outside the vocabulary.
#[must_use]
pub fn index_of(token: TokenId, vocab_size: usize) -> usize {
    let index = token.index();
    assert!(index < vocab_size, "a token outside the vocabulary");
    index
}

/// Request and position of every row, in order.
pub fn rows(sequences: &[SequenceWork<'_>]) -> impl Iterator<Item = (RequestId, u32)> + Clone {
    let of_sequence = |work: &SequenceWork<'_>| {
        let request = work.request;
        (work.first_position..)
            .take(work.tokens.len())
            .map(move |position| (request, position))
    };
    sequences.iter().flat_map(of_sequence)
}

/// A row that may be sampled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DrawingRow {
    pub row: usize,
    pub request: RequestId,
    pub position: u32,
}

/// Rows that may be sampled, in order: of each sequence that samples, the last one and those before its drafts.
#[must_use]
pub fn drawing_rows(sequences: &[SequenceWork<'_>]) -> Vec<DrawingRow> {
    let mut end = 0;
    let last = |work: &SequenceWork<'_>| {
        end += work.tokens.len();
        let end_position = work.first_position + work.tokens.len() as u32;
        let (end, request, drafts) = (end, work.request, work.drafts);
        let rows = work.sample.map_or(0, |_| 1 + drafts);
        (1..=rows).rev().map(move |behind| DrawingRow {
            row: end - behind,
            request,
            position: end_position - behind as u32,
        })
    };
    sequences.iter().flat_map(last).collect()
}

/// Passes rows, each of a request at a position, to the tap if it selects them. `values` reads the values of a row; it
/// is called only for selected rows.
///
/// # Errors
/// Those of `values`.
pub fn watch<V: AsRef<[f32]>, E>(
    tap: &mut dyn Tap,
    checkpoint: Checkpoint,
    rows: impl Iterator<Item = (RequestId, u32)>,
    values: impl Fn(usize) -> Result<V, E>,
) -> Result<(), E> {
    for (at, (request, position)) in rows.enumerate() {
        if tap.wants(request, &checkpoint) {
            tap.see(request, &checkpoint, position, values(at)?.as_ref());
        }
    }
    Ok(())
}
