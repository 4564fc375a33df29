//! Attention over tiles and spans against the reference, and against itself in other company.

use half::f16;
use worker_orcd_kernels::compare;
use worker_orcd_kernels::cpu::attention::MAX_ROWS;
use worker_orcd_kernels::cpu::{
    Isa, KvTile, QueryRow, SPAN_TOKENS, TILE_TOKENS, attention_span, finish, merge,
};
use worker_orcd_kernels::reference::attention::{AttentionShape, attention};
use worker_orcd_kernels::synthetic::Noise;

/// One key-value head of a cache, and the same values as the reference wants them.
struct Cache {
    head_dim: usize,
    tiles: Vec<(Vec<u16>, Vec<u16>)>,
    keys: Vec<f32>,
    values: Vec<f32>,
    sink: Option<f32>,
}

impl Cache {
    fn random(positions: usize, head_dim: usize, seed: u64) -> Self {
        let mut noise = Noise::new(seed);
        // What nobody wrote holds NaN: reading it would show.
        let empty = vec![f16::NAN.to_bits(); head_dim * TILE_TOKENS];
        let tiles = vec![(empty.clone(), empty); positions.div_ceil(TILE_TOKENS)];
        let mut cache = Self {
            head_dim,
            tiles,
            keys: vec![],
            values: vec![],
            sink: None,
        };
        for p in 0..positions {
            let (k, v) = &mut cache.tiles[p / TILE_TOKENS];
            for d in 0..head_dim {
                let key = f16::from_f32(noise.value());
                let value = f16::from_f32(noise.value());
                k[d * TILE_TOKENS + p % TILE_TOKENS] = key.to_bits();
                v[p % TILE_TOKENS * head_dim + d] = value.to_bits();
                cache.keys.push(key.to_f32());
                cache.values.push(value.to_f32());
            }
        }
        cache
    }

    /// Rows are `(query, position)`; all must see something of every span walked.
    fn attend<'q>(&self, isa: Isa, queries: &[(&'q [f32], usize)], window: usize) -> Vec<Vec<f32>> {
        let tiles: Vec<KvTile<'_>> = self.tiles.iter().map(|(k, v)| KvTile { k, v }).collect();
        let mut results: Vec<Option<(_, Vec<f32>)>> = vec![None; queries.len()];
        for (s, tiles) in tiles.chunks(SPAN_TOKENS / TILE_TOKENS).enumerate() {
            let start = s * SPAN_TOKENS;
            let seen = |(i, &(q, p)): (usize, &(&'q [f32], usize))| {
                let from = (p + 1).saturating_sub(window).max(start) - start;
                let to = (p + 1).min(start + tiles.len() * TILE_TOKENS);
                (start + from < to).then(|| {
                    (
                        i,
                        QueryRow {
                            q,
                            from,
                            to: to - start,
                        },
                    )
                })
            };
            let (seeing, rows): (Vec<usize>, Vec<QueryRow<'_>>) =
                queries.iter().enumerate().filter_map(seen).unzip();
            if rows.is_empty() {
                continue;
            }
            let mut out = vec![f32::NAN; rows.len() * self.head_dim];
            let partials = attention_span(isa, &rows, tiles, &mut out);
            for (n, i) in seeing.iter().enumerate() {
                let acc = &out[n * self.head_dim..][..self.head_dim];
                match &mut results[*i] {
                    None => results[*i] = Some((partials[n], acc.to_vec())),
                    Some((partial, so_far)) => merge(partial, so_far, partials[n], acc),
                }
            }
        }
        let finished = results.into_iter().map(|result| {
            let (partial, mut acc) = result.expect("every query sees itself");
            finish(partial, self.sink, &mut acc);
            acc
        });
        finished.collect()
    }

    fn expected(&self, q: &[f32], position: usize, window: Option<usize>) -> Vec<f32> {
        let scale = (self.head_dim as f32).sqrt();
        let q: Vec<f32> = q.iter().map(|v| v * scale).collect();
        let shape = AttentionShape {
            n_heads: 1,
            n_kv_heads: 1,
            head_dim: self.head_dim,
            window,
        };
        let end = (position + 1) * self.head_dim;
        let sink = self.sink.map(|sink| [sink]);
        let sinks = sink.as_ref().map(<[f32; 1]>::as_slice);
        attention(&q, &self.keys[..end], &self.values[..end], sinks, &shape)
    }
}

fn queries(count: usize, head_dim: usize, seed: u64) -> Vec<Vec<f32>> {
    let mut noise = Noise::new(seed);
    (0..count).map(|_| noise.values(head_dim, 0.7)).collect()
}

#[test]
fn agrees_with_the_reference_at_the_edges_of_tiles_and_spans() {
    for isa in Isa::all() {
        for head_dim in [1, 8, 16, 64, 72, 100, 128] {
            let cache = Cache::random(600, head_dim, 1);
            let q = queries(1, head_dim, 2);
            for position in [
                0, 1, 7, 8, 30, 31, 32, 33, 254, 255, 256, 257, 511, 512, 599,
            ] {
                for window in [None, Some(1), Some(33), Some(256), Some(300)] {
                    let got = cache.attend(isa, &[(&q[0], position)], window.unwrap_or(usize::MAX));
                    let seen = compare(&cache.expected(&q[0], position, window), &got[0]);
                    assert!(
                        seen.within(1e-5),
                        "{isa:?} head_dim {head_dim} position {position} {window:?}: {seen:?}"
                    );
                }
            }
        }
    }
}

#[test]
fn agrees_with_the_reference_beside_a_sink_of_any_size() {
    for isa in Isa::all() {
        for sink in [-1e9, -3.0, 0.0, 2.5, 40.0] {
            let mut cache = Cache::random(300, 64, 5);
            cache.sink = Some(sink);
            let q = queries(1, 64, 6);
            for (position, window) in [(0, None), (40, Some(33)), (299, None), (299, Some(128))] {
                let got = cache.attend(isa, &[(&q[0], position)], window.unwrap_or(usize::MAX));
                let seen = compare(&cache.expected(&q[0], position, window), &got[0]);
                assert!(seen.within(1e-5), "{isa:?} {sink} {position}: {seen:?}");
            }
        }
    }
}

#[test]
fn a_row_does_not_know_its_neighbours() {
    for isa in Isa::all() {
        for head_dim in [16, 64, 80, 100] {
            let cache = Cache::random(530, head_dim, 3);
            let q = queries(MAX_ROWS, head_dim, 4);
            // Positions apart by more than a window, by one, and equal (heads of one token).
            for positions in [
                [0, 1, 2, 3, 4, 5],
                [255, 255, 256, 256, 257, 400],
                [9, 300, 300, 301, 529, 529],
            ] {
                let all: Vec<(&[f32], usize)> =
                    q.iter().map(Vec::as_slice).zip(positions).collect();
                for window in [usize::MAX, 40] {
                    let alone: Vec<_> = all
                        .iter()
                        .flat_map(|&one| cache.attend(isa, &[one], window))
                        .collect();
                    for rows in 2..=MAX_ROWS {
                        let got = cache.attend(isa, &all[..rows], window);
                        assert_eq!(
                            got,
                            alone[..rows],
                            "{isa:?} {head_dim} {rows} {positions:?}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn far_scores_neither_overflow_nor_vanish() {
    let cache = Cache::random(300, 8, 5);
    let q = vec![3000.0; 8];
    for isa in Isa::all() {
        let got = cache.attend(isa, &[(&q, 299)], usize::MAX);
        assert!(compare(&cache.expected(&q, 299, None), &got[0]).within(1e-3));
    }
}
