//! Attention over an F16 cache: softmax over fixed spans of positions, merged in order.
//!
//! Position 0 of a sequence starts span 0; a span is [`SPAN_TOKENS`] positions, cut into tiles of [`TILE_TOKENS`] (a
//! page). For a query, each span that it sees yields a [`Partial`]:
//!
//! ```text
//! m = max s_p      l = Σ exp(s_p - m)      acc = Σ exp(s_p - m) v_p      s_p = q · k_p
//! ```
//!
//! and spans are [`merge`]d from the first to the last. So the arithmetic of a query follows from its position alone,
//! whether one thread walks its spans or several share them, and whether it is alone (decoding) or with others of its
//! prompt: a call takes up to [`MAX_ROWS`] rows (queries times heads of a group) only to read the cache once for all of
//! them.
//!
//! In a tile, keys are `[head_dim][32]`, so that eight scores grow in one register and no sum crosses it; values are
//! `[32][head_dim]`. Positions outside a query's window are never multiplied: they may hold another sequence's stale
//! data.

use super::isa::Isa;

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
mod portable;

/// Positions of a tile: one page of the KV cache.
pub const TILE_TOKENS: usize = 32;
/// Positions of a span. 256 keep the scores of a call in the first-level cache and give a long
/// context enough spans to share among threads.
pub const SPAN_TOKENS: usize = 256;
/// Rows of one call.
pub const MAX_ROWS: usize = 6;

/// Keys and values of one key-value head over one tile, F16 bits.
#[derive(Debug, Clone, Copy)]
pub struct KvTile<'a> {
    /// `[head_dim][TILE_TOKENS]`.
    pub k: &'a [u16],
    /// `[TILE_TOKENS][head_dim]`.
    pub v: &'a [u16],
}

/// A query head, already scaled by `1 / sqrt(head_dim)`, and its visible positions of the span.
#[derive(Debug, Clone, Copy)]
pub struct QueryRow<'a> {
    pub q: &'a [f32],
    /// Positions `from .. to`, relative to the span's first; at least one.
    pub from: usize,
    pub to: usize,
}

/// Maximum and sum of a row so far; the caller keeps its `acc`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Partial {
    pub max: f32,
    pub sum: f32,
}

/// Attention over one span for up to [`MAX_ROWS`] rows of one key-value head. `out` receives the `acc` (`[head_dim]`)
/// of each row, consecutively.
///
/// # Panics
/// If a row sees no position, or more than `tiles` hold, or sizes are inconsistent.
pub fn attention_span(
    isa: Isa,
    rows: &[QueryRow<'_>],
    tiles: &[KvTile<'_>],
    out: &mut [f32],
) -> [Partial; MAX_ROWS] {
    let head_dim = rows[0].q.len();
    check(rows, tiles, out, head_dim);
    #[cfg(target_arch = "x86_64")]
    if isa.is_avx2() && head_dim.is_multiple_of(8) {
        // SAFETY: the token proves the features; sizes were checked just above.
        return unsafe { avx2::attention_span(rows, tiles, out, head_dim) };
    }
    let _ = isa;
    portable::attention_span(rows, tiles, out, head_dim)
}

fn check(rows: &[QueryRow<'_>], tiles: &[KvTile<'_>], out: &[f32], head_dim: usize) {
    assert!(
        rows.len() <= MAX_ROWS && tiles.len() * TILE_TOKENS <= SPAN_TOKENS,
        "a call too large"
    );
    assert_eq!(out.len(), rows.len() * head_dim, "accumulators of the rows");
    for row in rows {
        assert!(
            row.from < row.to && row.to <= tiles.len() * TILE_TOKENS,
            "positions of a row"
        );
        assert_eq!(row.q.len(), head_dim, "query heads of one length");
    }
    for tile in tiles {
        let elements = head_dim * TILE_TOKENS;
        assert!(
            tile.k.len() == elements && tile.v.len() == elements,
            "elements of a tile"
        );
    }
}

/// Merges the next span into the earlier ones.
pub fn merge(so_far: &mut Partial, acc: &mut [f32], next: Partial, next_acc: &[f32]) {
    let max = so_far.max.max(next.max);
    let (keep, add) = ((so_far.max - max).exp(), (next.max - max).exp());
    so_far.sum = so_far.sum * keep + next.sum * add;
    so_far.max = max;
    for (acc, &next) in acc.iter_mut().zip(next_acc) {
        *acc = *acc * keep + next * add;
    }
}

/// Converts the merged accumulator to the attention's output. A `sink` is a score in the softmax without a value, after
/// all spans.
pub fn finish(partial: Partial, sink: Option<f32>, acc: &mut [f32]) {
    let Some(sink) = sink else {
        return divide(acc, partial.sum);
    };
    // As `merge` with a span of one position with a value of zeros.
    let max = partial.max.max(sink);
    let keep = (partial.max - max).exp();
    acc.iter_mut().for_each(|acc| *acc *= keep);
    divide(acc, partial.sum * keep + (sink - max).exp());
}

fn divide(acc: &mut [f32], sum: f32) {
    for acc in acc {
        *acc /= sum;
    }
}
