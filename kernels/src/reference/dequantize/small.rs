//! Types of two and three bits, and types with four-bit codes for values of a table.
//!
//! Layouts and tables: `block_q2_K`, `block_q3_K`, `block_iq4_nl`, `block_iq4_xs`, `block_mxfp4`, `kvalues_iq4nl` and
//! `kvalues_mxfp4` in `ggml-common.h`.

use super::half_at;

/// Values of the codes of IQ4_NL and IQ4_XS.
pub const IQ4_VALUES: [i8; 16] = [
    -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113,
];

/// Values of the codes of MXFP4: twice the values of OCP's E2M1.
pub const MXFP4_VALUES: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// Half of OCP's E8M0 scale `e`, `2^(e - 128)` (`ggml_e8m0_to_fp32_half` in `ggml-impl.h`).
#[must_use]
pub fn e8m0_half(e: u8) -> f32 {
    f32::from_bits(match e {
        // Below the smallest normal number.
        0 | 1 => 0x0020_0000 << e,
        _ => (u32::from(e) - 1) << 23,
    })
}

/// `{ u8 scales[16]; u8 qs[64]; f16 d, dmin }`, 16 sub-blocks of 16 with a scale in the low and a
/// min in the high nibble: `y = (d sc) q - (dmin m)`. Each half of 128 elements is four runs of
/// 32; run `r` has bits `2r` of `qs[32 half ..]`.
pub fn q2_k(b: &[u8], y: &mut [f32]) {
    let (d, dmin) = (half_at(b, 80), half_at(b, 82));
    for (i, y) in y.iter_mut().enumerate() {
        let (half, run, l) = (i / 128, i / 32 % 4, i % 32);
        let code = b[16 + 32 * half + l] >> (2 * run) & 3;
        let (scale, min) = (b[i / 16] & 15, b[i / 16] >> 4);
        *y = d * f32::from(scale) * f32::from(code) - dmin * f32::from(min);
    }
}

/// `{ u8 hmask[32]; u8 qs[64]; u8 scales[12]; f16 d }`: `y = (d (sc - 32)) (q - 4)`. Low bits as
/// in Q2_K; bit `i / 32` of `hmask[i % 32]` is the third bit of element `i`.
pub fn q3_k(b: &[u8], y: &mut [f32]) {
    let d = half_at(b, 108);
    for (i, y) in y.iter_mut().enumerate() {
        let (half, run, l) = (i / 128, i / 32 % 4, i % 32);
        let low = b[32 + 32 * half + l] >> (2 * run) & 3;
        let code = low | (b[l] >> (i / 32) & 1) << 2;
        let scale = d * (f32::from(q3_k_scale(&b[96..108], i / 16)) - 32.0);
        *y = scale * (f32::from(code) - 4.0);
    }
}

/// Sixteen 6-bit scales in 12 bytes: low nibbles in the nibbles of the first eight, high bit pairs
/// in the last four.
fn q3_k_scale(s: &[u8], sub: usize) -> u8 {
    let low = s[sub % 8] >> (4 * (sub / 8)) & 15;
    low | (s[8 + sub % 4] >> (2 * (sub / 4)) & 3) << 4
}

/// `{ f16 d; u8 qs[16] }`, `y = d table[q]`; low nibbles are the first half.
pub fn iq4_nl(b: &[u8], y: &mut [f32]) {
    from_table(half_at(b, 0), &IQ4_VALUES, &b[2..], y);
}

/// `{ f16 d; u16 scales_h; u8 scales_l[4]; u8 qs[128] }`, 8 sub-blocks of 32 with a 6-bit scale:
/// `y = (d (sc - 32)) table[q]`, nibbles as in IQ4_NL. Sub-block `s` has the low bits of its scale in
/// nibble `s` of `scales_l`, the high ones in bits `2s` of `scales_h`.
pub fn iq4_xs(b: &[u8], y: &mut [f32]) {
    let d = half_at(b, 0);
    let high = u16::from_le_bytes([b[2], b[3]]);
    for (sub, y) in y.chunks_exact_mut(32).enumerate() {
        let low = b[4 + sub / 2] >> (4 * (sub % 2)) & 15;
        let scale = low | ((high >> (2 * sub)) as u8 & 3) << 4;
        let scale = d * (f32::from(scale) - 32.0);
        from_table(scale, &IQ4_VALUES, &b[8 + 16 * sub..][..16], y);
    }
}

/// `{ u8 e; u8 qs[16] }`, `y = 2^(e - 128) table[q]`; low nibbles are the first half.
pub fn mxfp4(b: &[u8], y: &mut [f32]) {
    from_table(e8m0_half(b[0]), &MXFP4_VALUES, &b[1..], y);
}

fn from_table(d: f32, table: &[i8; 16], codes: &[u8], y: &mut [f32]) {
    for (i, &q) in codes.iter().enumerate() {
        y[i] = d * f32::from(table[usize::from(q & 15)]);
        y[i + 16] = d * f32::from(table[usize::from(q >> 4)]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_of_mxfp4_are_powers_of_two_down_to_the_smallest() {
        for e in 0..=254_u8 {
            assert_eq!(f64::from(e8m0_half(e)), 2_f64.powi(i32::from(e) - 128));
        }
    }

    #[test]
    fn q3_k_scales_unpack_to_six_bits() {
        let mut s = [0_u8; 12];
        // Sub-block 13: high nibble of byte 5, top bits of byte 9.
        s[5] = 0xA0;
        s[9] = 0b1100_0000;
        assert_eq!(q3_k_scale(&s, 13), 0b11_1010);
        let others = (0..16).filter(|&sub| sub != 13);
        assert!(others.into_iter().all(|sub| q3_k_scale(&s, sub) == 0));
    }
}
