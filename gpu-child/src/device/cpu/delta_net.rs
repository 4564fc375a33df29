//! Gated delta nets: layers with a recurrent state in place of attention.
//!
//! An item is a unit of one sequence: a head of keys with its heads of values. It computes the sequence's rows in order,
//! from the unit's pages of the block before and of their own ([`worker_orcd_kernels::cpu::delta_net`]).

use super::forward::Forward;
use super::kv::{KvCache, StateUnits};
use super::linear::{Epilogue, Share};
use super::plan::Plan;
use super::pool::{Disjoint, Pool};
use super::scratch::Scratch;
use super::weights::{CpuWeights, DeltaNet, MixerBlock};
use crate::model::DeltaNetConfig;
use std::ops::Range;
use worker_orcd_kernels::cpu::delta_net::BLOCK;
use worker_orcd_kernels::cpu::routing::sigmoid;
use worker_orcd_kernels::cpu::{DeltaInputs, DeltaWeights, Isa, delta_row, rmsnorm};

/// The recurrence of one layer over a batch, behind its projections.
struct Recurrence<'a> {
    isa: Isa,
    weights: &'a CpuWeights,
    eps: f32,
    config: &'a DeltaNetConfig,
    net: &'a DeltaNet,
    plan: &'a Plan<'a>,
    layer: usize,
    states: StateUnits<'a>,
    /// Of each row: the channels, the gates, strengths and decays.
    projected: &'a [f32],
    /// `[rows, v_width]`.
    out: Disjoint<'a, f32>,
}

/// Adds a delta net's output to the residual stream of all rows.
pub fn run(
    forward: &Forward<'_>,
    plan: &Plan<'_>,
    index: usize,
    (block, net): (&MixerBlock, &DeltaNet),
    kv: &mut KvCache,
    scratch: &mut Scratch,
) {
    let config = forward.config.delta_net().expect("delta nets");
    let (tokens, n_embd) = (plan.rows.len(), forward.config.n_embd);
    let (channels, v_width) = (config.channels(), config.v_width());
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
    let attn = &mut attn[..tokens * v_width];

    let mut projections = vec![
        forward.projection(&net.qkv, 0),
        forward.projection(&net.gate, channels),
        forward.projection(&net.beta, channels + v_width),
    ];
    let alpha = net.alpha.as_ref();
    projections.extend(alpha.map(|it| forward.projection(it, channels + v_width + config.v_heads)));
    forward.normalize(x, forward.weights.vector(&block.norm), norm);
    let weights: Vec<_> = projections.iter().map(|it| it.weight).collect();
    forward.device.quantize(norm, n_embd, &weights, quantized);
    let input = quantized.view(norm, n_embd);
    let all = Share::all(tokens);
    forward
        .device
        .project(&input, &all, &projections, projected, Epilogue::Store);

    let recurrence = Recurrence {
        isa: forward.device.isa,
        weights: forward.weights,
        eps: forward.config.norm_eps,
        config,
        net,
        plan,
        layer: index,
        states: kv.states(),
        projected,
        out: Disjoint::new(attn),
    };
    recurrence.run(&forward.device.pool);

    let output = [forward.projection(&net.output, 0)];
    forward
        .device
        .quantize(attn, v_width, &[output[0].weight], quantized);
    let input = quantized.view(attn, v_width);
    forward.add_to_stream(&input, &output, block.post_norm.as_ref(), norm, x);
}

impl Recurrence<'_> {
    fn run(&self, pool: &Pool) {
        let mut start = 0;
        let sequences = self.plan.sequences.iter().map(|work| {
            start += work.tokens.len();
            start - work.tokens.len()..start
        });
        let sequences: Vec<_> = sequences.collect();
        let units = self.config.k_heads;
        pool.run(sequences.len() * units, &|item| {
            self.unit(sequences[item / units].clone(), item % units);
        });
    }

    /// Computes a unit of a sequence's rows.
    fn unit(&self, rows: Range<usize>, unit: usize) {
        let config = self.config;
        let shape = &config.unit();
        let place = self.states.layout.place(self.layer, unit);
        let sequence = self.plan.rows[rows.start].sequence;
        let page = |block: usize| self.plan.page(sequence, block, place.group);
        let weights = self.weights_of(unit);
        let mut out = vec![0.0; shape.v_heads * config.head_dim];
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
            let inputs = self.inputs_of(row, unit);
            delta_row(
                self.isa,
                shape,
                &weights,
                &inputs,
                before,
                (own, slot),
                &mut out,
            );
            for (index, out) in out.chunks_exact(config.head_dim).enumerate() {
                self.give(row, self.v_head(unit, index), out);
            }
        }
    }

    fn v_head(&self, unit: usize, index: usize) -> usize {
        let config = self.config;
        config
            .order
            .v_head(unit, index, config.k_heads, config.v_heads)
    }

    /// Normalizes a head's output, multiplies it by its gates, and stores it.
    fn give(&self, row: usize, head: usize, values: &[f32]) {
        let dim = self.config.head_dim;
        let at = row * self.config.v_width() + head * dim;
        // SAFETY: this head of this row belongs to one item.
        let out = unsafe { self.out.part(at, dim) };
        let norm = self.weights.vector(&self.net.norm);
        rmsnorm(self.isa, values, norm, self.eps, out);
        let gates = &self.row(row)[self.config.channels() + head * dim..];
        for (out, &gate) in out.iter_mut().zip(gates) {
            *out *= gate * sigmoid(gate);
        }
    }

    fn row(&self, row: usize) -> &[f32] {
        let width = self.config.projected_width();
        &self.projected[row * width..][..width]
    }

    /// Heads of a unit: ranges of its channels, and its heads of values.
    fn channels_of(&self, unit: usize) -> (Vec<Range<usize>>, Vec<usize>) {
        let (dim, k_width) = (self.config.head_dim, self.config.k_width());
        let heads = self.config.v_heads / self.config.k_heads;
        let heads: Vec<_> = (0..heads).map(|index| self.v_head(unit, index)).collect();
        let starts = [unit * dim, k_width + unit * dim].into_iter();
        let starts = starts.chain(heads.iter().map(|head| 2 * k_width + head * dim));
        (starts.map(|start| start..start + dim).collect(), heads)
    }

    fn inputs_of(&self, row: usize, unit: usize) -> DeltaInputs {
        let (channels, heads) = self.channels_of(unit);
        let row = self.row(row);
        let (values, rest) = row.split_at(self.config.channels());
        let rest = &rest[self.config.v_width()..];
        let places = heads.iter();
        let places = places.map(|head| self.config.strength_and_decay(*head));
        let (beta, alpha) = places
            .map(|(beta, alpha)| (rest[beta], rest[alpha]))
            .unzip();
        DeltaInputs {
            channels: channels
                .into_iter()
                .flat_map(|it| &values[it])
                .copied()
                .collect(),
            beta,
            alpha,
        }
    }

    fn weights_of(&self, unit: usize) -> DeltaWeights {
        let (channels, heads) = self.channels_of(unit);
        let conv = self.weights.vector(&self.net.conv);
        let kernel = self.config.kernel;
        let of_position = |at: usize| {
            let channels = channels.iter().flat_map(Range::clone);
            channels.map(move |channel| conv[channel * kernel + at])
        };
        let of_heads = |values: &[f32]| heads.iter().map(|head| values[*head]).collect();
        DeltaWeights {
            conv: (0..kernel).flat_map(of_position).collect(),
            dt: of_heads(self.weights.vector(&self.net.dt)),
            decay: of_heads(self.weights.vector(&self.net.decay)),
            eps: self.eps,
        }
    }
}
