//! The whole decode step of a small batch as one cooperative launch (`decode_step.cu`).
//!
//! The kernel takes batches of up to [`MAX_ROWS`] sequences with one token each, on devices that have
//! bulk copies (compute capability 9 and up), for models without experts, windows, sinks, norms after
//! blocks, a scale of the embedding, or an activation other than SiLU. It gives the same bits as the launches of
//! [`forward`](super::forward); only time differs.

use super::bounds::{Power, Powers};
use super::context::Context;
use super::deal::Deal;
use super::forward::Forward;
use super::headers::{constant, layout};
use super::kernels::{AttentionArgs, EmbedArgs, Geometry, Kernel, Module, Part, RopeArgs};
use super::memory::{Arena, DevicePtr, Purpose, upload};
use super::plan::Plan;
use super::shared_plan::{STATIC_SHARED_BYTES, SharedPlan, UnitBytes};
use super::tags::Tags;
use super::weights::{Layer, Matrix, UNIT, Weights, dense, multiplied_as, unit_bytes, units};
use crate::device::{Checkpoint, Tap};
use crate::model::{ModelConfig, ModelWeights};
use worker_orcd_ipc::Fault;
use worker_orcd_kernels::{Activation, TensorType};

/// Maximum number of sequences in one step: with more, many launches are faster (`bench/results/cuda.md`).
pub const MAX_ROWS: usize = constant!("step_plan.cuh", STEP_ROWS);
/// Warps of a block: the consumers, and the producer's warpgroup.
const WARPS: usize = constant!("step_plan.cuh", STEP_WARPS) + 4;
/// Bytes of partial results of attention that blocks publish to each other. Larger batches are left
/// to other kernels.
const PARTIAL_BYTES: usize = 32 << 20;
/// Maximum number of columns of normalized rows.
const MAX_EMBD: usize = constant!("step_plan.cuh", MAX_UNITS) * UNIT;
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
    kernel: Kernel<StepArgs>,
    /// Kernel for one row, without row indices.
    alone: Kernel<StepArgs>,
    /// The layers' table, then `best` and `broken`.
    arena: Arena,
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
        if config.experts.is_some() {
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
        if config.experts.is_some() {
            return Ok(None);
        }
        let ModelWeights { layers, output, .. } = &weights.tensors;
        let linears = || layers.iter().flat_map(Layer::linears).chain([output]);
        let types: Vec<TensorType> = linears()
            .map(|linear| multiplied_as(linear.weight.ty))
            .collect();
        let unit_bytes = unit_bytes_of(linears().map(|linear| linear.weight));
        let fits = SharedPlan::of(config, 1, unit_bytes, context.shared_bytes() as usize).is_some();
        let table = multiplied_as(weights.tensors.token_embd().ty);
        let has_kernel = [32, 64, 96, 128].contains(&config.head_dim)
            && types.iter().chain([&table]).all(is_known);
        let has_powers = (0..layers.len()).all(|index| powers.unit(index).is_some());
        let is_taken = has_kernel && has_powers && is_plain(config, layers);
        if !context.has_bulk_copies() || !fits || !is_taken || config.n_embd > MAX_EMBD {
            return Ok(None);
        }
        let name = format!(
            "decode_step_{}_{}",
            config.head_dim,
            variant(config, &types)
        );
        let load = |name: &str| {
            // SAFETY: the kernels of decode_step.cu take StepArgs.
            let kernel: Kernel<StepArgs> = unsafe { module.kernel(name) }?;
            kernel.allow_shared(context.shared_bytes() - STATIC_SHARED_BYTES as u32)?;
            Ok::<_, Fault>(kernel)
        };
        let (kernel, alone) = (load(&name)?, load(&format!("{name}_alone"))?);
        let layers: Vec<StepLayer> = (0..layers.len())
            .map(|index| step_layer(config, weights, powers, index))
            .collect();
        let table = size_of_val(&*layers);
        let arena = Arena::new(context, Purpose::Scratch, (table + 12 * MAX_ROWS) as u64)?;
        let words = Arena::new(context, Purpose::Scratch, Self::words_bytes(config) as u64)?;
        words.clear(context)?;
        // SAFETY: StepLayer is made of addresses and integers without padding, and outlives the
        // copy, which has read pageable memory when it returns.
        unsafe {
            let bytes = std::slice::from_raw_parts(layers.as_ptr().cast::<u8>(), table);
            upload(context, arena.at(0, table), bytes)?;
        }
        Ok(Some(Self {
            kernel,
            alone,
            arena,
            n_layers: layers.len(),
            unit_bytes,
            words,
            tags: Tags::default(),
        }))
    }

    /// The kernel supports this batch.
    #[must_use]
    pub fn takes(&self, context: &Context, config: &ModelConfig, plan: &Plan<'_>) -> bool {
        plan.rows.len() <= MAX_ROWS
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
        let mut end = 0;
        let [x, qkv, attn, ff] = widths(config).map(|width| {
            let at = end;
            end += (width * MAX_ROWS * WORD_BYTES) as u64;
            self.words.at(at, width * MAX_ROWS)
        });
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
    pub fn launch(&mut self, forward: &Forward<'_>, plan: &Plan<'_>) -> Result<(), Fault> {
        let (config, buffers) = (forward.config, &forward.buffers);
        let shared = self
            .shared(forward.context, config, plan.rows.len())
            .expect("a batch that the kernel takes");
        let table = self.n_layers * size_of::<StepLayer>();
        let weights = forward.weights;
        let blocks = forward.context.multiprocessors();
        let pairs = plan.rows.len() * config.n_kv_heads;
        let (teams, kept) = (shared.teams as usize, shared.kept_splits as usize);
        let deal = Deal::of(teams, kept, pairs, plan.splits, blocks as usize);
        let arguments = StepArgs {
            layers: self.arena.at(0, table),
            embed: forward.embed_arguments(),
            rope: forward.rope_arguments(0, None),
            attention: forward.attention_arguments(plan, 0),
            head: weights.part(&weights.tensors.output, 0),
            head_norm: weights.vector(&weights.tensors.output_norm),
            exchange: self.exchange(config),
            logits: buffers.logits,
            best: self.best(),
            broken: self.broken(),
            board: forward.board,
            first_tag: self.next_tag(forward.context)?,
            n_layers: self.n_layers as i32,
            rows: plan.rows.len() as i32,
            n_embd: config.n_embd as i32,
            n_ff: config.n_ff as i32,
            vocab: config.vocab_size as i32,
            attention_blocks: deal.blocks as i32,
            parts: deal.parts as i32,
            partial_splits: deal.published as i32,
            layer_halves: forward.kv.layer_halves(),
            unrotated_every: config.positions.unrotated_every.unwrap_or(0) as i32,
            eps: config.norm_eps,
            shared,
        };
        let geometry = Geometry {
            grid: [blocks, 1],
            block: [32 * WARPS as u32, 1, 1],
            shared_bytes: forward.context.shared_bytes() - STATIC_SHARED_BYTES as u32,
        };
        let kernel = match plan.rows.len() {
            1 => &self.alone,
            _ => &self.kernel,
        };
        // SAFETY: one block a multiprocessor, resident together; the buffers are those of the
        // kernels that this one stands for, with as many rows.
        unsafe { kernel.launch_together(forward.context, geometry, &arguments) }
    }

    /// `rank` of the best logit of each row (`argmax.cuh`).
    #[must_use]
    pub fn best(&self) -> DevicePtr<u64> {
        let table = self.n_layers * size_of::<StepLayer>();
        self.arena.at(table as u64, MAX_ROWS)
    }

    /// One word per row, not zero if the row has a logit that is not finite.
    #[must_use]
    pub fn broken(&self) -> DevicePtr<u32> {
        let table = self.n_layers * size_of::<StepLayer>();
        self.arena.at((table + 8 * MAX_ROWS) as u64, MAX_ROWS)
    }
}

/// The kernel supports everything that the model needs.
fn is_plain(config: &ModelConfig, layers: &[Layer]) -> bool {
    let has_post_norms = |layer: &Layer| {
        let norms = [&layer.attn_post_norm, &layer.ffn_post_norm];
        norms.iter().any(|norm| norm.is_some())
    };
    config.positions.window.is_none()
        && !config.has_sinks
        && config.activation == Activation::Silu
        && config.embedding_scale == 1.0
        && !layers.iter().any(has_post_norms)
}

/// The kernel supports the type, in products and in the embedding. These four would cost registers for all others.
fn is_known(ty: &TensorType) -> bool {
    use TensorType::{IQ4_NL, IQ4_XS, MXFP4, Q2_K};
    ![Q2_K, IQ4_NL, IQ4_XS, MXFP4].contains(ty)
}

/// Variant of the kernel: two types have smaller kernels of their own, for models with only
/// these types.
fn variant(config: &ModelConfig, types: &[TensorType]) -> &'static str {
    let common = [64, 128].contains(&config.head_dim);
    let all = |ty| common && types.iter().all(|other| *other == ty);
    match () {
        () if all(TensorType::F16) => "F16",
        () if all(TensorType::Q8_0) => "Q8_0",
        () => "any",
    }
}

fn unit_bytes_of(matrices: impl Iterator<Item = Matrix>) -> UnitBytes {
    let (mut largest, mut bytes, mut all) = (0, 0, 0);
    for matrix in matrices {
        let (unit, count) = (unit_bytes(matrix.ty), matrix.tiles() * units(matrix.cols));
        largest = largest.max(unit);
        bytes += count * unit;
        all += count;
    }
    let mean = bytes / all.max(1);
    UnitBytes { largest, mean }
}

/// Words per row of each published vector: x, queries with keys and values, attention's output,
/// ff, each in whole units.
fn widths(config: &ModelConfig) -> [usize; 4] {
    let q_width = config.n_heads * config.head_dim;
    let kv_width = config.n_kv_heads * config.head_dim;
    [config.n_embd, q_width + 2 * kv_width, q_width, config.n_ff].map(|cols| units(cols) * UNIT)
}

/// Bytes of the partial results of a batch's attention, with two words per split beside its columns.
fn partial_bytes(config: &ModelConfig, plan: &Plan<'_>) -> usize {
    plan.rows.len() * config.n_heads * plan.splits * (config.head_dim + 2) * WORD_BYTES
}

/// Words of one replica of all vectors.
fn replica_words(config: &ModelConfig) -> usize {
    widths(config).into_iter().sum::<usize>() * MAX_ROWS
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
    let [q, k, v] = &layer.qkv;
    let unit = dense(layer);
    let [gate, up] = &unit.gate_up;
    StepLayer {
        parts: [
            weights.part(q, 0),
            weights.part(k, q_width),
            weights.part(v, q_width + kv_width),
            weights.part(&layer.attn_output, 0),
            weights.part(gate, 0),
            weights.part(up, 0),
            weights.part(&unit.down, 0),
        ],
        attn_norm: weights.vector(&layer.attn_norm),
        ffn_norm: weights.vector(&layer.ffn_norm),
        q_norm: weights.optional_vector(layer.q_norm.as_ref()),
        k_norm: weights.optional_vector(layer.k_norm.as_ref()),
        attn_up: powers.attention(index).up(),
        ff_up: powers.unit(index).map_or(0.0, Power::up),
    }
}
