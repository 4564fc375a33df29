//! Unpacked form of a block of 32 columns of a packed group, for the portable matmul and the embedding lookup. The AVX2
//! kernels read the packed bytes themselves.

use super::{ROWS, has_scales_of_sixteen};
use crate::TensorType;
use crate::reference::dequantize::{IQ4_VALUES, MXFP4_VALUES, e8m0_half, grid};
use half::f16;

/// `w = scale * (code - offset) + min`, with one scale and one min for each half of the block.
#[derive(Debug)]
pub struct Block {
    /// Codes by row, then column; table values in types with a table.
    pub codes: [[i16; 32]; ROWS],
    pub scales: [[f32; ROWS]; 2],
    pub mins: [[f32; ROWS]; 2],
}

/// Subtracted from a code before it is scaled.
fn offset(ty: TensorType) -> i16 {
    match ty {
        TensorType::Q3_K => 4,
        TensorType::Q4_0 => 8,
        TensorType::Q5_0 => 16,
        TensorType::Q6_K => 32,
        _ => 0,
    }
}

/// Block `b` of a packed group of a quantized type; the offset is already subtracted from `codes`.
pub fn block(ty: TensorType, group: &[u8], b: usize) -> Block {
    let zero = [[0.0; ROWS]; 2];
    let (scales, mins, codes) = match ty {
        TensorType::Q4_1 | TensorType::Q5_1 => {
            let bytes = &group[b * ROWS * ty.block_bytes()..][..ROWS * ty.block_bytes()];
            ([halves(bytes); 2], [halves(&bytes[16..]); 2], &bytes[32..])
        }
        TensorType::Q4_K | TensorType::Q5_K => {
            let sub_bytes = if ty == TensorType::Q4_K { 144 } else { 176 };
            let header = &group[b / 8 * (32 + 8 * sub_bytes)..];
            let sub = &header[32 + b % 8 * sub_bytes..][..sub_bytes];
            let (d, dmin) = (halves(header), halves(&header[16..]));
            let scale = std::array::from_fn(|r| d[r] * f32::from(sub[r]));
            let min = std::array::from_fn(|r| -(dmin[r] * f32::from(sub[8 + r])));
            ([scale; 2], [min; 2], &sub[16..])
        }
        TensorType::Q2_K => {
            let header = &group[b / 8 * (32 + 8 * 80)..];
            let sub = &header[32 + b % 8 * 80..][..80];
            let (d, dmin) = (halves(header), halves(&header[16..]));
            let of = |h: usize, r: usize| (sub[8 * h + r] & 15, sub[8 * h + r] >> 4);
            let scale = |h| std::array::from_fn(|r| d[r] * f32::from(of(h, r).0));
            let min = |h| std::array::from_fn(|r| -(dmin[r] * f32::from(of(h, r).1)));
            ([scale(0), scale(1)], [min(0), min(1)], &sub[16..])
        }
        TensorType::MXFP4 => {
            let bytes = &group[b * 136..][..136];
            let scale = std::array::from_fn(|r| e8m0_half(bytes[r]));
            ([scale; 2], zero, &bytes[8..])
        }
        ty if ty == TensorType::Q6_K || has_scales_of_sixteen(ty) => {
            let sub_bytes = if ty == TensorType::Q6_K { 208 } else { 144 };
            let header = &group[b / 8 * (16 + 8 * sub_bytes)..];
            let sub = &header[16 + b % 8 * sub_bytes..][..sub_bytes];
            let step = grid::step(ty).unwrap_or(1.0);
            let d = halves(header).map(|d| d * step);
            let scale = |h: usize| std::array::from_fn(|r| d[r] * f32::from(sub[8 * h + r] as i8));
            ([scale(0), scale(1)], zero, &sub[16..])
        }
        _ => {
            let bytes = &group[b * ROWS * ty.block_bytes()..][..ROWS * ty.block_bytes()];
            ([halves(bytes); 2], zero, &bytes[16..])
        }
    };
    Block {
        codes: codes_by_row(ty, codes),
        scales,
        mins,
    }
}

fn has_min(ty: TensorType) -> bool {
    use TensorType::{Q2_K, Q4_1, Q4_K, Q5_1, Q5_K};
    matches!(ty, Q4_1 | Q5_1 | Q2_K | Q4_K | Q5_K)
}

/// Row `lane` of a block as `f32`, with the roundings of the reference.
pub fn lane(ty: TensorType, block: Block, lane: usize, out: &mut [f32]) {
    let has_min = has_min(ty);
    for (k, out) in out.iter_mut().enumerate() {
        let scaled = block.scales[k / 16][lane] * f32::from(block.codes[lane][k]);
        // Adding a zero would turn -0 into 0.
        *out = if has_min {
            scaled + block.mins[k / 16][lane]
        } else {
            scaled
        };
    }
}

fn halves(bytes: &[u8]) -> [f32; ROWS] {
    std::array::from_fn(|r| f16::from_le_bytes([bytes[2 * r], bytes[2 * r + 1]]).to_f32())
}

fn codes_by_row(ty: TensorType, bytes: &[u8]) -> [[i16; 32]; ROWS] {
    let (offset, levels) = (offset(ty), grid::levels(ty));
    std::array::from_fn(|r| {
        std::array::from_fn(|k| {
            let (quad, byte) = (k / 4, 4 * r + k % 4);
            let nibble = |low: &[u8]| low[32 * (quad % 4) + byte] >> (4 * (quad / 4)) & 15;
            let code = match ty {
                TensorType::Q8_0 => return i16::from(bytes[32 * quad + byte] as i8),
                TensorType::IQ4_NL | TensorType::IQ4_XS => {
                    return i16::from(IQ4_VALUES[usize::from(nibble(bytes))]);
                }
                ty if grid::step(ty).is_some() => {
                    return i16::from(levels[usize::from(nibble(bytes))]);
                }
                TensorType::MXFP4 => return i16::from(MXFP4_VALUES[usize::from(nibble(bytes))]),
                TensorType::Q2_K => bytes[32 * (quad / 4) + byte] >> (2 * (quad % 4)) & 3,
                TensorType::Q5_0 | TensorType::Q5_1 | TensorType::Q5_K => {
                    nibble(&bytes[32..]) | (bytes[byte] >> quad & 1) << 4
                }
                TensorType::Q6_K => {
                    let high = bytes[128 + 32 * (quad / 4) + byte] >> (2 * (quad % 4)) & 3;
                    nibble(bytes) | high << 4
                }
                _ => nibble(bytes),
            };
            i16::from(code) - offset
        })
    })
}
