//! Attention for AVX2: scores eight positions to a register, outputs eight dimensions to one.

use super::{KvTile, MAX_ROWS, Partial, QueryRow, SPAN_TOKENS, TILE_TOKENS};
use std::arch::x86_64::*;

type Scores = [[f32; SPAN_TOKENS]; MAX_ROWS];

/// # Safety
/// AVX2, FMA and F16C are there, `head_dim` is a multiple of eight, and sizes are as
/// [`super::check`] demands.
#[target_feature(enable = "avx2,fma,f16c")]
pub unsafe fn attention_span(
    rows: &[QueryRow<'_>],
    tiles: &[KvTile<'_>],
    out: &mut [f32],
    head_dim: usize,
) -> [Partial; MAX_ROWS] {
    // SAFETY: the number of rows picks the variant; the rest is handed on from the caller. How
    // many registers a row gets changes what runs side by side, not what is added to what.
    unsafe {
        match rows.len() {
            1 => fixed::<1, 4, 8>(rows, tiles, out, head_dim),
            2 => fixed::<2, 4, 4>(rows, tiles, out, head_dim),
            3 => fixed::<3, 4, 4>(rows, tiles, out, head_dim),
            4 => fixed::<4, 2, 2>(rows, tiles, out, head_dim),
            5 => fixed::<5, 2, 2>(rows, tiles, out, head_dim),
            _ => fixed::<6, 2, 2>(rows, tiles, out, head_dim),
        }
    }
}

/// `R` rows; `KEYS` registers of scores and `DIMS` registers of output for each at a time.
///
/// # Safety
/// As for [`attention_span`], with exactly `R` rows.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn fixed<const R: usize, const KEYS: usize, const DIMS: usize>(
    rows: &[QueryRow<'_>],
    tiles: &[KvTile<'_>],
    out: &mut [f32],
    head_dim: usize,
) -> [Partial; MAX_ROWS] {
    let rows: &[QueryRow<'_>; R] = rows.try_into().expect("R rows");
    let from = rows.iter().map(|row| row.from).min().unwrap_or(0);
    let to = rows.iter().map(|row| row.to).max().unwrap_or(0);
    let mut scores: Scores = [[0.0; SPAN_TOKENS]; MAX_ROWS];
    let first = from / TILE_TOKENS;
    for (i, tile) in tiles[first..to.div_ceil(TILE_TOKENS)].iter().enumerate() {
        // SAFETY: handed on; the tile is the span's, at index first + i.
        unsafe { tile_scores::<R, KEYS>(rows, tile, first + i, head_dim, &mut scores) };
    }
    let mut partials = [Partial { max: 0.0, sum: 0.0 }; MAX_ROWS];
    for (r, row) in rows.iter().enumerate() {
        partials[r] = weigh(&mut scores[r], row);
    }
    let mut d = 0;
    while d + 8 * DIMS <= head_dim {
        // SAFETY: columns d .. d + 8 DIMS exist in every value and in every accumulator.
        unsafe { outputs::<R, DIMS>(rows, tiles, &scores, d, head_dim, out) };
        d += 8 * DIMS;
    }
    while d < head_dim {
        // SAFETY: head_dim is a multiple of eight.
        unsafe { outputs::<R, 1>(rows, tiles, &scores, d, head_dim, out) };
        d += 8;
    }
    partials
}

/// All 32 scores of one tile for every row; positions outside a row's window are masked afterwards.
///
/// # Safety
/// As for [`fixed`]; `KEYS` divides 4.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn tile_scores<const R: usize, const KEYS: usize>(
    rows: &[QueryRow<'_>; R],
    tile: &KvTile<'_>,
    index: usize,
    head_dim: usize,
    scores: &mut Scores,
) {
    for first in (0..TILE_TOKENS).step_by(8 * KEYS) {
        let mut acc = [[_mm256_setzero_ps(); KEYS]; R];
        for d in 0..head_dim {
            let mut k = [_mm256_setzero_ps(); KEYS];
            for (i, k) in k.iter_mut().enumerate() {
                // SAFETY: d < head_dim and first + 8 i + 8 <= 32: inside the tile's keys.
                *k = unsafe { wide(tile.k.as_ptr().add(d * TILE_TOKENS + first + 8 * i)) };
            }
            for (acc, row) in acc.iter_mut().zip(rows) {
                // SAFETY: every query has head_dim values.
                let q = _mm256_set1_ps(unsafe { *row.q.get_unchecked(d) });
                for (acc, &k) in acc.iter_mut().zip(&k) {
                    *acc = _mm256_fmadd_ps(q, k, *acc);
                }
            }
        }
        for (acc, scores) in acc.iter().zip(scores.iter_mut()) {
            for (i, &acc) in acc.iter().enumerate() {
                let at = index * TILE_TOKENS + first + 8 * i;
                // SAFETY: the tile lies inside the span, so at + 8 <= SPAN_TOKENS.
                unsafe { _mm256_storeu_ps(scores.as_mut_ptr().add(at), acc) };
            }
        }
    }
}

/// Converts scores to weights `exp(s - max)`, in place. Sums run in eight lanes by position modulo eight; a position
/// outside the row's window adds an exact zero.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn weigh(scores: &mut [f32; SPAN_TOKENS], row: &QueryRow<'_>) -> Partial {
    let (start, end) = (row.from & !7, row.to.next_multiple_of(8));
    scores[start..row.from].fill(f32::NEG_INFINITY);
    scores[row.to..end].fill(f32::NEG_INFINITY);
    let seen = &mut scores[start..end];
    let mut max = _mm256_set1_ps(f32::NEG_INFINITY);
    for eight in seen.chunks_exact(8) {
        // SAFETY: a chunk is eight floats.
        max = _mm256_max_ps(max, unsafe { _mm256_loadu_ps(eight.as_ptr()) });
    }
    let max = fold(max, f32::max);
    let mut sum = _mm256_setzero_ps();
    for eight in seen.chunks_exact_mut(8) {
        // SAFETY: a chunk is eight floats, and AVX2 and FMA are enabled here.
        unsafe {
            let s = _mm256_loadu_ps(eight.as_ptr());
            let weight = exp(_mm256_sub_ps(s, _mm256_set1_ps(max)));
            sum = _mm256_add_ps(sum, weight);
            _mm256_storeu_ps(eight.as_mut_ptr(), weight);
        }
    }
    Partial {
        max,
        sum: fold(sum, |a, b| a + b),
    }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn fold(v: __m256, f: impl Fn(f32, f32) -> f32) -> f32 {
    let mut lanes = [0.0; 8];
    // SAFETY: eight floats.
    unsafe { _mm256_storeu_ps(lanes.as_mut_ptr(), v) };
    let [a, b, c, d, e, g, h, i] = lanes;
    f(f(f(a, e), f(c, h)), f(f(b, g), f(d, i)))
}

/// Columns `d .. d + 8 DIMS` of every row's output: weights times values, positions in order.
///
/// # Safety
/// As for [`fixed`], with `d + 8 DIMS <= head_dim`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn outputs<const R: usize, const DIMS: usize>(
    rows: &[QueryRow<'_>; R],
    tiles: &[KvTile<'_>],
    scores: &Scores,
    d: usize,
    head_dim: usize,
    out: &mut [f32],
) {
    let mut acc = [[_mm256_setzero_ps(); DIMS]; R];
    // SAFETY: p is below a row's `to`, which the tiles cover, and d as guaranteed.
    let value = |p: usize, i: usize| unsafe {
        let tile = tiles.get_unchecked(p / TILE_TOKENS);
        wide(tile.v.as_ptr().add(p % TILE_TOKENS * head_dim + d + 8 * i))
    };
    let add = |acc: &mut [__m256; DIMS], r: usize, p: usize, v: &[__m256; DIMS]| {
        let weight = _mm256_set1_ps(scores[r][p]);
        for (acc, &v) in acc.iter_mut().zip(v) {
            *acc = _mm256_fmadd_ps(weight, v, *acc);
        }
    };
    // Positions visible to all rows are read once for all of them; the others, for each row. A row's own positions come
    // in the same order either way.
    let common = rows.iter().map(|row| row.from).max().unwrap_or(0);
    let until = rows.iter().map(|row| row.to).min().unwrap_or(0).max(common);
    let single = |acc: &mut [[__m256; DIMS]; R], r: usize, from: usize, to: usize| {
        for p in from..to {
            add(&mut acc[r], r, p, &std::array::from_fn(|i| value(p, i)));
        }
    };
    for (r, row) in rows.iter().enumerate() {
        single(&mut acc, r, row.from, row.to.min(common));
    }
    for p in common..until {
        let v: [__m256; DIMS] = std::array::from_fn(|i| value(p, i));
        for (r, acc) in acc.iter_mut().enumerate() {
            add(acc, r, p, &v);
        }
    }
    for (r, row) in rows.iter().enumerate() {
        single(&mut acc, r, until.max(row.from), row.to);
    }
    for (r, acc) in acc.iter().enumerate() {
        for (i, &acc) in acc.iter().enumerate() {
            // SAFETY: `out` holds head_dim floats for each of R rows.
            unsafe { _mm256_storeu_ps(out.as_mut_ptr().add(r * head_dim + d + 8 * i), acc) };
        }
    }
}

/// Eight F16 values.
///
/// # Safety
/// F16C is there, and eight values at `p`.
#[inline(always)]
unsafe fn wide(p: *const u16) -> __m256 {
    // SAFETY: 16 bytes, guaranteed by the caller.
    unsafe { _mm256_cvtph_ps(_mm_loadu_si128(p.cast())) }
}

/// `exp` of eight values, within two units in the last place: range reduction by `ln 2` in two
/// parts and a polynomial of degree six (minimax on `±ln 2 / 2`, the coefficients of Cephes'
/// `expf`). Below -87.3, where the result would be subnormal, it is 0; NaN stays NaN.
///
/// # Safety
/// AVX2 and FMA are there.
#[inline(always)]
pub unsafe fn exp(x: __m256) -> __m256 {
    // SAFETY: arithmetic only, with features guaranteed by the caller.
    unsafe {
        let set = |v: f32| _mm256_set1_ps(v);
        let tiny = _mm256_cmp_ps::<_CMP_LT_OQ>(x, set(-87.3));
        // min and max return their second operand if one is a NaN: it must be x.
        let x = _mm256_min_ps(set(88.0), _mm256_max_ps(set(-87.3), x));
        let n = _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(
            _mm256_mul_ps(x, set(std::f32::consts::LOG2_E)),
        );
        let r = _mm256_fnmadd_ps(n, set(0.693_359_4), x);
        let r = _mm256_fnmadd_ps(n, set(-2.121_944_4e-4), r);
        let mut y = set(1.987_569_1e-4);
        for c in [
            1.398_2e-3,
            8.333_452e-3,
            4.166_579_6e-2,
            1.666_666_5e-1,
            0.5,
        ] {
            y = _mm256_fmadd_ps(y, r, set(c));
        }
        let y = _mm256_add_ps(_mm256_fmadd_ps(y, _mm256_mul_ps(r, r), r), set(1.0));
        let bias = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
        let power = _mm256_castsi256_ps(_mm256_slli_epi32::<23>(bias));
        _mm256_andnot_ps(tiny, _mm256_mul_ps(y, power))
    }
}
