//! The short convolution of [`reference::short_conv`](crate::reference::short_conv), by blocks of positions.
//!
//! A block keeps the inputs of the convolution of its positions. An output reads those of its own block up to its position, and
//! the last ones of the block before. So a row is a function of rows before it, as a row of attention is: it may be computed
//! twice, and rows behind it may be dropped.

use super::delta_net::BLOCK;
use super::isa::Isa;

/// Neighbouring channels of a layer: what is kept of a block of positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConvUnit {
    pub channels: usize,
    /// Positions that the convolution sees.
    pub kernel: usize,
}

impl ConvUnit {
    /// Floats of a block: the inputs of its positions, `[BLOCK, channels]`.
    #[must_use]
    pub fn floats(&self) -> usize {
        BLOCK * self.channels
    }
}

/// Projections of a position, `[channels]` each: the gate of the input, that of the output, and the input.
#[derive(Debug, Clone, Copy)]
pub struct ConvInputs<'a> {
    pub b: &'a [f32],
    pub c: &'a [f32],
    pub x: &'a [f32],
}

/// Computes the position of `slot` in `block`, of which the rows before are computed, and writes its row. `weights`: by position
/// and then by channel, the present position last, `[kernel, channels]`. `before`: the block before this one, if there is
/// one. `out`: `[channels]`.
///
/// # Panics
/// If a length is not the unit's.
pub fn short_conv_row(
    isa: Isa,
    (unit, weights): (&ConvUnit, &[f32]),
    inputs: ConvInputs<'_>,
    before: Option<&[f32]>,
    place: (&mut [f32], usize),
    out: &mut [f32],
) {
    assert!(
        place.0.len() == unit.floats()
            && before.is_none_or(|before| before.len() == unit.floats())
            && weights.len() == unit.kernel * unit.channels,
        "blocks and weights of the unit"
    );
    #[cfg(target_arch = "x86_64")]
    if isa.is_avx2() {
        // SAFETY: the token proves the features; nothing else is asked.
        return unsafe { avx2((unit, weights), inputs, before, place, out) };
    }
    let _ = isa;
    body((unit, weights), inputs, before, place, out);
}

/// The same code, compiled for wider registers.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn avx2(
    of: (&ConvUnit, &[f32]),
    inputs: ConvInputs<'_>,
    before: Option<&[f32]>,
    place: (&mut [f32], usize),
    out: &mut [f32],
) {
    body(of, inputs, before, place, out);
}

#[inline(always)]
fn body(
    (unit, weights): (&ConvUnit, &[f32]),
    ConvInputs { b, c, x }: ConvInputs<'_>,
    before: Option<&[f32]>,
    (block, slot): (&mut [f32], usize),
    out: &mut [f32],
) {
    let channels = unit.channels;
    let row = &mut block[slot * channels..][..channels];
    for ((row, &b), &x) in row.iter_mut().zip(b).zip(x) {
        *row = b * x;
    }
    let out = &mut out[..channels];
    out.fill(0.0);
    for (back, weights) in weights.chunks_exact(channels).rev().enumerate() {
        let inputs = match (slot.checked_sub(back), before) {
            (Some(slot), _) => &block[slot * channels..][..channels],
            (None, Some(before)) => &before[(BLOCK + slot - back) * channels..][..channels],
            (None, None) => break,
        };
        for ((out, &w), &x) in out.iter_mut().zip(weights).zip(inputs) {
            *out += w * x;
        }
    }
    out.iter_mut().zip(c).for_each(|(out, &c)| *out *= c);
}
