//! Random but well-formed rows of any tensor type, for tests and benchmarks.
//!
//! Codes are uniform random bytes; block scales are chosen so that values stay near `±magnitude`, because a random bit
//! pattern read as F16 is as likely huge as tiny.

use crate::TensorType;
use half::{bf16, f16};

/// xorshift64*: reproducible, seeded, no dependency. Not for sampling tokens.
#[derive(Debug, Clone)]
pub struct Noise(u64);

impl Noise {
    #[must_use]
    pub fn new(seed: u64) -> Self {
        // Zero is xorshift's fixed point.
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub fn bits(&mut self) -> u32 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 32) as u32
    }

    /// Uniform in `[-1, 1)`.
    pub fn value(&mut self) -> f32 {
        (self.bits() >> 8) as f32 / (1 << 23) as f32 - 1.0
    }

    #[must_use]
    pub fn values(&mut self, count: usize, magnitude: f32) -> Vec<f32> {
        (0..count).map(|_| self.value() * magnitude).collect()
    }
}

/// `rows` rows of `cols` elements, in the encoding of a GGUF file.
///
/// # Panics
/// If `cols` is not a whole number of blocks.
#[must_use]
pub fn random_rows(ty: TensorType, rows: usize, cols: usize, magnitude: f32, seed: u64) -> Vec<u8> {
    let row_bytes = ty.row_bytes(cols).expect("whole blocks");
    let mut noise = Noise::new(seed);
    let mut bytes = Vec::with_capacity(rows * row_bytes);
    while bytes.len() < rows * row_bytes {
        push_block(ty, magnitude, &mut noise, &mut bytes);
    }
    bytes
}

fn push_block(ty: TensorType, magnitude: f32, noise: &mut Noise, bytes: &mut Vec<u8>) {
    let start = bytes.len();
    bytes.extend((0..ty.block_bytes()).map(|_| noise.bits() as u8));
    let block = &mut bytes[start..];
    // Offsets of the F16 fields, and the largest code (times sub-scale) that each multiplies.
    let scales: &[(usize, f32)] = match ty {
        TensorType::F32 => {
            block.copy_from_slice(&(noise.value() * magnitude).to_le_bytes());
            return;
        }
        TensorType::F16 => {
            block.copy_from_slice(&f16::from_f32(noise.value() * magnitude).to_le_bytes());
            return;
        }
        TensorType::BF16 => {
            block.copy_from_slice(&bf16::from_f32(noise.value() * magnitude).to_le_bytes());
            return;
        }
        TensorType::Q8_0 => &[(0, 127.0)],
        TensorType::Q4_0 => &[(0, 8.0)],
        TensorType::Q4_1 => &[(0, 15.0), (2, 1.0)],
        TensorType::Q5_0 => &[(0, 16.0)],
        TensorType::Q5_1 => &[(0, 31.0), (2, 1.0)],
        TensorType::Q2_K => &[(80, 3.0 * 15.0), (82, 15.0)],
        TensorType::Q3_K => &[(108, 4.0 * 32.0)],
        TensorType::Q4_K => &[(0, 15.0 * 63.0), (2, 63.0)],
        TensorType::Q5_K => &[(0, 31.0 * 63.0), (2, 63.0)],
        TensorType::Q6_K => &[(208, 32.0 * 127.0)],
        TensorType::IQ2_XXS | TensorType::IQ2_XS | TensorType::IQ2_S => &[(0, 43.0 * 31.0 / 8.0)],
        TensorType::IQ3_XXS => &[(0, 62.0 * 31.0 / 4.0)],
        TensorType::IQ3_S => &[(0, 15.0 * 31.0)],
        TensorType::IQ4_NL => &[(0, 127.0)],
        TensorType::IQ4_XS => &[(0, 127.0 * 32.0)],
        TensorType::MXFP4 => {
            // A power of two, up to sixteen times smaller than the largest that fits.
            let largest = (magnitude / 12.0).log2().floor() as i32 + 128;
            block[0] = (largest - (noise.bits() % 5) as i32).clamp(0, 254) as u8;
            &[]
        }
    };
    for &(at, codes) in scales {
        let scale = f16::from_f32(noise.value() * magnitude / codes);
        block[at..at + 2].copy_from_slice(&scale.to_le_bytes());
    }
}
