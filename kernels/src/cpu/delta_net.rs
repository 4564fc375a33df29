//! The gated delta rule of [`reference::delta_net`](crate::reference::delta_net), for heads that share a key, from the
//! state at the beginning of a block of positions.
//!
//! The state changes only where a block ends. Until then each position adds a row to its block: the inputs of its
//! convolution, its key, its updates `u` and its decays. An output reads the state before the block, and the rows of the
//! block up to its own:
//!
//! ```text
//! u[i] = beta (v - d(-1, i) S' k[i] - sum over j < i of d(j, i) (k[j] · k[i]) u[j])
//! o[i] =           d(-1, i) S' q[i] + sum over j ≤ i of d(j, i) (k[j] · q[i]) u[j]
//! ```
//!
//! where `S'` is the transposed state before the block and `d(j, i)` the product of the decays from `j + 1` to `i`. So a
//! row is a function of rows before it, as a row of attention is: it may be computed twice, and rows behind it may be
//! dropped.

use super::isa::Isa;
use super::routing::sigmoid;

/// Positions of a block.
pub const BLOCK: usize = super::attention::TILE_TOKENS;

/// Heads of values with one head of keys, of one layer: what is kept of a block of positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeltaUnit {
    pub head_dim: usize,
    /// Heads of values.
    pub v_heads: usize,
    /// Positions that the convolution sees.
    pub kernel: usize,
}

impl DeltaUnit {
    /// Inputs of the convolution: a query, a key, and the values.
    #[must_use]
    pub fn channels(&self) -> usize {
        (2 + self.v_heads) * self.head_dim
    }

    /// Floats of a position: its inputs, its key, its updates, and its decays.
    #[must_use]
    pub fn row(&self) -> usize {
        self.channels() + self.head_dim + self.v_heads * (self.head_dim + 1)
    }

    /// Floats of the state at the end of a block, `[v_heads, head_dim, head_dim]`, by key and then by value.
    #[must_use]
    pub fn state(&self) -> usize {
        self.v_heads * self.head_dim * self.head_dim
    }

    /// Floats of a block: its rows, then the state.
    #[must_use]
    pub fn floats(&self) -> usize {
        BLOCK * self.row() + self.state()
    }

    /// Part of a block with the row of a position.
    fn row_of<'a>(&self, block: &'a [f32], slot: usize) -> Row<'a> {
        let row = &block[slot * self.row()..][..self.row()];
        let (inputs, rest) = row.split_at(self.channels());
        let (key, rest) = rest.split_at(self.head_dim);
        let (updates, log_decays) = rest.split_at(self.v_heads * self.head_dim);
        Row {
            inputs,
            key,
            updates,
            log_decays,
        }
    }
}

/// A position in a block.
#[derive(Clone, Copy)]
struct Row<'a> {
    inputs: &'a [f32],
    key: &'a [f32],
    updates: &'a [f32],
    log_decays: &'a [f32],
}

/// Weights and constants of a unit.
#[derive(Debug, Clone)]
pub struct DeltaWeights {
    /// Of the convolution, by position and then by channel, the present position last: `[kernel, channels]`.
    pub conv: Vec<f32>,
    /// Of each head of values: the bias in the softplus, and its factor, which is not positive.
    pub dt: Vec<f32>,
    pub decay: Vec<f32>,
    /// Added to the sum of squares of queries and keys.
    pub eps: f32,
}

/// Projections of a position.
#[derive(Debug, Clone)]
pub struct DeltaInputs {
    pub channels: Vec<f32>,
    /// Of each head of values: the logit of the update's strength, and the input of the decay.
    pub beta: Vec<f32>,
    pub alpha: Vec<f32>,
}

/// Computes the position of `slot` in `block`, of which the rows before are computed, and writes its row; the last one
/// writes the state, too. `before`: the block before this one, if there is one. `out`: the outputs,
/// `[v_heads, head_dim]`.
///
/// # Panics
/// If a length is not the unit's.
pub fn delta_row(
    isa: Isa,
    unit: &DeltaUnit,
    weights: &DeltaWeights,
    inputs: &DeltaInputs,
    before: Option<&[f32]>,
    (block, slot): (&mut [f32], usize),
    out: &mut [f32],
) {
    assert!(
        block.len() == unit.floats() && before.is_none_or(|before| before.len() == unit.floats()),
        "blocks of the unit"
    );
    #[cfg(target_arch = "x86_64")]
    if isa.is_avx2() {
        // SAFETY: the token proves the features; nothing else is asked.
        return unsafe { avx2(unit, weights, inputs, before, (block, slot), out) };
    }
    let _ = isa;
    body(unit, weights, inputs, before, (block, slot), out);
}

/// The same code, compiled for wider registers.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn avx2(
    unit: &DeltaUnit,
    weights: &DeltaWeights,
    inputs: &DeltaInputs,
    before: Option<&[f32]>,
    place: (&mut [f32], usize),
    out: &mut [f32],
) {
    body(unit, weights, inputs, before, place, out);
}

#[inline(always)]
fn body(
    unit: &DeltaUnit,
    weights: &DeltaWeights,
    inputs: &DeltaInputs,
    before: Option<&[f32]>,
    (block, slot): (&mut [f32], usize),
    out: &mut [f32],
) {
    let (dim, channels) = (unit.head_dim, unit.channels());
    let place = slot * unit.row();
    block[place..][..channels].copy_from_slice(&inputs.channels);
    let mut qkv = convolve(unit, &weights.conv, before, block, slot);
    let (q, rest) = qkv.split_at_mut(dim);
    let (k, values) = rest.split_at_mut(dim);
    normalize(q, weights.eps, 1.0 / (dim as f32).sqrt());
    normalize(k, weights.eps, 1.0);
    block[place + channels..][..dim].copy_from_slice(k);
    for head in 0..unit.v_heads {
        let log_decay = weights.decay[head] * softplus(inputs.alpha[head] + weights.dt[head]);
        block[place + channels + dim + unit.v_heads * dim + head] = log_decay;
        let state = before.map(|before| state_of(unit, before, head));
        let mut update = vec![0.0; dim];
        let out = &mut out[head * dim..][..dim];
        // Decay from the beginning of the block, whose last factor is this position's own.
        let mut log_decay = 0.0;
        for j in (0..=slot).rev() {
            let row = unit.row_of(block, j);
            if j < slot {
                let decay = f32::exp(log_decay);
                let u = &row.updates[head * dim..][..dim];
                add_scaled(&mut update, -decay * dot(row.key, k), u);
                add_scaled(out, decay * dot(row.key, q), u);
            } else {
                out.fill(0.0);
            }
            log_decay += row.log_decays[head];
        }
        if let Some(state) = state {
            let decay = f32::exp(log_decay);
            let mut read = vec![0.0; 2 * dim];
            let (by_k, by_q) = read.split_at_mut(dim);
            for ((s, &k), &q) in state.chunks_exact(dim).zip(&*k).zip(&*q) {
                add_scaled(by_k, k, s);
                add_scaled(by_q, q, s);
            }
            add_scaled(&mut update, -decay, by_k);
            add_scaled(out, decay, by_q);
        }
        let beta = sigmoid(inputs.beta[head]);
        for (u, &v) in update.iter_mut().zip(&values[head * dim..]) {
            *u = beta * (v + *u);
        }
        add_scaled(out, dot(k, q), &update);
        block[place + channels + dim + head * dim..][..dim].copy_from_slice(&update);
    }
    if slot == BLOCK - 1 {
        end_block(unit, before, block);
    }
}

/// SiLU of the convolution of all channels at a position.
#[inline(always)]
fn convolve(
    unit: &DeltaUnit,
    weights: &[f32],
    before: Option<&[f32]>,
    block: &[f32],
    slot: usize,
) -> Vec<f32> {
    let channels = unit.channels();
    let mut sums = vec![0.0; channels];
    for (back, weights) in weights.chunks_exact(channels).rev().enumerate() {
        let inputs = match (slot.checked_sub(back), before) {
            (Some(slot), _) => unit.row_of(block, slot).inputs,
            (None, Some(before)) => unit.row_of(before, BLOCK + slot - back).inputs,
            (None, None) => break,
        };
        for ((sum, &w), &x) in sums.iter_mut().zip(weights).zip(inputs) {
            *sum += w * x;
        }
    }
    sums.iter_mut().for_each(|sum| *sum *= sigmoid(*sum));
    sums
}

/// Writes the state at the end of a block with all its rows.
#[inline(always)]
fn end_block(unit: &DeltaUnit, before: Option<&[f32]>, block: &mut [f32]) {
    let dim = unit.head_dim;
    let (rows, end) = block.split_at_mut(BLOCK * unit.row());
    for (head, end) in end.chunks_exact_mut(dim * dim).enumerate() {
        let mut decays = [0.0; BLOCK];
        let mut log_decay = 0.0;
        for (j, decay) in decays.iter_mut().enumerate().rev() {
            *decay = f32::exp(log_decay);
            log_decay += unit.row_of(rows, j).log_decays[head];
        }
        match before {
            Some(before) => {
                let decay = f32::exp(log_decay);
                let state = state_of(unit, before, head);
                end.iter_mut()
                    .zip(state)
                    .for_each(|(s, &old)| *s = decay * old);
            }
            None => end.fill(0.0),
        }
        for (j, &decay) in decays.iter().enumerate() {
            let row = unit.row_of(rows, j);
            let u = &row.updates[head * dim..][..dim];
            for (s, &k) in end.chunks_exact_mut(dim).zip(row.key) {
                add_scaled(s, decay * k, u);
            }
        }
    }
}

/// State of a head at the end of a block.
#[inline(always)]
fn state_of<'a>(unit: &DeltaUnit, block: &'a [f32], head: usize) -> &'a [f32] {
    let size = unit.head_dim * unit.head_dim;
    &block[BLOCK * unit.row() + head * size..][..size]
}

#[inline(always)]
pub(super) fn add_scaled(to: &mut [f32], factor: f32, from: &[f32]) {
    for (to, &from) in to.iter_mut().zip(from) {
        *to += factor * from;
    }
}

/// `x *= scale / sqrt(sum(x²) + eps)`.
#[inline(always)]
fn normalize(x: &mut [f32], eps: f32, scale: f32) {
    let factor = scale / (dot(x, x) + eps).sqrt();
    x.iter_mut().for_each(|x| *x *= factor);
}

/// Eight running sums, added in order.
#[inline(always)]
pub(super) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0f32; 8];
    for (a, b) in a.as_chunks::<8>().0.iter().zip(b.as_chunks::<8>().0) {
        for ((sum, a), b) in sums.iter_mut().zip(a).zip(b) {
            *sum += a * b;
        }
    }
    sums.iter().sum()
}

/// `ln(1 + exp(x))`.
#[inline(always)]
pub(super) fn softplus(x: f32) -> f32 {
    match x > 20.0 {
        true => x,
        false => f32::exp(x).ln_1p(),
    }
}
