//! Packing: from the file's rows to interleaved groups.

use super::ROWS;
use crate::TensorType;
use crate::reference::dequantize::grid;

/// A file row, or `None` for the padding after the last one.
type Rows<'a> = [Option<&'a [u8]>; ROWS];

/// Writes one group. Every byte of `out` is written.
pub fn group(ty: TensorType, rows: &Rows<'_>, out: &mut [u8]) {
    match ty {
        TensorType::F32 | TensorType::F16 | TensorType::BF16 => floats(ty, rows, out),
        TensorType::MXFP4 => mxfp4(rows, out),
        ty if ty.block_elements() == 256 => k_quants(ty, rows, out),
        _ => legacy(ty, rows, out),
    }
}

fn floats(ty: TensorType, rows: &Rows<'_>, out: &mut [u8]) {
    let width = ty.block_bytes();
    for (k, column) in out.chunks_exact_mut(ROWS * width).enumerate() {
        for (value, row) in column.chunks_exact_mut(width).zip(rows) {
            match row {
                Some(row) => value.copy_from_slice(&row[k * width..][..width]),
                None => value.fill(0),
            }
        }
    }
}

fn legacy(ty: TensorType, rows: &Rows<'_>, out: &mut [u8]) {
    let block_bytes = ty.block_bytes();
    let halves = if matches!(ty, TensorType::Q4_1 | TensorType::Q5_1) {
        2
    } else {
        1
    };
    for (b, out) in out.chunks_exact_mut(ROWS * block_bytes).enumerate() {
        let blocks = rows.map(|row| row.map(|row| &row[b * block_bytes..][..block_bytes]));
        let (scales, codes) = out.split_at_mut(16 * halves);
        spread_halves(&blocks, 0, halves, scales);
        let codes_of = |block: &[u8]| legacy_codes(ty, block);
        put_codes(
            ty,
            &blocks.map(|block| block.map_or([0; 32], codes_of)),
            codes,
        );
    }
}

fn mxfp4(rows: &Rows<'_>, out: &mut [u8]) {
    let (ty, block_bytes) = (TensorType::MXFP4, TensorType::MXFP4.block_bytes());
    for (b, out) in out.chunks_exact_mut(ROWS * block_bytes).enumerate() {
        let blocks = rows.map(|row| row.map(|row| &row[b * block_bytes..][..block_bytes]));
        let (exponents, codes) = out.split_at_mut(ROWS);
        for (exponent, block) in exponents.iter_mut().zip(&blocks) {
            *exponent = block.map_or(0, |block| block[0]);
        }
        let codes_of = |block: &[u8]| legacy_codes(ty, block);
        put_codes(
            ty,
            &blocks.map(|block| block.map_or([0; 32], codes_of)),
            codes,
        );
    }
}

fn k_quants(ty: TensorType, rows: &Rows<'_>, out: &mut [u8]) {
    let block_bytes = ty.block_bytes();
    let blocks_in_row = rows
        .iter()
        .flatten()
        .next()
        .map_or(1, |row| row.len() / block_bytes);
    let (at, halves) = match ty {
        TensorType::Q2_K => (80, 2),
        TensorType::Q3_K => (108, 1),
        TensorType::Q6_K => (208, 1),
        TensorType::Q4_K | TensorType::Q5_K => (0, 2),
        _ => (0, 1),
    };
    let group_block = out.len() / blocks_in_row;
    for (b, out) in out.chunks_exact_mut(group_block).enumerate() {
        let blocks = rows.map(|row| row.map(|row| &row[b * block_bytes..][..block_bytes]));
        let (header, subs) = out.split_at_mut(16 * halves);
        spread_halves(&blocks, at, halves, header);
        let sub_bytes = subs.len() / 8;
        for (sub, out) in subs.chunks_exact_mut(sub_bytes).enumerate() {
            let (scales, codes) = out.split_at_mut(16);
            for (r, block) in blocks.iter().enumerate() {
                let pair = block.map_or([0, 0], |block| k_scales(ty, block, sub));
                [scales[r], scales[r + 8]] = pair;
            }
            let codes_of = |block: &[u8]| k_codes(ty, block, sub);
            put_codes(
                ty,
                &blocks.map(|block| block.map_or([0; 32], codes_of)),
                codes,
            );
        }
    }
}

/// F16 fields at `at`, `at + 2`, …: all rows' first field, then all rows' second.
fn spread_halves(blocks: &Rows<'_>, at: usize, halves: usize, out: &mut [u8]) {
    for (h, out) in out.chunks_exact_mut(16).take(halves).enumerate() {
        for (out, block) in out.chunks_exact_mut(2).zip(blocks) {
            out.copy_from_slice(block.map_or(&[0, 0], |block| &block[at + 2 * h..][..2]));
        }
    }
}

fn legacy_codes(ty: TensorType, block: &[u8]) -> [u8; 32] {
    let mut codes = [0; 32];
    match ty {
        TensorType::Q8_0 => codes.copy_from_slice(&block[2..34]),
        TensorType::Q4_0 | TensorType::IQ4_NL => put_nibbles(&block[2..], &mut codes),
        TensorType::MXFP4 => put_nibbles(&block[1..], &mut codes),
        TensorType::Q4_1 => put_nibbles(&block[4..], &mut codes),
        TensorType::Q5_0 => {
            put_nibbles(&block[6..], &mut codes);
            add_fifth_bits(&block[2..6], &mut codes);
        }
        TensorType::Q5_1 => {
            put_nibbles(&block[8..], &mut codes);
            add_fifth_bits(&block[4..8], &mut codes);
        }
        _ => unreachable!("not a legacy type"),
    }
    codes
}

/// The low halves of sixteen bytes, then the high ones.
fn put_nibbles(packed: &[u8], codes: &mut [u8; 32]) {
    let (low, high) = codes.split_at_mut(16);
    for ((low, high), byte) in low.iter_mut().zip(high).zip(packed) {
        [*low, *high] = [byte & 15, byte >> 4];
    }
}

/// One bit for each code.
fn add_fifth_bits(bits: &[u8], codes: &mut [u8; 32]) {
    for (codes, bits) in codes.chunks_exact_mut(8).zip(bits) {
        for (i, code) in codes.iter_mut().enumerate() {
            *code |= (bits >> i & 1) << 4;
        }
    }
}

fn k_codes(ty: TensorType, block: &[u8], sub: usize) -> [u8; 32] {
    let nibble = |qs: &[u8], i: usize| qs[32 * (sub / 2) + i] >> (4 * (sub % 2)) & 15;
    let two = |qs: &[u8], i: usize| qs[32 * (sub / 4) + i] >> (2 * (sub % 4)) & 3;
    std::array::from_fn(|i| match ty {
        TensorType::Q2_K => two(&block[16..], i),
        TensorType::Q3_K => two(&block[32..], i) | (block[i] >> sub & 1) << 2,
        ty if grid::step(ty).is_some() => grid::level(ty, block, 32 * sub + i),
        TensorType::IQ4_XS => block[8 + 16 * sub + i % 16] >> (4 * (i / 16)) & 15,
        TensorType::Q4_K => nibble(&block[16..], i),
        TensorType::Q5_K => nibble(&block[48..], i) | (block[16 + i] >> sub & 1) << 4,
        _ => {
            let (half, run) = (sub / 4, sub % 4);
            let low = block[64 * half + 32 * (run % 2) + i] >> (4 * (run / 2)) & 15;
            low | (block[128 + 32 * half + i] >> (2 * run) & 3) << 4
        }
    })
}

/// Scale and min of a sub-block of 32; for types with sub-blocks of 16 the scales of its two halves.
fn k_scales(ty: TensorType, block: &[u8], sub: usize) -> [u8; 2] {
    match ty {
        TensorType::Q2_K => return [block[2 * sub], block[2 * sub + 1]],
        TensorType::Q3_K => {
            let s = &block[96..108];
            return [2 * sub, 2 * sub + 1].map(|sub| {
                let low = s[sub % 8] >> (4 * (sub / 8)) & 15;
                (low | (s[8 + sub % 4] >> (2 * (sub / 4)) & 3) << 4).wrapping_sub(32)
            });
        }
        TensorType::IQ4_XS => {
            let low = block[4 + sub / 2] >> (4 * (sub % 2)) & 15;
            let high = block[2 + sub / 4] >> (2 * (sub % 4)) & 3;
            return [(low | high << 4).wrapping_sub(32); 2];
        }
        ty if grid::step(ty).is_some() => {
            return [32 * sub, 32 * sub + 16].map(|i| grid::odd_scale(ty, block, i));
        }
        TensorType::Q6_K => return [block[192 + 2 * sub], block[193 + 2 * sub]],
        _ => {}
    }
    let s = &block[4..16];
    if sub < 4 {
        [s[sub] & 63, s[sub + 4] & 63]
    } else {
        let (low, high) = (s[sub + 4] & 15, s[sub + 4] >> 4);
        [low | (s[sub - 4] >> 6) << 4, high | (s[sub] >> 6) << 4]
    }
}

/// The codes of one block of eight rows, in quads.
fn put_codes(ty: TensorType, codes: &[[u8; 32]; ROWS], out: &mut [u8]) {
    let mut quads = [[0; 32]; 8];
    for (j, quads) in quads.iter_mut().enumerate() {
        for (quad, codes) in quads.chunks_exact_mut(4).zip(codes) {
            quad.copy_from_slice(&codes[4 * j..][..4]);
        }
    }
    let nibbles = |out: &mut [u8]| {
        for (j, out) in out.chunks_exact_mut(32).enumerate() {
            for (b, out) in out.iter_mut().enumerate() {
                *out = quads[j][b] & 15 | (quads[j + 4][b] & 15) << 4;
            }
        }
    };
    let pairs = |out: &mut [u8], shift: usize| {
        for (h, out) in out.chunks_exact_mut(32).enumerate() {
            for (b, out) in out.iter_mut().enumerate() {
                let pair = |f: usize| (quads[4 * h + f][b] >> shift) << (2 * f);
                *out = (0..4).map(pair).sum();
            }
        }
    };
    match ty {
        TensorType::Q2_K => pairs(out, 0),
        TensorType::Q8_0 => {
            for (out, quad) in out.chunks_exact_mut(32).zip(&quads) {
                out.copy_from_slice(quad);
            }
        }
        TensorType::Q5_0 | TensorType::Q5_1 | TensorType::Q5_K => {
            let (fifth, low) = out.split_at_mut(32);
            for (b, out) in fifth.iter_mut().enumerate() {
                *out = (0..8).map(|j| (quads[j][b] >> 4) << j).sum();
            }
            nibbles(low);
        }
        TensorType::Q6_K => {
            let (low, high) = out.split_at_mut(128);
            nibbles(low);
            pairs(high, 4);
        }
        _ => nibbles(out),
    }
}
