//! State-space layers of Mamba-2: layers with a recurrent state in place of attention.
//!
//! An item is a unit of one sequence: some heads of a group. It computes the sequence's rows in order, from the unit's pages of
//! the block before and of their own ([`worker_orcd_kernels::cpu::mamba`]). Then each row has its gates and norms.

use super::forward::Forward;
use super::kv::{KvCache, StateUnits};
use super::linear::{Epilogue, FEW_ROWS, Share};
use super::plan::Plan;
use super::pool::{Disjoint, Pool};
use super::scratch::Scratch;
use super::weights::{CpuWeights, Mamba, MixerBlock};
use crate::model::MambaConfig;
use std::ops::Range;
use worker_orcd_kernels::cpu::delta_net::BLOCK;
use worker_orcd_kernels::cpu::{Isa, ScanInputs, ScanWeights, rmsnorm, scan_row, sigmoid};

/// The recurrence of one layer over a batch, behind its projections.
struct Scan<'a> {
    isa: Isa,
    weights: &'a CpuWeights,
    config: &'a MambaConfig,
    mamba: &'a Mamba,
    plan: &'a Plan<'a>,
    layer: usize,
    states: StateUnits<'a>,
    /// Of each row: the gates, the channels, and the lengths of steps.
    projected: &'a [f32],
    /// `[rows, width]`.
    out: Disjoint<'a, f32>,
}

/// Adds a state-space layer's output to the residual stream of all rows.
pub fn run(
    forward: &Forward<'_>,
    plan: &Plan<'_>,
    index: usize,
    (block, mamba): (&MixerBlock, &Mamba),
    kv: &mut KvCache,
    scratch: &mut Scratch,
) {
    let config = forward.config.mamba().expect("state-space layers");
    let (tokens, n_embd, width) = (plan.rows.len(), forward.config.n_embd, config.width());
    let Scratch {
        x,
        qkv,
        attn,
        norm,
        quantized,
        ..
    } = scratch;
    let x = &mut x[..tokens * n_embd];
    let norm = &mut norm[..tokens * n_embd];
    let projected = &mut qkv[..tokens * config.projected_width()];
    let out = &mut attn[..tokens * width];

    let input = [forward.projection(&mamba.input, 0)];
    forward.normalize(x, forward.weights.vector(&block.norm), norm);
    let (device, all) = (forward.device, Share::all(tokens));
    device.quantize(norm, n_embd, &[input[0].weight], quantized);
    let rows = quantized.view(norm, n_embd);
    device.project(&rows, &all, &input, projected, Epilogue::Store);

    let scan = Scan {
        isa: device.isa,
        weights: forward.weights,
        config,
        mamba,
        plan,
        layer: index,
        states: kv.states(),
        projected,
        out: Disjoint::new(out),
    };
    scan.run(&device.pool);
    // SAFETY: token t's own row.
    let row_of = |t: usize| unsafe { scan.out.part(t * width, width) };
    device.for_tokens(tokens, FEW_ROWS, &|t| scan.finish(t, row_of(t)));

    let output = [forward.projection(&mamba.output, 0)];
    device.quantize(out, width, &[output[0].weight], quantized);
    let rows = quantized.view(out, width);
    forward.add_to_stream(&rows, &output, block.post_norm.as_ref(), norm, x);
}

impl Scan<'_> {
    fn run(&self, pool: &Pool) {
        let mut start = 0;
        let sequences = self.plan.sequences.iter().map(|work| {
            start += work.tokens.len();
            start - work.tokens.len()..start
        });
        let sequences: Vec<_> = sequences.collect();
        let units = self.config.units();
        pool.run(sequences.len() * units, &|item| {
            self.unit(sequences[item / units].clone(), item % units);
        });
    }

    /// Computes a unit of a sequence's rows.
    fn unit(&self, rows: Range<usize>, unit: usize) {
        let shape = self.config.unit();
        let place = self.states.layout.place(self.layer, unit);
        let sequence = self.plan.rows[rows.start].sequence;
        let page = |block: usize| self.plan.page(sequence, block, place.group);
        let weights = self.weights_of(unit);
        let (width, of_unit) = (self.config.width(), shape.heads * shape.head_dim);
        for row in rows {
            let position = self.plan.rows[row].position as usize;
            let (block, slot) = (position / BLOCK, position % BLOCK);
            // SAFETY: the block before is complete, and nothing writes it any more.
            let before = block
                .checked_sub(1)
                .map(|before| unsafe { self.states.read(page(before), place.index) });
            // SAFETY: the scheduler gives the page of a written position to one sequence alone, and this item alone
            // computes this unit of the sequence.
            let own = unsafe { self.states.unit(page(block), place.index) };
            // SAFETY: these heads of this row belong to one item.
            let out = unsafe { self.out.part(row * width + unit * of_unit, of_unit) };
            let inputs = self.inputs_of(row, unit);
            scan_row(
                self.isa,
                (&shape, &weights),
                &inputs,
                before,
                (own, slot),
                out,
            );
        }
    }

    /// Multiplies a row's output by its gates, and normalizes each group.
    fn finish(&self, row: usize, out: &mut [f32]) {
        let gates = &self.row(row)[..self.config.width()];
        for (out, &gate) in out.iter_mut().zip(gates) {
            *out *= gate * sigmoid(gate);
        }
        let norm = self.weights.vector(&self.mamba.norm);
        let of_group = self.config.width() / self.config.groups;
        let groups = out
            .chunks_exact_mut(of_group)
            .zip(norm.chunks_exact(of_group));
        for (out, norm) in groups {
            let plain = out.to_vec();
            rmsnorm(self.isa, &plain, norm, self.config.eps, out);
        }
    }

    fn row(&self, row: usize) -> &[f32] {
        let width = self.config.projected_width();
        &self.projected[row * width..][..width]
    }

    /// Ranges of a unit's channels: `x` of its heads, `b` and `c` of its group.
    fn channels_of(&self, unit: usize) -> [Range<usize>; 3] {
        let MambaConfig { state, groups, .. } = *self.config;
        let (width, unit_heads) = (self.config.width(), self.config.unit_heads());
        let group = unit * unit_heads / (self.config.heads / groups);
        let x = unit_heads * self.config.head_dim;
        let [b, c] = [group, groups + group].map(|at| width + at * state);
        [unit * x..(unit + 1) * x, b..b + state, c..c + state]
    }

    fn heads_of(&self, unit: usize) -> Range<usize> {
        let heads = self.config.unit_heads();
        unit * heads..(unit + 1) * heads
    }

    fn inputs_of(&self, row: usize, unit: usize) -> ScanInputs {
        let (width, channels) = (self.config.width(), self.config.channels());
        let (values, dt) = self.row(row)[width..].split_at(channels);
        let parts = self.channels_of(unit).into_iter();
        ScanInputs {
            channels: parts.flat_map(|it| &values[it]).copied().collect(),
            dt: dt[self.heads_of(unit)].to_vec(),
        }
    }

    fn weights_of(&self, unit: usize) -> ScanWeights {
        let (parts, heads) = (self.channels_of(unit), self.heads_of(unit));
        let channels = || parts.iter().flat_map(Range::clone);
        let conv = self.weights.vector(&self.mamba.conv);
        let bias = self.mamba.conv_bias.as_ref();
        let bias = bias.map(|bias| self.weights.vector(bias));
        let kernel = self.config.kernel;
        let of_position = |at: usize| channels().map(move |channel| conv[channel * kernel + at]);
        let of_heads = |vector| self.weights.vector(vector)[heads.clone()].to_vec();
        ScanWeights {
            conv: (0..kernel).flat_map(of_position).collect(),
            conv_bias: channels()
                .map(|channel| bias.map_or(0.0, |bias| bias[channel]))
                .collect(),
            dt: of_heads(&self.mamba.dt),
            decay: of_heads(&self.mamba.decay),
            direct: of_heads(&self.mamba.direct),
        }
    }
}
