//! Attention for machines without AVX2, and for head sizes that are not a multiple of eight.

use super::{KvTile, MAX_ROWS, Partial, QueryRow, SPAN_TOKENS, TILE_TOKENS};
use half::f16;

pub fn attention_span(
    rows: &[QueryRow<'_>],
    tiles: &[KvTile<'_>],
    out: &mut [f32],
    head_dim: usize,
) -> [Partial; MAX_ROWS] {
    let mut partials = [Partial { max: 0.0, sum: 0.0 }; MAX_ROWS];
    for ((row, acc), partial) in rows
        .iter()
        .zip(out.chunks_exact_mut(head_dim))
        .zip(&mut partials)
    {
        *partial = attend_row(row, tiles, acc);
    }
    partials
}

fn attend_row(row: &QueryRow<'_>, tiles: &[KvTile<'_>], acc: &mut [f32]) -> Partial {
    let mut scores = [f32::NEG_INFINITY; SPAN_TOKENS];
    for p in row.from..row.to {
        let k = tiles[p / TILE_TOKENS].k;
        let key = |d: usize| wide(k[d * TILE_TOKENS + p % TILE_TOKENS]);
        scores[p] = row
            .q
            .iter()
            .enumerate()
            .fold(0.0, |sum, (d, &q)| sum + q * key(d));
    }
    let max = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut sum = 0.0;
    acc.fill(0.0);
    for p in row.from..row.to {
        let weight = (scores[p] - max).exp();
        sum += weight;
        let v = &tiles[p / TILE_TOKENS].v[p % TILE_TOKENS * acc.len()..];
        for (acc, &v) in acc.iter_mut().zip(v) {
            *acc += weight * wide(v);
        }
    }
    Partial { max, sum }
}

fn wide(bits: u16) -> f32 {
    f16::from_bits(bits).to_f32()
}
