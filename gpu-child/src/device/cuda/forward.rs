//! Forward pass of a step: embedding, every layer, and the head, as launches in one stream.
//!
//! The pass is the same for every architecture. The differences are data: an optional bias or head
//! norm, the pairs that RoPE rotates, and the layers that it applies to.

use super::board::Stage;
use super::bounds::Power;
use super::head;
use super::headers::constant;
use super::kernels::{EmbedArgs, GatedRowsArgs, Geometry, RowArgs};
use super::layer_inputs;
use super::matmul::{Input, Output, Scale};
use super::memory::{DevicePtr, read};
use super::mixers;
use super::ops::RowKernel;
use super::plan::Plan;
use super::products_few::FewProducts;
use super::rank::Rank;
use super::weights::{
    FeedForwardBlock, GatedUnit, Layer, Linear, Matrix, Vector, multiplied_as, units,
};
use crate::device::common::batch::{rows, watch};
use crate::device::{Checkpoint, Tap};
use crate::model::FeedForward;
use worker_orcd_ipc::Fault;

/// Threads of a block of `embed`.
const EMBED_THREADS: u32 = constant!("embed.cu", EMBED_THREADS) as u32;

impl Rank {
    /// Runs the whole step of a batch without a tap, up to the greedy choice of every row.
    pub fn pass(&self, plan: &Plan<'_>) -> Result<(), Fault> {
        self.embed(plan)?;
        for (index, layer) in self.weights.tensors.layers.iter().enumerate() {
            mixers::run(self, plan, index, layer)?;
            self.feed_forward(plan.rows.len(), index, layer)?;
        }
        let rows = plan.drawing.len();
        head::logits(self, rows, 0, rows)
    }

    /// Shows the residual stream to a tap that requests it.
    pub fn watch(
        &self,
        tap: &mut dyn Tap,
        plan: &Plan<'_>,
        checkpoint: Checkpoint,
    ) -> Result<(), Fault> {
        let n_embd = self.config.n_embd;
        // SAFETY: the stream holds a row for each token of the batch.
        let row = |at| unsafe {
            read(
                &self.context,
                self.scratch.buffers.x.add(at * n_embd),
                n_embd,
            )
        };
        watch(tap, checkpoint, rows(plan.sequences), row)
    }

    pub fn embed_arguments(&self) -> EmbedArgs {
        let table = self.weights.tensors.token_embd();
        self.table_arguments(table, self.scratch.buffers.x, self.config.embedding_scale)
    }

    /// Arguments for rows of a table, times `scale`.
    pub fn table_arguments(&self, table: &Matrix, x: DevicePtr<f32>, scale: f32) -> EmbedArgs {
        EmbedArgs {
            table: self.weights.matrix(table),
            rows: self.scratch.buffers.rows.on_device(),
            x,
            ty: multiplied_as(table.ty) as i32,
            units: units(table.cols) as i32,
            cols: table.cols as i32,
            scale,
        }
    }

    pub fn embed(&self, plan: &Plan<'_>) -> Result<(), Fault> {
        let arguments = self.embed_arguments();
        self.look_up(plan, &arguments)?;
        match &self.weights.tensors.layer_inputs {
            Some(inputs) => layer_inputs::make(self, plan, inputs),
            None => Ok(()),
        }
    }

    /// Reads rows of a table.
    pub fn look_up(&self, plan: &Plan<'_>, arguments: &EmbedArgs) -> Result<(), Fault> {
        let rows = plan.rows.len();
        let most = (arguments.cols as usize).div_ceil(EMBED_THREADS as usize);
        let parts = (self.context.multiprocessors() as usize / rows).clamp(1, most);
        let geometry = Geometry {
            grid: [rows as u32, parts as u32],
            ..Geometry::line(rows, EMBED_THREADS)
        };
        // SAFETY: some blocks a row; tokens were checked against the vocabulary in `Plan::new`.
        unsafe { self.ops.embed.launch(&self.context, geometry, arguments) }
    }

    /// Destination of a block's last product: the residual stream, or `ff` if a norm follows.
    pub fn end_of_block(&self, post_norm: Option<&Vector>) -> Output {
        let (n_embd, buffers) = (self.config.n_embd, &self.scratch.buffers);
        match post_norm {
            None => Output::added(buffers.x, n_embd),
            // `ff` is free here, and serves as scratch.
            Some(_) => Output::stored(buffers.ff, n_embd),
        }
    }

    /// Adds `ff` to the residual stream through the norm after the block, if any, and multiplies the stream by `factor`. `next`
    /// is the stage after the block.
    pub fn add_norm(
        &self,
        rows: usize,
        post_norm: Option<&Vector>,
        factor: f32,
        next: u32,
    ) -> Result<(), Fault> {
        let Some(weight) = post_norm else {
            return Ok(());
        };
        let arguments = RowArgs {
            weight: self.weights.vector(weight),
            plain: self.scratch.buffers.x,
            factor,
            ..self.row_arguments(rows, self.scratch.buffers.ff, self.config.n_embd, next)
        };
        self.make_input(&self.ops.add_norm, &arguments)
    }

    /// Makes an input for products, each of up to three linears. For very few rows a launch makes the input and multiplies it,
    /// unless the whole step is one.
    pub fn make_and_project(
        &self,
        kernel: &RowKernel,
        input: RowArgs,
        products: &[(&[Linear], Output)],
    ) -> Result<(), Fault> {
        let (rows, cols) = (input.rows as usize, input.cols as usize);
        let few = self.experts.as_ref().map(|experts| &experts.few);
        let takes =
            |few: &&FewProducts| products.iter().all(|(linears, _)| few.takes(linears, rows));
        if let Some(few) = few.filter(takes) {
            for (linears, output) in products {
                // SAFETY: as for `make_input` and `project`.
                unsafe { few.run(&self.context, &self.weights, linears, input, *output) }?;
            }
            return Ok(());
        }
        self.make_input(kernel, &input)?;
        for (linears, output) in products {
            self.project(rows, linears, cols, *output)?;
        }
        Ok(())
    }

    /// Feed-forward part of a layer, if it has one, and what it adds of its per-layer input.
    pub fn feed_forward(&self, rows: usize, index: usize, layer: &Layer) -> Result<(), Fault> {
        if let Some(block) = &layer.feed_forward {
            let factor = self.feed_forward_scale(index, layer);
            match &block.part {
                FeedForward::Dense(unit) => self.dense(rows, index, (block, unit), factor)?,
                FeedForward::Experts(experts) => {
                    self.mixture(rows, index, (block, experts), factor)?;
                }
            }
        }
        match &layer.input {
            Some(input) => layer_inputs::add(self, rows, index, input),
            None => Ok(()),
        }
    }

    /// Factor of the residual stream behind the feed-forward part.
    fn feed_forward_scale(&self, index: usize, layer: &Layer) -> f32 {
        match &layer.input {
            Some(_) => 1.0,
            None => self.output_scales[index],
        }
    }

    fn dense(
        &self,
        rows: usize,
        index: usize,
        (block, unit): (&FeedForwardBlock, &GatedUnit),
        factor: f32,
    ) -> Result<(), Fault> {
        let norm = self.norm_arguments(rows, &block.norm, Stage::GateUp.of(index));
        self.make_input(&self.ops.rmsnorm, &norm)?;
        let post_norm = block.post_norm.as_ref();
        let output = self.end_of_block(post_norm);
        self.gated_unit(rows, (index, unit), Stage::Down.of(index), output)?;
        self.add_norm(rows, post_norm, factor, Stage::Qkv.of(index + 1))
    }

    /// Multiplies an input by gate and up, or by up alone, then by down of a layer. `stage` is posted before down, if a launch makes
    /// its input.
    pub fn gated_unit(
        &self,
        rows: usize,
        (index, unit): (usize, &GatedUnit),
        stage: u32,
        output: Output,
    ) -> Result<(), Fault> {
        let (n_embd, buffers) = (self.config.n_embd, &self.scratch.buffers);
        let n_ff = unit.down.weight.cols;
        let power = self.powers.unit(index);
        let is_pair = self.matmul.pairs(self.config.activation, &unit.gate_up);
        if let Some(power) = power.filter(|_| is_pair) {
            self.project_pair(rows, &unit.gate_up, power)?;
            let input = Input {
                x: buffers.gated,
                scale: Scale::OfAll(power),
                rows,
                cols: n_ff,
            };
            return self.multiply(input, &[unit.down], output);
        }
        let projections = unit.projections();
        let both = Output::stored(buffers.ff, projections.len() * n_ff);
        self.project(rows, projections, n_embd, both)?;
        let ff = RowArgs {
            in_stride: both.stride as i32,
            up: power.map_or(0.0, Power::up),
            ..self.row_arguments(rows, buffers.ff, n_ff, stage)
        };
        let kernel = match (unit.has_gate, power) {
            (true, Some(_)) => &self.ops.glu_bounded_rows,
            (true, None) => &self.ops.glu_rows,
            (false, Some(_)) => &self.ops.glu_own_bounded_rows,
            (false, None) => &self.ops.glu_own_rows,
        };
        self.make_input(kernel, &ff)?;
        self.project(rows, &[unit.down], n_ff, output)
    }

    /// Arguments for the stream's rows into a norm.
    pub fn norm_arguments(&self, rows: usize, weight: &Vector, stage: u32) -> RowArgs {
        RowArgs {
            weight: self.weights.vector(weight),
            ..self.row_arguments(rows, self.scratch.buffers.x, self.config.n_embd, stage)
        }
    }

    /// Arguments for contiguous rows of F32 into a matmul of the same number of rows.
    pub fn row_arguments(
        &self,
        rows: usize,
        input: DevicePtr<f32>,
        cols: usize,
        stage: u32,
    ) -> RowArgs {
        RowArgs {
            input,
            gather: DevicePtr::NULL,
            weight: DevicePtr::NULL,
            plain: DevicePtr::NULL,
            out: self.scratch.buffers.act,
            scale: self.scratch.buffers.scale,
            cols: cols as i32,
            units: units(cols) as i32,
            in_stride: cols as i32,
            eps: self.config.norm_eps,
            groups: self.matmul.groups(rows) as i32,
            rows: rows as i32,
            stage,
            activation: self.config.activation as i32,
            board: self.board.on_device(),
            copy: DevicePtr::NULL,
            copy_scale: DevicePtr::NULL,
            up: 0.0,
            factor: 1.0,
        }
    }

    /// Converts F32 rows to the input of the next matmul, or adds them to the residual stream.
    pub fn make_input(&self, kernel: &RowKernel, arguments: &RowArgs) -> Result<(), Fault> {
        let size = (arguments.rows as usize, arguments.cols as usize);
        // SAFETY: the input holds that many rows of its stride.
        unsafe { kernel.launch(&self.context, size, arguments) }
    }

    /// Converts F32 rows times their gates to the input of the next matmul.
    pub fn make_gated_input(
        &self,
        kernel: &RowKernel<GatedRowsArgs>,
        arguments: &GatedRowsArgs,
    ) -> Result<(), Fault> {
        let RowArgs { rows, cols, .. } = arguments.rows;
        // SAFETY: as for `make_input`; each row has gates for all its columns.
        unsafe { kernel.launch(&self.context, (rows as usize, cols as usize), arguments) }
    }

    /// Computes the gated linear unit of gate and up of `act` into `gated`.
    fn project_pair(&self, rows: usize, gate_up: &[Linear; 2], power: Power) -> Result<(), Fault> {
        let output = Output {
            paired: Some(power),
            ..Output::stored(self.scratch.buffers.gated.cast(), gate_up[0].weight.rows)
        };
        self.project(rows, gate_up, self.config.n_embd, output)
    }

    /// Multiplies `act` by linears that share it.
    pub fn project(
        &self,
        rows: usize,
        linears: &[Linear],
        cols: usize,
        output: Output,
    ) -> Result<(), Fault> {
        let input = Input {
            x: self.scratch.buffers.act,
            scale: Scale::OfEach(self.scratch.buffers.scale),
            rows,
            cols,
        };
        self.multiply(input, linears, output)
    }

    /// Multiplies an input by linears that share it.
    fn multiply(&self, input: Input, linears: &[Linear], output: Output) -> Result<(), Fault> {
        // SAFETY: the input holds its rows of whole units, `out` that many of `stride` floats,
        // into which the linears' outputs fit beside each other; a pair's are rows of whole units, too.
        unsafe {
            self.matmul
                .run(&self.context, &self.weights, linears, input, output)
        }
    }
}
