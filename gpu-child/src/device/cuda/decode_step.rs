//! The whole decode step of a small batch as one cooperative launch (`decode_step.cu`).
//!
//! The kernel takes batches of up to [`MAX_ROWS`] sequences with one token each, on devices that have
//! bulk copies (compute capability 9 and up), for models of attention without windows, sinks, gates, norms after
//! blocks, a scale of the embedding, or an activation other than SiLU. A model with experts has a kernel of its own
//! (`step_experts.cuh`), for one sequence, a router by softmax, and experts in all layers, none of them shared or with biases.
//! It gives the same bits as the launches of [`forward`](super::forward); only time differs.

use super::attention::plan::TilePlan;
use super::attention::{
    AttentionArgs, RopeArgs, attention_arguments, attention_of, rope_arguments,
};
use super::bounds::{Power, Powers};
use super::context::Context;
use super::deal::Deal;
use super::headers::{constant, layout};
use super::kernels::{EmbedArgs, Geometry, Kernel, Module, Part};
use super::memory::{Arena, DevicePtr, Purpose, upload};
use super::plan::Plan;
use super::rank::Rank;
use super::shared_plan::{STATIC_SHARED_BYTES, SharedPlan, UnitBytes};
use super::step_model::{
    MAX_ROWS, blocks_of, experts_of, has_shape, kernel_of, published_rows, rows_of, unit_columns,
    unit_of, widths,
};
use super::tags::Tags;
use super::weights::{Linear, Weights};
use crate::device::{Checkpoint, Tap};
use crate::model::ModelConfig;
use worker_orcd_ipc::Fault;

/// Warps of a block: the consumers, and the producer's warpgroup.
const WARPS: usize = constant!("step_plan.cuh", STEP_WARPS) + 4;
/// Bytes of partial results of attention that blocks publish to each other. Larger batches are left
/// to other kernels.
const PARTIAL_BYTES: usize = 32 << 20;
/// Exchanges of a layer: vectors that blocks publish to each other. The embedding is one more.
const LAYER_EXCHANGES: usize = constant!("step_plan.cuh", EXCHANGES);
/// Replicas of every published vector.
const REPLICAS: usize = constant!("step_plan.cuh", REPLICAS);
/// Bytes of a value and its tag, `Word`.
const WORD_BYTES: usize = 8;

layout! {
    pub struct StepLayer in "step_plan.cuh" {
        parts: [Part; 7],
        attn_norm: DevicePtr<f32>,
        ffn_norm: DevicePtr<f32>,
        q_norm: DevicePtr<f32>,
        k_norm: DevicePtr<f32>,
        attn_up: f32,
        ff_up: f32,
    }

    pub struct HeadNorms in "step_plan.cuh" {
        q_norm: DevicePtr<f32>,
        k_norm: DevicePtr<f32>,
    }

    struct StepArgs in "step_plan.cuh" {
        layers: DevicePtr<u8>,
        embed: EmbedArgs,
        rope: RopeArgs,
        attention: AttentionArgs,
        head: Part,
        head_norm: DevicePtr<f32>,
        exchange: Exchange,
        logits: DevicePtr<f32>,
        best: DevicePtr<u64>,
        broken: DevicePtr<u32>,
        board: DevicePtr<u32>,
        first_tag: u32,
        n_layers: i32,
        rows: i32,
        n_embd: i32,
        n_ff: i32,
        vocab: i32,
        attention_blocks: i32,
        parts: i32,
        partial_splits: i32,
        unrotated_every: i32,
        layer_halves: u64,
        eps: f32,
        shared: SharedPlan,
        unused: i32,
        mixture: StepMixture,
    }

    struct StepMixture in "step_plan.cuh" {
        routers: DevicePtr<Part>,
        logits: DevicePtr<u64>,
        experts: i32,
        used: i32,
        weighing: i32,
        unused: i32,
    }

    /// Vectors of [`MAX_ROWS`] rows, of words.
    struct Exchange in "step_plan.cuh" {
        x: DevicePtr<u64>,
        qkv: DevicePtr<u64>,
        attn: DevicePtr<u64>,
        ff: DevicePtr<u64>,
        stride: u64,
        partials: DevicePtr<u64>,
    }
}

#[derive(Debug)]
pub struct DecodeStep {
    /// Kernel for several rows; `None` for a model with experts.
    kernel: Option<Kernel<StepArgs>>,
    /// Kernel for one row, without row indices.
    alone: Kernel<StepArgs>,
    /// The layers' table, then the table of routers, `best` and `broken`.
    arena: Arena,
    routers: usize,
    n_layers: usize,
    unit_bytes: UnitBytes,
    /// Vectors that blocks publish to each other.
    words: Arena,
    tags: Tags,
}

impl DecodeStep {
    /// Bytes of the vectors and partial results that blocks publish to each other.
    #[must_use]
    pub fn words_bytes(config: &ModelConfig) -> usize {
        if !has_shape(config) {
            return 0;
        }
        REPLICAS * replica_words(config) * WORD_BYTES + PARTIAL_BYTES
    }

    /// Loads the kernel; `None` if it does not support the device or the model.
    ///
    /// # Errors
    /// If the device fails.
    pub fn load(
        context: &Context,
        module: &Module,
        config: &ModelConfig,
        weights: &Weights,
        powers: &Powers,
    ) -> Result<Option<Self>, Fault> {
        let Some((name, unit_bytes)) = kernel_of(context, config, weights, powers) else {
            return Ok(None);
        };
        let layers = &weights.tensors.layers;
        let load = |name: &str| {
            // SAFETY: the kernels of decode_step.cu take StepArgs.
            let kernel: Kernel<StepArgs> = unsafe { module.kernel(name) }?;
            kernel.allow_shared(context.shared_bytes() - STATIC_SHARED_BYTES as u32)?;
            Ok::<_, Fault>(kernel)
        };
        let kernel = match config.experts {
            None => Some(load(&name)?),
            Some(_) => None,
        };
        let alone = load(&format!("{name}_alone"))?;
        let routers: Vec<Part> = layers
            .iter()
            .filter_map(experts_of)
            .map(|experts| weights.part(&experts.router, 0))
            .collect();
        let layers: Vec<StepLayer> = (0..layers.len())
            .map(|index| step_layer(config, weights, powers, index))
            .collect();
        let (table, of_routers) = (size_of_val(&*layers), size_of_val(&*routers));
        let bytes = table + of_routers + 12 * MAX_ROWS;
        let arena = Arena::new(context, Purpose::Scratch, bytes as u64)?;
        let words = Arena::new(context, Purpose::Scratch, Self::words_bytes(config) as u64)?;
        words.clear(context)?;
        // SAFETY: StepLayer and Part are made of addresses and integers without padding, and outlive the
        // copies, which have read pageable memory when they return.
        unsafe {
            let bytes = std::slice::from_raw_parts(layers.as_ptr().cast::<u8>(), table);
            upload(context, arena.at(0, table), bytes)?;
            let bytes = std::slice::from_raw_parts(routers.as_ptr().cast::<u8>(), of_routers);
            upload(context, arena.at(table as u64, of_routers), bytes)?;
        }
        Ok(Some(Self {
            kernel,
            alone,
            arena,
            routers: routers.len(),
            n_layers: layers.len(),
            unit_bytes,
            words,
            tags: Tags::default(),
        }))
    }

    /// The kernel supports this batch.
    #[must_use]
    pub fn takes(&self, context: &Context, config: &ModelConfig, plan: &Plan<'_>) -> bool {
        plan.rows.len() <= rows_of(config, self.unit_bytes)
            && plan.sequences.len() == plan.rows.len()
            && plan.drawing.len() == plan.rows.len()
            && partial_bytes(config, plan) <= PARTIAL_BYTES
            && self.shared(context, config, plan.rows.len()).is_some()
    }

    fn shared(&self, context: &Context, config: &ModelConfig, rows: usize) -> Option<SharedPlan> {
        let available = context.shared_bytes() as usize;
        SharedPlan::of(config, rows, self.unit_bytes, available)
    }

    fn exchange(&self, config: &ModelConfig) -> Exchange {
        let [x, qkv, attn, ff, _] = self.vectors(config);
        Exchange {
            x,
            qkv,
            attn,
            ff,
            stride: replica_words(config) as u64,
            partials: self.words.at(
                (REPLICAS * replica_words(config) * WORD_BYTES) as u64,
                PARTIAL_BYTES / WORD_BYTES,
            ),
        }
    }

    /// The first replica of each published vector.
    fn vectors(&self, config: &ModelConfig) -> [DevicePtr<u64>; 5] {
        let (mut end, rows) = (0, published_rows(config));
        widths(config).map(|width| {
            let at = end;
            end += (width * rows * WORD_BYTES) as u64;
            self.words.at(at, width * rows)
        })
    }

    fn mixture(&self, config: &ModelConfig) -> StepMixture {
        let table = self.n_layers * size_of::<StepLayer>();
        let [.., logits] = self.vectors(config);
        let experts = config.experts.as_ref();
        StepMixture {
            routers: self.arena.at(table as u64, self.routers),
            logits,
            experts: experts.map_or(0, |it| it.count as i32),
            used: experts.map_or(1, |it| it.used as i32),
            weighing: experts.map_or(0, |it| it.weighing as i32),
            unused: 0,
        }
    }

    /// Tag of the next step's first exchange.
    fn next_tag(&mut self, context: &Context) -> Result<u32, Fault> {
        // One more tag is for finished blocks (board.cuh).
        let tags = (2 + LAYER_EXCHANGES * self.n_layers) as u32;
        let (first, begins_again) = self.tags.next(tags);
        if begins_again {
            // In stream order: after the steps that still use it.
            self.words.clear(context)?;
        }
        Ok(first)
    }

    /// Launches the step. It writes logits to the scratch, and the ranks of the best to
    /// [`best`](Self::best).
    ///
    /// # Errors
    /// If the launch fails.
    ///
    /// # Panics
    /// If [`takes`](Self::takes) is false.
    pub fn launch(&mut self, rank: &Rank, plan: &Plan<'_>) -> Result<(), Fault> {
        let (config, buffers) = (&rank.config, &rank.scratch.buffers);
        let shared = self
            .shared(&rank.context, config, plan.rows.len())
            .expect("a batch that the kernel takes");
        let table = self.n_layers * size_of::<StepLayer>();
        let weights = &rank.weights;
        let blocks = rank.context.multiprocessors();
        let pairs = plan.rows.len() * config.n_kv_heads;
        let (teams, kept) = (shared.teams as usize, shared.kept_splits as usize);
        let tiles = only_tiles(plan);
        let splits = tiles.splits;
        let deal = Deal::of(teams, kept, pairs, splits, blocks as usize);
        let arguments = StepArgs {
            layers: self.arena.at(0, table),
            embed: rank.embed_arguments(),
            rope: rope_arguments(rank, 0, None),
            attention: attention_arguments(rank, tiles, 0),
            head: weights.part(&weights.tensors.output, 0),
            head_norm: weights.vector(&weights.tensors.output_norm),
            exchange: self.exchange(config),
            logits: buffers.logits,
            best: self.best(),
            broken: self.broken(),
            board: rank.board.on_device(),
            first_tag: self.next_tag(&rank.context)?,
            n_layers: self.n_layers as i32,
            rows: plan.rows.len() as i32,
            n_embd: config.n_embd as i32,
            n_ff: unit_columns(config) as i32,
            vocab: config.vocab_size as i32,
            attention_blocks: deal.blocks as i32,
            parts: deal.parts as i32,
            partial_splits: deal.published as i32,
            layer_halves: rank.kv.layer_halves(0),
            unrotated_every: config.positions.unrotated_every.unwrap_or(0) as i32,
            eps: config.norm_eps,
            shared,
            unused: 0,
            mixture: self.mixture(config),
        };
        let geometry = Geometry {
            grid: [blocks, 1],
            block: [32 * WARPS as u32, 1, 1],
            shared_bytes: rank.context.shared_bytes() - STATIC_SHARED_BYTES as u32,
        };
        let kernel = match &self.kernel {
            Some(kernel) if plan.rows.len() > 1 => kernel,
            _ => &self.alone,
        };
        // SAFETY: one block a multiprocessor, resident together; the buffers are those of the
        // kernels that this one stands for, with as many rows.
        unsafe { kernel.launch_together(&rank.context, geometry, &arguments) }
    }

    /// `rank` of the best logit of each row (`argmax.cuh`).
    #[must_use]
    pub fn best(&self) -> DevicePtr<u64> {
        self.arena.at(self.tables(), MAX_ROWS)
    }

    /// One word per row, not zero if the row has a logit that is not finite.
    #[must_use]
    pub fn broken(&self) -> DevicePtr<u32> {
        self.arena.at(self.tables() + 8 * MAX_ROWS as u64, MAX_ROWS)
    }

    /// Bytes of the tables of layers and routers.
    fn tables(&self) -> u64 {
        (self.n_layers * size_of::<StepLayer>() + self.routers * size_of::<Part>()) as u64
    }
}

/// Tiles of the one kind of heads of a model that the kernel takes.
fn only_tiles<'a>(plan: &'a Plan<'_>) -> &'a TilePlan {
    &plan.mixers.attention.heads[0]
}

/// Bytes of the partial results of a batch's attention, with two words per split beside its columns.
fn partial_bytes(config: &ModelConfig, plan: &Plan<'_>) -> usize {
    let results = plan.rows.len() * config.n_heads * only_tiles(plan).splits;
    results * (config.head_dim + 2) * WORD_BYTES
}

/// Words of one replica of all vectors.
fn replica_words(config: &ModelConfig) -> usize {
    widths(config).into_iter().sum::<usize>() * published_rows(config)
}

/// The tap needs values that this kernel does not show.
pub fn is_watched(config: &ModelConfig, plan: &Plan<'_>, tap: &dyn Tap) -> bool {
    let layers = (0..config.n_layers as u32).map(Checkpoint::Layer);
    let hidden: Vec<Checkpoint> = layers
        .chain([Checkpoint::Embedding, Checkpoint::FinalNorm])
        .chain([Checkpoint::PromptLogits])
        .collect();
    plan.sequences
        .iter()
        .any(|work| hidden.iter().any(|point| tap.wants(work.request, point)))
}

fn step_layer(config: &ModelConfig, weights: &Weights, powers: &Powers, index: usize) -> StepLayer {
    let layer = &weights.tensors.layers[index];
    let q_width = config.n_heads * config.head_dim;
    let kv_width = config.n_kv_heads * config.head_dim;
    let (attention, (mixer, feed_forward)) = (attention_of(layer), blocks_of(layer));
    let [q, k, v] = &attention.qkv;
    let unit = unit_of(layer);
    let [gate, up] = &unit.gate_up;
    let of_unit = |linear: &Linear| {
        let part = weights.part(linear, 0);
        let count = config.experts.as_ref().map_or(1, |it| it.count as i32);
        Part {
            rows: part.rows / count,
            tiles: part.tiles / count,
            ..part
        }
    };
    StepLayer {
        parts: [
            weights.part(q, 0),
            weights.part(k, q_width),
            weights.part(v, q_width + kv_width),
            weights.part(&attention.output, 0),
            of_unit(gate),
            of_unit(up),
            of_unit(&unit.down),
        ],
        attn_norm: weights.vector(&mixer.norm),
        ffn_norm: weights.vector(&feed_forward.norm),
        q_norm: weights.optional_vector(attention.q_norm.as_ref()),
        k_norm: weights.optional_vector(attention.k_norm.as_ref()),
        attn_up: powers.mixer(index).up(),
        ff_up: powers.unit(index).map_or(0.0, Power::up),
    }
}
