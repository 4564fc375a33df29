//! One step: embedding, every layer, and the head, as launches in one stream.
//!
//! The same pass for every architecture. What differs between them is data: a bias or a head norm
//! that is there or not, which pairs RoPE turns.

use super::CudaExecutor;
use super::decode_step::is_watched;
use super::driver::Driver;
use super::graph::Shape;
use super::head::{self, Head};
use super::kernels::{
    Answers, AttentionArgs, EmbedArgs, Geometry, Kernel, MergeArgs, RopeArgs, Row, RowArgs, Tile,
};
use super::kv::KvCache;
use super::matmul::{Input, Matmul, Output};
use super::memory::{DevicePtr, download};
use super::ops::Ops;
use super::plan::Plan;
use super::scratch::{Buffers, Scratch};
use super::weights::{Layer, Linear, Vector, Weights, units};
use crate::device::{Batch, Checkpoint, Tap};
use crate::model::{ModelConfig, RopeStyle};
use worker_orcd_ipc::Fault;

/// Threads of the kernels in norm.cu.
pub const ROW_THREADS: u32 = 256;
/// Threads of a block whose warps work on their own.
const WARPS_THREADS: u32 = 128;
const WARPS: usize = 4;
/// Warps a multiprocessor should have before attention walks splits instead of sharing them out.
const ENOUGH_WARPS: usize = 8;

/// The parts of the executor that a step reads, and the batch's place on the device.
#[derive(Debug, Clone, Copy)]
pub struct Model<'a> {
    pub driver: &'a Driver,
    pub config: &'a ModelConfig,
    pub weights: &'a Weights,
    pub kv: &'a KvCache,
    pub scratch: &'a Scratch,
    pub turns: DevicePtr<[f32; 2]>,
    pub ops: &'a Ops,
    pub matmul: &'a Matmul,
    pub buffers: Buffers,
}

/// Launches a step, behind one that may still be running.
pub fn depart(
    executor: &mut CudaExecutor,
    batch: &Batch<'_>,
    tap: &mut dyn Tap,
) -> Result<(), Fault> {
    executor.driver.enter()?;
    let slot = executor.flights.slot();
    let (before, requests) = executor.flights.before();
    let plan = Plan::new(batch, &executor.config, requests);
    let (driver, arrive) = (&executor.driver, &executor.ops.arrive);
    executor
        .scratch
        .upload(driver, arrive, (&plan, slot), before)?;
    let answers = launch(executor, (&plan, slot), tap)?;
    executor
        .flights
        .depart(&executor.driver, batch.step, &plan, answers)
}

/// Embedding to tokens. Says where they will be.
fn launch(
    executor: &mut CudaExecutor,
    (plan, slot): (&Plan<'_>, usize),
    tap: &mut dyn Tap,
) -> Result<Answers, Fault> {
    let model = Model {
        driver: &executor.driver,
        config: &executor.config,
        weights: &executor.weights,
        kv: &executor.kv,
        scratch: &executor.scratch,
        turns: executor.turns,
        ops: &executor.ops,
        matmul: &executor.matmul,
        buffers: executor.scratch.buffers(),
    };
    if plan.rows.is_empty() {
        return Ok(Answers::ids(model.buffers.chosen));
    }
    let mut head = Head {
        model: &model,
        draws: &mut executor.draws,
        slot,
        plan,
    };
    if let Some(shape) = Shape::of(plan, model.scratch.sizes.head_rows)
        && !is_watched(model.config, plan, tap)
    {
        if let Some(decode_step) = &mut executor.decode_step
            && decode_step.takes(model.driver, model.config, plan)
        {
            decode_step.launch(&model, plan)?;
            return head.draw_ranked(decode_step, tap);
        }
        let pass = || model.pass(plan);
        if executor.graphs.launch(model.driver, shape, pass)? {
            return head.draw_chosen(tap);
        }
    }
    model.embed(plan)?;
    model.watch(tap, plan, Checkpoint::Embedding)?;
    for (index, layer) in model.weights.layers.iter().enumerate() {
        model.attend(plan, index, layer)?;
        model.feed_forward(plan.rows.len(), layer)?;
        model.watch(tap, plan, Checkpoint::Layer(index as u32))?;
    }
    head.run(tap)
}

impl Model<'_> {
    /// The whole step of a batch that nobody watches, up to the greedy choice of every row.
    fn pass(&self, plan: &Plan<'_>) -> Result<(), Fault> {
        self.embed(plan)?;
        for (index, layer) in self.weights.layers.iter().enumerate() {
            self.attend(plan, index, layer)?;
            self.feed_forward(plan.rows.len(), layer)?;
        }
        head::logits(self, 0, plan.drawing.len())
    }

    /// Shows the residual stream to who wants it.
    fn watch(
        &self,
        tap: &mut dyn Tap,
        plan: &Plan<'_>,
        checkpoint: Checkpoint,
    ) -> Result<(), Fault> {
        let wants = |tap: &mut dyn Tap, sequence: usize| {
            tap.wants(plan.sequences[sequence].request, &checkpoint)
        };
        let wanted: Vec<bool> = (0..plan.sequences.len())
            .map(|index| wants(tap, index))
            .collect();
        if !wanted.contains(&true) {
            return Ok(());
        }
        let n_embd = self.config.n_embd;
        let mut values = vec![0.0; plan.rows.len() * n_embd];
        // SAFETY: the stream holds a row for each token of the batch.
        unsafe { download(self.driver, &mut values, self.buffers.x) }?;
        let mut rows = values.chunks_exact(n_embd);
        for (work, wanted) in plan.sequences.iter().zip(wanted) {
            for (position, row) in
                (work.first_position..).zip(rows.by_ref().take(work.tokens.len()))
            {
                if wanted {
                    tap.see(work.request, &checkpoint, position, row);
                }
            }
        }
        Ok(())
    }

    pub fn embed_arguments(&self) -> EmbedArgs {
        let table = &self.weights.token_embd;
        EmbedArgs {
            table: self.weights.matrix(table),
            rows: self.buffers.rows,
            x: self.buffers.x,
            ty: table.ty as i32,
            units: units(table.cols) as i32,
            cols: table.cols as i32,
        }
    }

    fn embed(&self, plan: &Plan<'_>) -> Result<(), Fault> {
        let arguments = self.embed_arguments();
        let geometry = Geometry::line(plan.rows.len(), 256);
        // SAFETY: one block a row; tokens were checked against the vocabulary in `Plan::new`.
        unsafe { self.ops.embed.launch(self.driver, geometry, &arguments) }
    }

    fn attend(&self, plan: &Plan<'_>, index: usize, layer: &Layer) -> Result<(), Fault> {
        let (config, buffers) = (self.config, &self.buffers);
        let rows = plan.rows.len();
        let q_width = config.n_heads * config.head_dim;
        self.normalize(rows, &layer.attn_norm)?;
        let qkv_width = self.scratch.sizes.qkv;
        self.project(
            rows,
            &layer.qkv,
            config.n_embd,
            (buffers.qkv, qkv_width, false),
        )?;
        self.turn_and_keep(rows, index, layer)?;
        self.look(plan, index)?;
        self.make_input(&self.ops.scale_rows, rows, (buffers.attn, q_width), q_width)?;
        self.project(
            rows,
            &[layer.attn_output],
            q_width,
            (buffers.x, config.n_embd, true),
        )
    }

    fn feed_forward(&self, rows: usize, layer: &Layer) -> Result<(), Fault> {
        let (n_embd, n_ff, buffers) = (self.config.n_embd, self.config.n_ff, &self.buffers);
        self.normalize(rows, &layer.ffn_norm)?;
        self.project(rows, &layer.gate_up, n_embd, (buffers.ff, 2 * n_ff, false))?;
        self.make_input(&self.ops.silu_mul_rows, rows, (buffers.ff, 2 * n_ff), n_ff)?;
        self.project(rows, &[layer.ffn_down], n_ff, (buffers.x, n_embd, true))
    }

    fn normalize(&self, rows: usize, weight: &Vector) -> Result<(), Fault> {
        let n_embd = self.config.n_embd;
        let arguments = RowArgs {
            weight: self.weights.vector(weight),
            ..self.row_arguments((self.buffers.x, n_embd), n_embd)
        };
        let geometry = Geometry::line(rows, ROW_THREADS);
        // SAFETY: one block a row of the stream.
        unsafe { self.ops.rmsnorm.launch(self.driver, geometry, &arguments) }
    }

    pub fn row_arguments(&self, (input, stride): (DevicePtr<f32>, usize), cols: usize) -> RowArgs {
        RowArgs {
            input,
            gather: DevicePtr::NULL,
            weight: DevicePtr::NULL,
            plain: DevicePtr::NULL,
            out: self.buffers.act,
            scale: self.buffers.scale,
            cols: cols as i32,
            units: units(cols) as i32,
            in_stride: stride as i32,
            eps: self.config.norm_eps,
        }
    }

    /// F32 rows become the input of the next matmul.
    fn make_input(
        &self,
        kernel: &Kernel<RowArgs>,
        rows: usize,
        input: (DevicePtr<f32>, usize),
        cols: usize,
    ) -> Result<(), Fault> {
        let arguments = self.row_arguments(input, cols);
        // SAFETY: one block a row; the input holds that many rows of its stride.
        unsafe { kernel.launch(self.driver, Geometry::line(rows, ROW_THREADS), &arguments) }
    }

    /// `act` through some linears that share it, into `(out, stride, add)`.
    pub fn project(
        &self,
        rows: usize,
        linears: &[Linear],
        cols: usize,
        (out, stride, add): (DevicePtr<f32>, usize, bool),
    ) -> Result<(), Fault> {
        let input = Input {
            x: self.buffers.act,
            scale: self.buffers.scale,
            rows,
            cols,
        };
        let output = Output { out, stride, add };
        // SAFETY: `act` holds `rows` rows of whole units, `out` that many of `stride` floats,
        // into which the linears' outputs fit beside each other.
        unsafe {
            self.matmul
                .run(self.driver, self.weights, linears, input, output)
        }
    }

    /// With the head norms of a layer, where it has any.
    pub fn rope_arguments(&self, index: usize, layer: Option<&Layer>) -> RopeArgs {
        let config = self.config;
        let norm = |vector: Option<&Vector>| self.weights.optional_vector(vector);
        RopeArgs {
            qkv: self.buffers.qkv,
            rows: self.buffers.rows,
            turns: self.turns,
            q_norm: norm(layer.and_then(|layer| layer.q_norm.as_ref())),
            k_norm: norm(layer.and_then(|layer| layer.k_norm.as_ref())),
            q: self.buffers.q,
            kv: self.kv.layer(index, self.buffers.tables),
            heads: config.n_heads as i32,
            kv_heads: config.n_kv_heads as i32,
            head_dim: config.head_dim as i32,
            dims: config.rope_dims as i32,
            half_offset: i32::from(config.rope_style == RopeStyle::HalfOffset),
            eps: config.norm_eps,
        }
    }

    /// Head norms and RoPE on queries and keys; keys and values into the cache.
    fn turn_and_keep(&self, rows: usize, index: usize, layer: &Layer) -> Result<(), Fault> {
        let config = self.config;
        let arguments = self.rope_arguments(index, Some(layer));
        let heads = config.n_heads + 2 * config.n_kv_heads;
        let geometry = Geometry {
            grid: [rows as u32, heads.div_ceil(WARPS) as u32],
            block: [WARPS_THREADS, 1, 1],
            shared_bytes: 0,
        };
        // SAFETY: positions are inside the table of turns and their pages inside the arena: the
        // scheduler serves no longer sequences and hands out no other pages.
        unsafe { self.ops.rope_kv.launch(self.driver, geometry, &arguments) }
    }

    /// Attention itself, into `attn`.
    fn look(&self, plan: &Plan<'_>, index: usize) -> Result<(), Fault> {
        let (config, ops) = (self.config, self.ops);
        let rows = plan.rows.len();
        let units = plan.tiles.len() * config.n_kv_heads;
        let arguments = self.attention_arguments(plan, index);
        let few = units < ENOUGH_WARPS * self.driver.multiprocessors() as usize;
        let room = self
            .scratch
            .holds_partials(rows, config.n_heads, plan.splits, config.head_dim);
        let launch = |kernel: &Kernel<AttentionArgs>, units: usize| {
            let geometry = Geometry::line(units.div_ceil(WARPS), WARPS_THREADS);
            // SAFETY: one warp a unit; tiles name rows of this batch and tables that cover them.
            unsafe { kernel.launch(self.driver, geometry, &arguments) }
        };
        if !(few && room && plan.splits > 1) {
            return launch(&ops.attention_walk, units);
        }
        launch(&ops.attention_split, units * plan.splits)?;
        let merge = MergeArgs {
            attention: arguments,
            rows: self.buffers.rows,
            n_rows: rows as i32,
            head_dim: config.head_dim as i32,
        };
        let geometry = Geometry::line((rows * config.n_heads).div_ceil(WARPS), WARPS_THREADS);
        // SAFETY: a warp a head of a row; every split that its position sees was just written.
        unsafe { ops.attention_merge.launch(self.driver, geometry, &merge) }
    }

    pub fn attention_arguments(&self, plan: &Plan<'_>, index: usize) -> AttentionArgs {
        let config = self.config;
        let scale = std::f64::consts::LOG2_E / (config.head_dim as f64).sqrt();
        AttentionArgs {
            q: self.buffers.q,
            out: self.buffers.attn,
            partial: self.buffers.partial,
            tiles: self.buffers.tiles,
            kv: self.kv.layer(index, self.buffers.tables),
            n_tiles: plan.tiles.len() as i32,
            heads: config.n_heads as i32,
            kv_heads: config.n_kv_heads as i32,
            splits: plan.splits as i32,
            scale: scale as f32,
        }
    }
}

// The device's view of a row and a tile, in bytes.
const _: () = assert!(size_of::<Row>() == 16 && size_of::<Tile>() == 20);
