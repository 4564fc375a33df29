//! Types with codes for several values of a grid at once: IQ2 and IQ3.
//!
//! Layouts: `block_iq2_xxs` and its siblings in `ggml-common.h`. All of them are `y = (d (2 s + 1) step) level`, with a
//! scale `s` of 16 or 32 columns and a signed level.

use super::grids::{IQ2_S, IQ2_XS, IQ2_XXS, IQ3_S, IQ3_XXS};
use super::half_at;
use crate::TensorType;

/// Factor of `2 s + 1`, a power of two; `None` for types without a grid.
#[must_use]
pub fn step(ty: TensorType) -> Option<f32> {
    match ty {
        TensorType::IQ3_S => Some(1.0),
        TensorType::IQ3_XXS => Some(0.25),
        TensorType::IQ2_XXS | TensorType::IQ2_XS | TensorType::IQ2_S => Some(0.125),
        _ => None,
    }
}

/// The grid in the encoding of `grids`; empty for types without one.
#[must_use]
pub fn grid(ty: TensorType) -> &'static [u16] {
    match ty {
        TensorType::IQ2_XXS => &IQ2_XXS,
        TensorType::IQ2_XS => &IQ2_XS,
        TensorType::IQ2_S => &IQ2_S,
        TensorType::IQ3_XXS => &IQ3_XXS,
        TensorType::IQ3_S => &IQ3_S,
        _ => &[],
    }
}

/// Levels by the result of [`level`]: the positive ones, then their negatives.
pub const IQ3_S_LEVELS: [i8; 16] = both_signs([1, 3, 5, 7, 9, 11, 13, 15]);
pub const IQ3_XXS_LEVELS: [i8; 16] = both_signs([4, 12, 20, 28, 36, 44, 52, 62]);
/// Levels of the three types of IQ2: three.
pub const IQ2_LEVELS: [i8; 16] = both_signs([8, 25, 43, 0, 0, 0, 0, 0]);

const fn both_signs(above: [i8; 8]) -> [i8; 16] {
    let mut both = [0; 16];
    let mut i = 0;
    while i < 8 {
        both[i] = above[i];
        both[i + 8] = -above[i];
        i += 1;
    }
    both
}

#[must_use]
pub fn levels(ty: TensorType) -> [i8; 16] {
    match ty {
        TensorType::IQ3_S => IQ3_S_LEVELS,
        TensorType::IQ3_XXS => IQ3_XXS_LEVELS,
        _ => IQ2_LEVELS,
    }
}

/// The number of element `i`'s level: three bits, and a fourth if it is negative.
#[must_use]
pub fn level(ty: TensorType, b: &[u8], i: usize) -> u8 {
    let (sub, eight, bit) = (i / 32, i / 8, i % 8);
    let word = |at: usize| u32::from_le_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]]);
    // Seven signs; the eighth makes their number even.
    let even = |signs: u32| signs & 127 | ((signs & 127).count_ones() % 2) << 7;
    let (code, signs) = match ty {
        TensorType::IQ2_XXS => {
            let signs = word(2 + 8 * sub + 4) >> (7 * (eight % 4));
            (usize::from(b[2 + 8 * sub + eight % 4]), even(signs))
        }
        TensorType::IQ2_XS => {
            let q = u16::from_le_bytes([b[2 + 2 * eight], b[3 + 2 * eight]]);
            (usize::from(q & 511), even(u32::from(q >> 9)))
        }
        TensorType::IQ2_S => {
            let high = usize::from(b[66 + sub] >> (2 * (eight % 4)) & 3);
            (usize::from(b[2 + eight]) | high << 8, b[34 + eight].into())
        }
        TensorType::IQ3_XXS => {
            let signs = word(66 + 4 * sub) >> (7 * (eight % 4));
            (usize::from(b[2 + i / 4]), even(signs))
        }
        _ => {
            let high = usize::from(b[66 + sub] >> (i / 4 % 8) & 1);
            (usize::from(b[2 + i / 4]) | high << 8, b[74 + eight].into())
        }
    };
    let values = grid(ty)[code];
    let number = match ty {
        TensorType::IQ3_XXS | TensorType::IQ3_S => values >> (3 * (i % 4)) & 7,
        _ => values >> (2 * bit) & 3,
    };
    number as u8 | ((signs >> bit & 1) as u8) << 3
}

/// `2 s + 1` of element `i`: an odd number up to 31.
#[must_use]
pub fn odd_scale(ty: TensorType, b: &[u8], i: usize) -> u8 {
    let (sub, half) = (i / 32, i / 16 % 2);
    let nibble = |byte: u8, high: usize| byte >> (4 * high) & 15;
    let scale = match ty {
        TensorType::IQ2_XXS => b[2 + 8 * sub + 7] >> 4,
        TensorType::IQ2_XS => nibble(b[66 + sub], half),
        TensorType::IQ2_S => nibble(b[74 + sub], half),
        TensorType::IQ3_XXS => b[66 + 4 * sub + 3] >> 4,
        _ => nibble(b[106 + sub / 2], sub % 2),
    };
    2 * scale + 1
}

pub fn block(ty: TensorType, b: &[u8], y: &mut [f32]) {
    let (d, step) = (half_at(b, 0), step(ty).expect("a type with a grid"));
    let levels = levels(ty);
    for (i, y) in y.iter_mut().enumerate() {
        let level = levels[usize::from(level(ty, b, i))];
        *y = d * f32::from(odd_scale(ty, b, i)) * step * f32::from(level);
    }
}
