//! The forward pass of a step: embedding, every layer, and, after the sampling parameters are final, the head.
//!
//! One pass for every architecture. Differences are data: optional biases and head norms, RoPE's pairs and rotated
//! layers, the width of the window.

use super::kv::KvCache;
use super::linear::{Device, Epilogue, FEW_ROWS, Projection, Share};
use super::plan::Plan;
use super::pool::Disjoint;
use super::scratch::{Quantized, Scratch};
use super::weights::{CpuWeights, FeedForwardBlock, GatedUnit, Layer, Linear, MixerBlock, Vector};
use super::{CpuExecutor, OpenStep};
use super::{attention, delta_net, experts, head, layer_inputs, mamba, short_conv};
use crate::device::common::batch::{DrawingRow, drawing_rows, rows, watch};
use crate::device::{Batch, Checkpoint, SampleWork, Tap};
use crate::model::{FeedForward, Mixer, ModelConfig};
use std::convert::Infallible;
use worker_orcd_ipc::{Drawn, Fault, RequestId};
use worker_orcd_kernels::cpu::{Activations, rmsnorm};

/// Number of tokens for which rotating and storing takes one thread as long as starting a job.
pub const FEW_TOKENS: usize = 4;

/// The executor's parts that a step reads, apart from those it writes.
#[derive(Debug, Clone, Copy)]
pub struct Forward<'a> {
    pub device: &'a Device,
    pub config: &'a ModelConfig,
    pub weights: &'a CpuWeights,
}

/// Runs a step up to its sampling. Returns the rows that may sample.
pub fn begin(executor: &mut CpuExecutor, batch: &Batch<'_>, tap: &mut dyn Tap) -> Vec<DrawingRow> {
    let CpuExecutor {
        device,
        config,
        weights,
        kv,
        kv_sharing: _,
        scratch,
        open: _,
        drawn: _,
    } = executor;
    let forward = Forward {
        device,
        config,
        weights,
    };
    let groups = kv.geometry().groups.count();
    let plan = Plan::new(
        batch,
        config,
        groups,
        device.pool.threads(),
        &scratch.partials,
    );
    assert!(
        plan.rows.len() <= scratch.max_tokens(),
        "a batch larger than announced"
    );
    if plan.rows.is_empty() {
        return Vec::new();
    }
    forward.embed(&plan, scratch);
    if let Some(inputs) = &weights.tensors.layer_inputs {
        layer_inputs::make(&forward, &plan, inputs, scratch);
    }
    let mut show_stream = |checkpoint: Checkpoint, x: &[f32]| {
        let rows = rows(plan.sequences);
        show(tap, checkpoint, rows, x, config.n_embd);
    };
    show_stream(Checkpoint::Embedding, &scratch.x);
    for (index, layer) in weights.tensors.layers.iter().enumerate() {
        if let Some(block) = &layer.mixer {
            forward.mix(&plan, index, block, kv, scratch);
        }
        if let Some(block) = &layer.feed_forward {
            forward.feed_forward(plan.rows.len(), block, scratch);
        }
        if let Some(input) = &layer.input {
            layer_inputs::add(&forward, plan.rows.len(), (index, input), scratch);
        }
        forward.scale_output(plan.rows.len(), layer, scratch);
        show_stream(Checkpoint::Layer(index as u32), &scratch.x);
    }
    head::show_hidden(&forward, &plan, scratch, tap);
    head::show_prompts(&forward, &plan, scratch, tap);
    drawing_rows(plan.sequences)
}

/// Samples these rows of the step.
pub fn draw(
    executor: &mut CpuExecutor,
    open: &OpenStep,
    draws: &[Option<SampleWork<'_>>],
    tap: &mut dyn Tap,
) -> Result<Vec<Drawn>, Fault> {
    let forward = Forward {
        device: &executor.device,
        config: &executor.config,
        weights: &executor.weights,
    };
    head::run(&forward, open, draws, &mut executor.scratch, tap)
}

/// Reports that the step has reached the checkpoint, and passes rows of `width` to the tap if it selects them.
pub fn show(
    tap: &mut dyn Tap,
    checkpoint: Checkpoint,
    rows: impl Iterator<Item = (RequestId, u32)>,
    values: &[f32],
    width: usize,
) {
    tap.reached(&checkpoint);
    let row = |at: usize| Ok::<_, Infallible>(&values[at * width..][..width]);
    let Ok(()) = watch(tap, checkpoint, rows, row);
}

impl Forward<'_> {
    fn embed(&self, plan: &Plan<'_>, scratch: &mut Scratch) {
        let n_embd = self.config.n_embd;
        let table = self.weights.matrix(self.weights.tensors.token_embd());
        let (x, angles) = (
            Disjoint::new(&mut scratch.x),
            Disjoint::new(&mut scratch.rope),
        );
        let (scale, ropes) = (self.config.embedding_scale, self.config.ropes().count());
        self.device.for_tokens(plan.rows.len(), FEW_TOKENS, &|t| {
            let row = &plan.rows[t];
            // SAFETY: token t's own parts.
            let (x, angles) =
                unsafe { (x.part(t * n_embd, n_embd), angles.part(t * ropes, ropes)) };
            table.dequantize_row(row.token, x);
            x.iter_mut().for_each(|x| *x *= scale);
            for (angles, rope) in angles.iter_mut().zip(self.config.ropes()) {
                angles.set(rope, row.position);
            }
        });
    }

    /// Adds the output of a block's last product to the residual stream, through the post norm if there is one. The
    /// norm uses `room` for as many rows.
    pub fn add_to_stream(
        &self,
        input: &Activations<'_>,
        output: &[Projection<'_>; 1],
        post_norm: Option<&Vector>,
        room: &mut [f32],
        x: &mut [f32],
    ) {
        let n_embd = self.config.n_embd;
        let tokens = x.len() / n_embd;
        let (device, all) = (self.device, Share::all(tokens));
        let Some(weight) = post_norm else {
            return device.project(input, &all, output, x, Epilogue::Add);
        };
        device.project(input, &all, output, room, Epilogue::Store);
        let (weight, x) = (self.weights.vector(weight), Disjoint::new(x));
        let (isa, eps) = (device.isa, self.config.norm_eps);
        device.for_tokens(tokens, FEW_ROWS, &|t| {
            // SAFETY: token t's own row.
            let x = unsafe { x.part(t * n_embd, n_embd) };
            let mut normalized = vec![0.0; n_embd];
            rmsnorm(
                isa,
                &room[t * n_embd..][..n_embd],
                weight,
                eps,
                &mut normalized,
            );
            x.iter_mut().zip(normalized).for_each(|(x, y)| *x += y);
        });
    }

    fn mix(
        &self,
        plan: &Plan<'_>,
        index: usize,
        block: &MixerBlock,
        kv: &mut KvCache,
        scratch: &mut Scratch,
    ) {
        match &block.part {
            Mixer::Attention(attention) => {
                attention::run(self, plan, index, (block, attention), kv, scratch);
            }
            Mixer::DeltaNet(net) => {
                delta_net::run(self, plan, index, (block, net), kv, scratch);
            }
            Mixer::ShortConv(conv) => {
                short_conv::run(self, plan, index, (block, conv), kv, scratch);
            }
            Mixer::Mamba(of_layer) => {
                mamba::run(self, plan, index, (block, of_layer), kv, scratch);
            }
        }
    }

    fn feed_forward(&self, tokens: usize, block: &FeedForwardBlock, scratch: &mut Scratch) {
        let values = tokens * self.config.n_embd;
        let norm = &mut scratch.norm[..values];
        let weight = self.weights.vector(&block.norm);
        self.normalize(&scratch.x[..values], weight, norm);
        match &block.part {
            FeedForward::Dense(unit) => {
                self.dense(tokens, unit, block.post_norm.as_ref(), scratch);
            }
            FeedForward::Experts(of_layer) => match &of_layer.beside {
                None => experts::run(self, of_layer, tokens, scratch),
                Some(dense) => {
                    let post_norm = block.post_norm.as_ref();
                    experts::run_beside(self, (of_layer, dense), post_norm, tokens, scratch);
                }
            },
        }
    }

    fn scale_output(&self, tokens: usize, layer: &Layer, scratch: &mut Scratch) {
        let values = tokens * self.config.n_embd;
        if let Some(scale) = &layer.output_scale {
            let scale = self.weights.vector(scale)[0];
            scratch.x[..values].iter_mut().for_each(|x| *x *= scale);
        }
    }

    fn dense(
        &self,
        tokens: usize,
        unit: &GatedUnit,
        post_norm: Option<&Vector>,
        scratch: &mut Scratch,
    ) {
        let values = tokens * self.config.n_embd;
        let norm = &mut scratch.norm[..values];
        let (down, input) = self.inner(unit, norm, &mut scratch.ff, &mut scratch.quantized);
        self.add_to_stream(&input, &down, post_norm, norm, &mut scratch.x[..values]);
    }

    /// Computes the inside of a gated unit for these rows. Returns the last product and its input.
    pub fn inner<'a>(
        &'a self,
        unit: &'a GatedUnit,
        rows: &[f32],
        ff: &'a mut [f32],
        quantized: &'a mut Quantized,
    ) -> ([Projection<'a>; 1], Activations<'a>) {
        let (n_embd, n_ff) = (self.config.n_embd, unit.down.weight.shape.cols);
        let tokens = rows.len() / n_embd;
        let (ff, all) = (&mut ff[..tokens * n_ff], Share::all(tokens));
        let projections = unit.projections().iter();
        let gate_up: Vec<_> = projections.map(|it| self.projection(it, 0)).collect();
        let weights: Vec<_> = gate_up.iter().map(|it| it.weight).collect();
        self.device.quantize(rows, n_embd, &weights, quantized);
        let input = quantized.view(rows, n_embd);
        let activation = self.config.activation;
        self.device.gate_up(activation, &input, &all, &gate_up, ff);

        let down = [self.projection(&unit.down, 0)];
        self.device.quantize(ff, n_ff, &[down[0].weight], quantized);
        (down, quantized.view(ff, n_ff))
    }

    pub fn projection<'a>(&'a self, linear: &'a Linear, column: usize) -> Projection<'a> {
        let weight = self.weights.matrix(&linear.weight);
        Projection {
            weight,
            rows: weight.shape().rows,
            bias: linear.bias.as_ref().map(|bias| self.weights.vector(bias)),
            column,
        }
    }

    pub fn normalize(&self, x: &[f32], weight: &[f32], out: &mut [f32]) {
        let n_embd = self.config.n_embd;
        let tokens = x.len() / n_embd;
        let out = Disjoint::new(out);
        let (isa, eps) = (self.device.isa, self.config.norm_eps);
        self.device.for_tokens(tokens, FEW_ROWS, &|t| {
            // SAFETY: token t's own row.
            let out = unsafe { out.part(t * n_embd, n_embd) };
            let x = &x[t * n_embd..][..n_embd];
            rmsnorm(isa, x, weight, eps, out);
        });
    }
}
