//! Forward pass of a step: embedding, every layer, and the head, as launches in one stream.
//!
//! The pass is the same for every architecture. The differences are data: an optional bias or head
//! norm, the pairs that RoPE rotates, and the layers that it applies to.

use super::board::Stage;
use super::bounds::Power;
use super::delta_net;
use super::head;
use super::headers::constant;
use super::kernels::{
    AttentionArgs, EmbedArgs, GatedRowsArgs, Geometry, Kernel, MergeArgs, RopeArgs, RopeRowsArgs,
    RowArgs,
};
use super::matmul::{Input, Output, Scale};
use super::memory::{DevicePtr, read};
use super::ops::{SPLIT_THREADS, WIDE_THREADS, row_geometry};
use super::plan::Plan;
use super::products_few::FewProducts;
use super::rank::Rank;
use super::scratch::qkv_width;
use super::weights::{Attention, GatedUnit, Layer, Linear, Vector, attention_of, units};
use crate::device::common::batch::{rows, watch};
use crate::device::{Checkpoint, Tap};
use crate::model::{FeedForward, Mixer};
use worker_orcd_ipc::Fault;
use worker_orcd_kernels::reference::rope::RopePairs;

/// Threads per block of rope_kv.cu.
const ROPE_THREADS: u32 = constant!("rope_kv.cu", ROPE_THREADS) as u32;
/// Threads per block for kernels with independent warps.
const WARPS_THREADS: u32 = 128;
const WARPS: usize = 4;
/// Blocks per multiprocessor, or else a number of splits this low, from which one block computes all splits
/// of a prompt's unit, instead of a block per split.
const ENOUGH_BLOCKS: usize = 2;
const MANY_SPLITS: usize = 2;

impl Rank {
    /// Runs the whole step of a batch without a tap, up to the greedy choice of every row.
    pub fn pass(&self, plan: &Plan<'_>) -> Result<(), Fault> {
        self.embed(plan)?;
        for (index, layer) in self.weights.tensors.layers.iter().enumerate() {
            self.mixer(plan, index, layer)?;
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
        EmbedArgs {
            table: self.weights.matrix(table),
            rows: self.scratch.buffers.rows.on_device(),
            x: self.scratch.buffers.x,
            ty: table.ty as i32,
            units: units(table.cols) as i32,
            cols: table.cols as i32,
            scale: self.config.embedding_scale,
        }
    }

    pub fn embed(&self, plan: &Plan<'_>) -> Result<(), Fault> {
        let arguments = self.embed_arguments();
        let geometry = Geometry::line(plan.rows.len(), 256);
        // SAFETY: one block a row; tokens were checked against the vocabulary in `Plan::new`.
        unsafe { self.ops.embed.launch(&self.context, geometry, &arguments) }
    }

    /// Runs a layer's attention or delta net.
    pub fn mixer(&self, plan: &Plan<'_>, index: usize, layer: &Layer) -> Result<(), Fault> {
        match &layer.mixer {
            Mixer::Attention(attention) => self.attention_block(plan, index, (layer, attention)),
            Mixer::DeltaNet(net) => delta_net::run(self, plan, index, (layer, net)),
        }
    }

    fn attention_block(
        &self,
        plan: &Plan<'_>,
        index: usize,
        (layer, attention): (&Layer, &Attention),
    ) -> Result<(), Fault> {
        let (config, buffers) = (&self.config, &self.scratch.buffers);
        let (rows, width) = (plan.rows.len(), config.heads_width());
        let norm = self.norm_arguments(rows, &layer.attn_norm, Stage::Qkv.of(index));
        let qkv = Output::stored(buffers.qkv, qkv_width(config));
        self.make_and_project(&self.ops.rmsnorm, norm, &[(&attention.qkv, qkv)])?;
        self.rope_and_append_kv(rows, index, attention)?;
        self.attention(plan, index)?;
        let attn = RowArgs {
            up: self.powers.attention(index).up(),
            ..self.row_arguments(rows, buffers.attn, width, Stage::Output.of(index))
        };
        let post_norm = layer.attn_post_norm.as_ref();
        let (linears, output) = ([attention.output], self.end_of_block(post_norm));
        if config.gates_attention {
            self.make_gated_input(&self.ops.gate_bounded_rows, &self.gated_by_queries(attn))?;
            self.project(rows, &linears, width, output)?;
        } else {
            let kernel = &self.ops.scale_bounded_rows;
            self.make_and_project(kernel, attn, &[(&linears, output)])?;
        }
        self.add_norm(rows, post_norm, Stage::GateUp.of(index))
    }

    /// Arguments for attention's output with the gates that follow the queries of each head.
    fn gated_by_queries(&self, rows: RowArgs) -> GatedRowsArgs {
        let head_dim = self.config.head_dim;
        GatedRowsArgs {
            rows,
            gates: self.scratch.buffers.qkv.add(head_dim),
            stride: qkv_width(&self.config) as i32,
            head_dim: head_dim as i32,
            head_stride: 2 * head_dim as i32,
            unused: 0,
        }
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

    /// Adds `ff` to the residual stream through the norm after the block, if any. `next` is the stage after the block.
    pub fn add_norm(
        &self,
        rows: usize,
        post_norm: Option<&Vector>,
        next: u32,
    ) -> Result<(), Fault> {
        let Some(weight) = post_norm else {
            return Ok(());
        };
        let arguments = RowArgs {
            weight: self.weights.vector(weight),
            plain: self.scratch.buffers.x,
            ..self.row_arguments(rows, self.scratch.buffers.ff, self.config.n_embd, next)
        };
        self.make_input(&self.ops.add_norm, &arguments)
    }

    /// Makes an input for products, each of up to three linears. For very few rows a launch makes the input and multiplies it,
    /// unless the whole step is one.
    pub fn make_and_project(
        &self,
        kernel: &Kernel<RowArgs>,
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

    pub fn feed_forward(&self, rows: usize, index: usize, layer: &Layer) -> Result<(), Fault> {
        let unit = match &layer.feed_forward {
            FeedForward::Dense(unit) => unit,
            FeedForward::Experts(experts) => return self.mixture(rows, index, layer, experts),
        };
        let norm = self.norm_arguments(rows, &layer.ffn_norm, Stage::GateUp.of(index));
        self.make_input(&self.ops.rmsnorm, &norm)?;
        let post_norm = layer.ffn_post_norm.as_ref();
        let output = self.end_of_block(post_norm);
        self.gated_unit(rows, (index, unit), Stage::Down.of(index), output)?;
        self.add_norm(rows, post_norm, Stage::Qkv.of(index + 1))
    }

    /// Multiplies an input by gate and up, then by down of a layer. `stage` is posted before down, if a launch makes
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
        let both = Output::stored(buffers.ff, 2 * n_ff);
        self.project(rows, &unit.gate_up, n_embd, both)?;
        let ff = RowArgs {
            in_stride: both.stride as i32,
            up: power.map_or(0.0, Power::up),
            ..self.row_arguments(rows, buffers.ff, n_ff, stage)
        };
        let kernel = match power {
            Some(_) => &self.ops.glu_bounded_rows,
            None => &self.ops.glu_rows,
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
            unused: 0,
        }
    }

    /// Converts F32 rows to the input of the next matmul, or adds them to the residual stream.
    pub fn make_input(&self, kernel: &Kernel<RowArgs>, arguments: &RowArgs) -> Result<(), Fault> {
        let geometry = row_geometry(arguments.rows as usize, arguments.cols as usize);
        // SAFETY: one block for two rows; the input holds that many rows of its stride.
        unsafe { kernel.launch(&self.context, geometry, arguments) }
    }

    /// Converts F32 rows times their gates to the input of the next matmul.
    pub fn make_gated_input(
        &self,
        kernel: &Kernel<GatedRowsArgs>,
        arguments: &GatedRowsArgs,
    ) -> Result<(), Fault> {
        let RowArgs { rows, cols, .. } = arguments.rows;
        // SAFETY: as for `make_input`; each row has gates for all its columns.
        unsafe {
            kernel.launch(
                &self.context,
                row_geometry(rows as usize, cols as usize),
                arguments,
            )
        }
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

    /// Arguments of `rope_kv.cu`, with the optional head norms of a layer.
    pub fn rope_arguments(&self, index: usize, attention: Option<&Attention>) -> RopeArgs {
        let config = &self.config;
        let place = config.rope_of(index);
        // Zero pairs rotate nothing.
        let dims = place.map_or(0, |_| config.rope.dims as i32);
        let norm = |vector: Option<&Vector>| self.weights.optional_vector(vector);
        RopeArgs {
            qkv: self.scratch.buffers.qkv,
            rows: self.scratch.buffers.rows.on_device(),
            rope_table: self.weights.tables.ropes[place.unwrap_or(0)],
            q_norm: norm(attention.and_then(|it| it.q_norm.as_ref())),
            k_norm: norm(attention.and_then(|it| it.k_norm.as_ref())),
            temperature: self.weights.tables.temperature,
            q: self.scratch.buffers.q,
            kv: self.kv.layer(index, |group| {
                self.scratch.buffers.tables[group].on_device()
            }),
            heads: config.n_heads as i32,
            kv_heads: config.n_kv_heads as i32,
            head_dim: config.head_dim as i32,
            dims,
            half_offset: i32::from(config.rope.pairs == RopePairs::HalfOffset),
            eps: config.norm_eps,
        }
    }

    /// Applies head norms and RoPE to queries and keys, and stores keys and values in the cache.
    fn rope_and_append_kv(
        &self,
        rows: usize,
        index: usize,
        attention: &Attention,
    ) -> Result<(), Fault> {
        let config = &self.config;
        let arguments = RopeRowsArgs {
            rope: self.rope_arguments(index, Some(attention)),
            per_query: if config.gates_attention { 2 } else { 1 },
            clears: i32::from(config.delta_net.is_some()),
        };
        let heads = config.n_heads + 2 * config.n_kv_heads;
        // A warp per head for heads with norms, else a thread per pair of columns.
        let threads = match attention.q_norm.is_some() || attention.k_norm.is_some() {
            true => 32 * heads,
            false => heads * config.head_dim / 2,
        };
        let geometry = Geometry {
            grid: [rows as u32, (threads as u32).div_ceil(ROPE_THREADS)],
            ..Geometry::line(rows, ROPE_THREADS)
        };
        // SAFETY: positions are inside the RoPE table and their pages inside the arena: the
        // scheduler serves no longer sequences and hands out no other pages.
        unsafe { self.ops.rope_kv.launch(&self.context, geometry, &arguments) }
    }

    /// Computes attention into `attn`.
    fn attention(&self, plan: &Plan<'_>, index: usize) -> Result<(), Fault> {
        self.wide_attention(plan, index)?;
        let (config, ops) = (&self.config, &self.ops);
        let units = plan.tiles.len() * config.n_kv_heads;
        let arguments = self.attention_arguments(plan, index);
        let launch = |kernel: &Kernel<AttentionArgs>, geometry: Geometry| {
            // SAFETY: a block a unit, or a split of one; tiles name rows of this batch and tables that
            // cover them.
            unsafe { kernel.launch(&self.context, geometry, &arguments) }
        };
        if !self.splits_over_blocks(plan) {
            let geometry = Geometry {
                shared_bytes: ops.together_shared_bytes,
                ..Geometry::line(units, ops.together_threads)
            };
            return launch(&ops.attention_together, geometry);
        }
        let geometry = Geometry {
            shared_bytes: ops.split_shared_bytes,
            ..Geometry::line(units * plan.splits, SPLIT_THREADS)
        };
        launch(&ops.attention_split, geometry)?;
        if plan.splits == 1 {
            return Ok(());
        }
        let rows = plan.narrow.rows;
        let merge = MergeArgs {
            attention: arguments,
            rows: self.scratch.buffers.rows.on_device(),
            n_rows: rows as i32,
            head_dim: config.head_dim as i32,
        };
        let geometry = Geometry::line((rows * config.n_heads).div_ceil(WARPS), WARPS_THREADS);
        // SAFETY: a warp a head of a row; every split that its position sees was just written.
        unsafe { ops.attention_merge.launch(&self.context, geometry, &merge) }
    }

    /// Computes attention of the sequences in wide tiles.
    fn wide_attention(&self, plan: &Plan<'_>, index: usize) -> Result<(), Fault> {
        let kernel = match self.config.positions.window_of(index) {
            None => &self.ops.attention_wide,
            Some(_) => &self.ops.attention_wide_near,
        };
        let Some(kernel) = kernel else {
            return Ok(());
        };
        let arguments = AttentionArgs {
            tiles: self.scratch.buffers.tiles.on_device().add(plan.tiles.len()),
            n_tiles: plan.wide_tiles.len() as i32,
            ..self.attention_arguments(plan, index)
        };
        let blocks = plan.wide_tiles.len() * self.config.n_kv_heads;
        let geometry = Geometry {
            shared_bytes: self.ops.wide_shared_bytes,
            ..Geometry::line(blocks, WIDE_THREADS)
        };
        // SAFETY: a block a unit of tiles that name rows of this batch and tables that cover them.
        unsafe { kernel.launch(&self.context, geometry, &arguments) }
    }

    /// Decoding sequences, and sequences with many splits in a step of little work: one block per split. Results
    /// are by row of the batch, so these sequences must come first.
    pub fn splits_over_blocks(&self, plan: &Plan<'_>) -> bool {
        let (config, narrow) = (&self.config, plan.narrow);
        let units = plan.tiles.len() * config.n_kv_heads;
        let few = units < ENOUGH_BLOCKS * self.context.multiprocessors() as usize;
        (narrow.decode() || few && plan.splits > MANY_SPLITS)
            && narrow.come_first()
            && self.scratch.holds_partials(
                narrow.rows,
                config.n_heads,
                plan.splits,
                config.head_dim,
            )
    }

    pub fn attention_arguments(&self, plan: &Plan<'_>, index: usize) -> AttentionArgs {
        let config = &self.config;
        let scale = std::f64::consts::LOG2_E * config.attention_scale;
        let window = config.positions.window_of(index);
        let sinks = &attention_of(&self.weights.tensors.layers[index]).sinks;
        AttentionArgs {
            q: self.scratch.buffers.q,
            out: self.scratch.buffers.attn,
            partial: self.scratch.buffers.partial,
            tiles: self.scratch.buffers.tiles.on_device(),
            kv: self.kv.layer(index, |group| {
                self.scratch.buffers.tables[group].on_device()
            }),
            n_tiles: plan.tiles.len() as i32,
            heads: config.n_heads as i32,
            kv_heads: config.n_kv_heads as i32,
            splits: plan.splits as i32,
            scale: scale as f32,
            window: window.map_or(i32::MAX, |it| i32::try_from(it).unwrap_or(i32::MAX)),
            sinks: self.weights.optional_vector(sinks.as_ref()),
        }
    }
}
