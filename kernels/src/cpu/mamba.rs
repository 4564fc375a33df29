//! State-space layers of [`reference::mamba`](crate::reference::mamba), for some heads of one group, by blocks of positions.
//!
//! As in [`delta_net`](super::delta_net) the state changes only where a block ends, and until then each position adds a row: the
//! inputs of its convolution, its `b`, its updates `u = dt x` and its decays. With `d(j, i)` the product of the decays from
//! `j + 1` to `i`, and `S'` the transposed state before the block,
//!
//! ```text
//! y[i] = d(-1, i) S' c[i] + sum over j ≤ i of d(j, i) (b[j] · c[i]) u[j] + d x[i]
//! ```
//!
//! So a row is a function of rows before it: it may be computed twice, and rows behind it may be dropped.

use super::delta_net::{BLOCK, add_scaled, dot, softplus};
use super::isa::Isa;
use super::routing::sigmoid;

/// Heads of a group, of one layer: what is kept of a block of positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScanUnit {
    /// Values of `b`, and of `c`.
    pub state: usize,
    /// Values of a head's `x`.
    pub head_dim: usize,
    pub heads: usize,
    /// Positions that the convolution sees.
    pub kernel: usize,
}

impl ScanUnit {
    /// Inputs of the convolution: `x` of all heads, `b` and `c`.
    #[must_use]
    pub fn channels(&self) -> usize {
        self.heads * self.head_dim + 2 * self.state
    }

    /// Floats of a position: its inputs, `b` behind the convolution, its updates, and its decays.
    #[must_use]
    pub fn row(&self) -> usize {
        self.channels() + self.state + self.heads * (self.head_dim + 1)
    }

    /// Floats of the state at the end of a block, `[heads, state, head_dim]`.
    #[must_use]
    pub fn state_floats(&self) -> usize {
        self.heads * self.state * self.head_dim
    }

    /// Floats of a block: its rows, then the state.
    #[must_use]
    pub fn floats(&self) -> usize {
        BLOCK * self.row() + self.state_floats()
    }

    /// Part of a block with the row of a position.
    fn row_of<'a>(&self, block: &'a [f32], slot: usize) -> Row<'a> {
        let row = &block[slot * self.row()..][..self.row()];
        let (inputs, rest) = row.split_at(self.channels());
        let (b, rest) = rest.split_at(self.state);
        let (updates, log_decays) = rest.split_at(self.heads * self.head_dim);
        Row {
            inputs,
            b,
            updates,
            log_decays,
        }
    }
}

/// A position in a block.
#[derive(Clone, Copy)]
struct Row<'a> {
    inputs: &'a [f32],
    b: &'a [f32],
    updates: &'a [f32],
    log_decays: &'a [f32],
}

/// Weights of a unit.
#[derive(Debug, Clone)]
pub struct ScanWeights {
    /// Weights of the convolution `[kernel, channels]`, the present position last.
    pub conv: Vec<f32>,
    /// `[channels]`.
    pub conv_bias: Vec<f32>,
    /// Of each head: the bias in the softplus, the logarithm of the decay of a step of length 1, and the factor of `x`.
    pub dt: Vec<f32>,
    pub decay: Vec<f32>,
    pub direct: Vec<f32>,
}

/// Projections of a position.
#[derive(Debug, Clone)]
pub struct ScanInputs {
    pub channels: Vec<f32>,
    /// Of each head: the length of the step before its softplus.
    pub dt: Vec<f32>,
}

/// Computes the position of `slot` in `block`, of which the rows before are computed, and writes its row; the last one
/// writes the state, too. `before`: the block before this one, if there is one. `out`: the outputs, `[heads, head_dim]`.
///
/// # Panics
/// If a length is not the unit's.
pub fn scan_row(
    isa: Isa,
    (unit, weights): (&ScanUnit, &ScanWeights),
    inputs: &ScanInputs,
    before: Option<&[f32]>,
    place: (&mut [f32], usize),
    out: &mut [f32],
) {
    assert!(
        place.0.len() == unit.floats() && before.is_none_or(|before| before.len() == unit.floats()),
        "blocks of the unit"
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
    of: (&ScanUnit, &ScanWeights),
    inputs: &ScanInputs,
    before: Option<&[f32]>,
    place: (&mut [f32], usize),
    out: &mut [f32],
) {
    body(of, inputs, before, place, out);
}

#[inline(always)]
fn body(
    (unit, weights): (&ScanUnit, &ScanWeights),
    inputs: &ScanInputs,
    before: Option<&[f32]>,
    (block, slot): (&mut [f32], usize),
    out: &mut [f32],
) {
    let (channels, dim) = (unit.channels(), unit.head_dim);
    let place = slot * unit.row();
    block[place..][..channels].copy_from_slice(&inputs.channels);
    let mixed = convolve(unit, weights, before, block, slot);
    let (x, rest) = mixed.split_at(unit.heads * dim);
    let (b, c) = rest.split_at(unit.state);
    let row = &mut block[place + channels..][..unit.row() - channels];
    let (own_b, rest) = row.split_at_mut(unit.state);
    let (updates, log_decays) = rest.split_at_mut(unit.heads * dim);
    own_b.copy_from_slice(b);
    for (head, log_decay) in log_decays.iter_mut().enumerate() {
        let dt = softplus(inputs.dt[head] + weights.dt[head]);
        *log_decay = dt * weights.decay[head];
        let part = head * dim..(head + 1) * dim;
        for (u, &x) in updates[part.clone()].iter_mut().zip(&x[part]) {
            *u = dt * x;
        }
    }
    for head in 0..unit.heads {
        let out = &mut out[head * dim..][..dim];
        let direct = weights.direct[head];
        for (out, &x) in out.iter_mut().zip(&x[head * dim..]) {
            *out = direct * x;
        }
        // Decay from the beginning of the block.
        let mut log_decay = 0.0;
        for j in (0..=slot).rev() {
            let row = unit.row_of(block, j);
            let factor = f32::exp(log_decay) * dot(row.b, c);
            add_scaled(out, factor, &row.updates[head * dim..][..dim]);
            log_decay += row.log_decays[head];
        }
        let Some(before) = before else {
            continue;
        };
        let decay = f32::exp(log_decay);
        let state = state_of(unit, before, head);
        for (s, &c) in state.chunks_exact(dim).zip(c) {
            add_scaled(out, decay * c, s);
        }
    }
    if slot == BLOCK - 1 {
        end_block(unit, before, block);
    }
}

/// SiLU of the convolution of all channels at a position.
#[inline(always)]
fn convolve(
    unit: &ScanUnit,
    weights: &ScanWeights,
    before: Option<&[f32]>,
    block: &[f32],
    slot: usize,
) -> Vec<f32> {
    let channels = unit.channels();
    let mut sums = vec![0.0; channels];
    for (back, weights) in weights.conv.chunks_exact(channels).rev().enumerate() {
        let inputs = match (slot.checked_sub(back), before) {
            (Some(slot), _) => unit.row_of(block, slot).inputs,
            (None, Some(before)) => unit.row_of(before, BLOCK + slot - back).inputs,
            (None, None) => break,
        };
        for ((sum, &w), &x) in sums.iter_mut().zip(weights).zip(inputs) {
            *sum += w * x;
        }
    }
    for (sum, &bias) in sums.iter_mut().zip(&weights.conv_bias) {
        *sum += bias;
        *sum *= sigmoid(*sum);
    }
    sums
}

/// Writes the state at the end of a block with all its rows.
#[inline(always)]
fn end_block(unit: &ScanUnit, before: Option<&[f32]>, block: &mut [f32]) {
    let dim = unit.head_dim;
    let (rows, end) = block.split_at_mut(BLOCK * unit.row());
    for (head, end) in end.chunks_exact_mut(unit.state * dim).enumerate() {
        let mut decays = [0.0; BLOCK];
        let mut log_decay = 0.0;
        for (j, decay) in decays.iter_mut().enumerate().rev() {
            *decay = f32::exp(log_decay);
            log_decay += unit.row_of(rows, j).log_decays[head];
        }
        match before {
            Some(before) => {
                let (decay, state) = (f32::exp(log_decay), state_of(unit, before, head));
                let both = end.iter_mut().zip(state);
                both.for_each(|(s, &old)| *s = decay * old);
            }
            None => end.fill(0.0),
        }
        for (j, &decay) in decays.iter().enumerate() {
            let row = unit.row_of(rows, j);
            let u = &row.updates[head * dim..][..dim];
            for (s, &b) in end.chunks_exact_mut(dim).zip(row.b) {
                add_scaled(s, decay * b, u);
            }
        }
    }
}

/// State of a head at the end of a block.
#[inline(always)]
fn state_of<'a>(unit: &ScanUnit, block: &'a [f32], head: usize) -> &'a [f32] {
    let size = unit.state * unit.head_dim;
    &block[BLOCK * unit.row() + head * size..][..size]
}
