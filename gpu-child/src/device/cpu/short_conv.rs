//! Short convolutions: layers with a recurrent state in place of attention.
//!
//! An item is a unit of one sequence: some neighbouring channels. It computes the sequence's rows in order, from the unit's
//! pages of the block before and of their own ([`worker_orcd_kernels::cpu::short_conv`]).

use super::forward::Forward;
use super::kv::{KvCache, StateUnits};
use super::linear::{Epilogue, Share};
use super::plan::Plan;
use super::pool::{Disjoint, Pool};
use super::scratch::Scratch;
use super::weights::{MixerBlock, ShortConv};
use crate::model::ShortConvConfig;
use std::ops::Range;
use worker_orcd_kernels::cpu::delta_net::BLOCK;
use worker_orcd_kernels::cpu::{ConvInputs, ConvUnit, Isa, short_conv_row};

/// The convolution of one layer over a batch, between its projections.
struct Convolution<'a> {
    isa: Isa,
    config: &'a ShortConvConfig,
    /// `[width, kernel]`.
    weights: &'a [f32],
    plan: &'a Plan<'a>,
    layer: usize,
    states: StateUnits<'a>,
    /// Of each row: the gates of the input, those of the output, and the input.
    projected: &'a [f32],
    /// `[rows, width]`.
    out: Disjoint<'a, f32>,
}

/// Adds a short convolution's output to the residual stream of all rows.
pub fn run(
    forward: &Forward<'_>,
    plan: &Plan<'_>,
    index: usize,
    (block, conv): (&MixerBlock, &ShortConv),
    kv: &mut KvCache,
    scratch: &mut Scratch,
) {
    let config = forward.config.short_conv().expect("short convolutions");
    let (tokens, n_embd) = (plan.rows.len(), forward.config.n_embd);
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
    let out = &mut attn[..tokens * config.width];

    let input = [forward.projection(&conv.input, 0)];
    forward.normalize(x, forward.weights.vector(&block.norm), norm);
    let (device, all) = (forward.device, Share::all(tokens));
    device.quantize(norm, n_embd, &[input[0].weight], quantized);
    let rows = quantized.view(norm, n_embd);
    device.project(&rows, &all, &input, projected, Epilogue::Store);

    let convolution = Convolution {
        isa: device.isa,
        config,
        weights: forward.weights.vector(&conv.conv),
        plan,
        layer: index,
        states: kv.states(),
        projected,
        out: Disjoint::new(out),
    };
    convolution.run(&device.pool);

    let output = [forward.projection(&conv.output, 0)];
    device.quantize(out, config.width, &[output[0].weight], quantized);
    let rows = quantized.view(out, config.width);
    forward.add_to_stream(&rows, &output, block.post_norm.as_ref(), norm, x);
}

impl Convolution<'_> {
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
        let first = unit * shape.channels;
        let weights = self.weights_of(shape, first);
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
            // SAFETY: these channels of this row belong to one item.
            let out = unsafe {
                self.out
                    .part(row * self.config.width + first, shape.channels)
            };
            let inputs = self.inputs_of(row, first..first + shape.channels);
            short_conv_row(
                self.isa,
                (&shape, &weights),
                inputs,
                before,
                (own, slot),
                out,
            );
        }
    }

    fn inputs_of(&self, row: usize, channels: Range<usize>) -> ConvInputs<'_> {
        let width = self.config.width;
        let row = &self.projected[row * self.config.projected_width()..];
        let part = |index: usize| &row[index * width..][channels.clone()];
        ConvInputs {
            b: part(0),
            c: part(1),
            x: part(2),
        }
    }

    /// Weights of a unit, by position and then by channel.
    fn weights_of(&self, unit: ConvUnit, first: usize) -> Vec<f32> {
        let kernel = unit.kernel;
        let of_position = |at: usize| {
            let channels = first..first + unit.channels;
            channels.map(move |channel| self.weights[channel * kernel + at])
        };
        (0..kernel).flat_map(of_position).collect()
    }
}
