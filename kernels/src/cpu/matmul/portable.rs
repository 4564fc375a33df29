//! Matmul for machines without AVX2, and a cross-check for those with it.

use super::Activations;
use crate::TensorType;
use crate::cpu::packed::{ROWS, unpack};
use crate::cpu::quantize::Q_BLOCK;
use half::{bf16, f16};

pub fn tile(ty: TensorType, group: &[u8], x: &Activations<'_>, out: &mut [[f32; ROWS]]) {
    match ty {
        TensorType::F32 => floats::<4>(group, x, out, f32::from_le_bytes),
        TensorType::F16 => floats::<2>(group, x, out, |b| f16::from_le_bytes(b).to_f32()),
        TensorType::BF16 => floats::<2>(group, x, out, |b| bf16::from_le_bytes(b).to_f32()),
        _ => quantized(ty, group, x, out),
    }
}

fn quantized(ty: TensorType, group: &[u8], x: &Activations<'_>, out: &mut [[f32; ROWS]]) {
    out.fill([0.0; ROWS]);
    let blocks = x.cols / Q_BLOCK;
    for b in 0..blocks {
        let weights = unpack::block(ty, group, b);
        for (t, acc) in out.iter_mut().enumerate() {
            let q = &x.q[t * x.cols + b * Q_BLOCK..][..Q_BLOCK];
            let meta = &x.meta[t * blocks + b];
            for (r, acc) in acc.iter_mut().enumerate() {
                let codes = &weights.codes[r];
                let dot = |from: usize| -> i32 {
                    (from..from + 16)
                        .map(|k| i32::from(codes[k]) * i32::from(q[k]))
                        .sum()
                };
                let first = dot(0) as f32 * weights.scales[0][r];
                let second = dot(16) as f32 * weights.scales[1][r];
                let [min, last_min] = [weights.mins[0][r], weights.mins[1][r]];
                let offset = if ty == TensorType::Q2_K {
                    min * meta.half_sums[0] + last_min * meta.half_sums[1]
                } else {
                    min * meta.sum
                };
                *acc += (first + second) * meta.d + offset;
            }
        }
    }
}

fn floats<const WIDTH: usize>(
    group: &[u8],
    x: &Activations<'_>,
    out: &mut [[f32; ROWS]],
    read: impl Fn([u8; WIDTH]) -> f32,
) {
    for (x, out) in x.values.chunks_exact(x.cols).zip(out) {
        let mut sums = [[0.0; ROWS]; 2];
        for (k, (column, &x)) in group.chunks_exact(ROWS * WIDTH).zip(x).enumerate() {
            for (acc, bytes) in sums[k % 2].iter_mut().zip(column.chunks_exact(WIDTH)) {
                *acc += read(bytes.try_into().expect("WIDTH bytes")) * x;
            }
        }
        *out = std::array::from_fn(|r| sums[0][r] + sums[1][r]);
    }
}
