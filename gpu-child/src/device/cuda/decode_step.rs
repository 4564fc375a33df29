//! The whole decode step of a small batch as one cooperative launch (`decode_step.cu`).
//!
//! For up to eight sequences with one token each, on devices that have bulk copies (compute
//! capability 9 and up), while the context is short enough for one block a head to walk it. Same
//! bits as the launches of [`forward`](super::forward); only time differs.

use super::driver::Driver;
use super::forward::Model;
use super::kernels::{AttentionArgs, EmbedArgs, Geometry, Kernel, Module, Part, RopeArgs};
use super::memory::{Arena, DevicePtr, Purpose, upload};
use super::plan::Plan;
use super::weights::{UNIT, Weights, multiplied_as, unit_bytes, units};
use crate::device::{Checkpoint, Tap};
use crate::model::ModelConfig;
use worker_orcd_ipc::Fault;
use worker_orcd_kernels::TensorType;

/// Sequences of one step: what a tensor-core step has rows for without the second eight.
pub const MAX_ROWS: usize = 8;
const WARPS: usize = 16;
const MAX_SLOTS: usize = 16;
/// Fewer units under way than this and a warp would wait for each.
const MIN_SLOTS: usize = 3;
/// Two buffers of partial sums, at least two tiles of 16 segments of 8 rows each.
const SUMS_BYTES: usize = 16 << 10;
/// Shared memory that the kernel declares itself, and a little for the driver.
const STATIC_SHARED_BYTES: usize = 12 << 10;
/// Splits of attention that 16 warps walk in turn without holding up the rest for long.
const MAX_SPLITS: usize = 128;
/// Columns whose squares `normalize` keeps in registers.
const MAX_EMBD: usize = 8192;
/// The largest value of two inputs of each row, a layer.
const LARGEST_BYTES: usize = 2 * 4 * MAX_ROWS;
/// Waits of the grid: one behind the embedding, five a layer.
const LAYER_BARRIERS: usize = 5;

/// `StepLayer` in `decode_step.cu`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct StepLayer {
    parts: [Part; 7],
    attn_norm: DevicePtr<f32>,
    ffn_norm: DevicePtr<f32>,
    q_norm: DevicePtr<f32>,
    k_norm: DevicePtr<f32>,
}

/// `StepArgs` in `decode_step.cu`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct StepArgs {
    layers: DevicePtr<u8>,
    embed: EmbedArgs,
    rope: RopeArgs,
    attention: AttentionArgs,
    head: Part,
    head_norm: DevicePtr<f32>,
    ff: DevicePtr<f32>,
    logits: DevicePtr<f32>,
    best: DevicePtr<u64>,
    broken: DevicePtr<u32>,
    largest: DevicePtr<u32>,
    arrived: DevicePtr<u32>,
    arrived_before: u32,
    n_layers: i32,
    rows: i32,
    n_embd: i32,
    n_ff: i32,
    vocab: i32,
    layer_halves: u64,
    eps: f32,
    shared: Shared,
}

/// Where things lie in a block's shared memory, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
struct Shared {
    slot_bytes: i32,
    slots: i32,
    group_bytes: i32,
    inputs_at: i32,
    sums_at: i32,
    scales_at: i32,
    layers_at: i32,
    rings_at: i32,
}

impl Shared {
    /// `None` when the rings would be too short to be of use.
    fn of(config: &ModelConfig, rows: usize, slot_bytes: usize, available: usize) -> Option<Self> {
        let widest = config
            .n_embd
            .max(config.n_ff)
            .max(config.n_heads * config.head_dim);
        let mut end = 0;
        let mut place = |bytes: usize| {
            let at = end;
            end = (at + bytes).next_multiple_of(128);
            at as i32
        };
        let inputs_at = place(rows * (units(widest) * 2 * UNIT + 64));
        let sums_at = place(SUMS_BYTES);
        let scales_at = place(4 * MAX_ROWS);
        let layers_at = place(config.n_layers * size_of::<StepLayer>());
        let rings_at = place(0);
        let left = available.checked_sub(STATIC_SHARED_BYTES + rings_at as usize)?;
        let slots = (left / WARPS / slot_bytes).min(MAX_SLOTS);
        (slots >= MIN_SLOTS).then_some(Self {
            slot_bytes: slot_bytes as i32,
            slots: slots as i32,
            group_bytes: SUMS_BYTES as i32,
            inputs_at,
            sums_at,
            scales_at,
            layers_at,
            rings_at,
        })
    }

    fn bytes(&self) -> u32 {
        (self.rings_at + self.slots * self.slot_bytes * WARPS as i32) as u32
    }
}

#[derive(Debug)]
pub struct DecodeStep {
    kernel: Kernel<StepArgs>,
    /// The layers' table, then `best`, `broken`, the barrier's counter and `largest`.
    arena: Arena,
    n_layers: usize,
    slot_bytes: usize,
    /// What the counter stands at between steps; wraps.
    arrived: u32,
}

impl DecodeStep {
    /// `None` where the device or the model is not made for it.
    ///
    /// # Errors
    /// When the device fails.
    pub fn load(
        driver: &Driver,
        module: &Module,
        config: &ModelConfig,
        weights: &Weights,
    ) -> Result<Option<Self>, Fault> {
        let types = weights.layers.iter().flat_map(|layer| {
            let linears = layer.qkv.iter().chain(&layer.gate_up);
            let linears = linears.chain([&layer.attn_output, &layer.ffn_down]);
            linears.map(|linear| linear.weight.ty).collect::<Vec<_>>()
        });
        let types: Vec<TensorType> = types
            .chain([weights.output.weight.ty])
            .map(multiplied_as)
            .collect();
        let slot_bytes = types
            .iter()
            .map(|ty| unit_bytes(*ty))
            .max()
            .unwrap_or(0)
            .next_multiple_of(128);
        let fits = Shared::of(config, 1, slot_bytes, driver.shared_bytes() as usize).is_some();
        let has_kernel = [32, 64, 96, 128].contains(&config.head_dim);
        if !driver.has_bulk_copies() || !fits || !has_kernel || config.n_embd > MAX_EMBD {
            return Ok(None);
        }
        let name = format!(
            "decode_step_{}_{}",
            config.head_dim,
            variant(config, &types)
        );
        // SAFETY: the kernels of decode_step.cu take StepArgs.
        let kernel = unsafe { module.kernel(&name) }?;
        kernel.allow_shared(driver.shared_bytes() - STATIC_SHARED_BYTES as u32)?;
        let layers: Vec<StepLayer> = weights
            .layers
            .iter()
            .map(|layer| step_layer(config, weights, layer))
            .collect();
        let table = size_of_val(&*layers);
        let bytes = table + 16 * MAX_ROWS + LARGEST_BYTES * layers.len();
        let arena = Arena::new(driver, Purpose::Scratch, bytes as u64)?;
        arena.clear(driver)?;
        // SAFETY: StepLayer is made of addresses and integers without padding, and outlives the
        // copy, which has read pageable memory when it returns.
        unsafe {
            let bytes = std::slice::from_raw_parts(layers.as_ptr().cast::<u8>(), table);
            upload(driver, arena.at(0, table), bytes)?;
        }
        Ok(Some(Self {
            kernel,
            arena,
            n_layers: layers.len(),
            slot_bytes,
            arrived: 0,
        }))
    }

    /// This batch is one that the kernel takes, and nobody looks at what it keeps to itself.
    #[must_use]
    pub fn takes(&self, driver: &Driver, config: &ModelConfig, plan: &Plan<'_>) -> bool {
        plan.rows.len() <= MAX_ROWS
            && plan.sequences.len() == plan.rows.len()
            && plan.drawing.len() == plan.rows.len()
            && plan.splits <= MAX_SPLITS
            && self.shared(driver, config, plan.rows.len()).is_some()
    }

    fn shared(&self, driver: &Driver, config: &ModelConfig, rows: usize) -> Option<Shared> {
        let available = driver.shared_bytes() as usize;
        Shared::of(config, rows, self.slot_bytes, available)
    }

    /// Leaves logits in the scratch, and the ranks of the best in [`best`](Self::best).
    ///
    /// # Errors
    /// When the launch fails.
    ///
    /// # Panics
    /// When [`takes`](Self::takes) said no.
    pub fn launch(&mut self, model: &Model<'_>, plan: &Plan<'_>) -> Result<(), Fault> {
        let (config, buffers) = (model.config, &model.buffers);
        let shared = self
            .shared(model.driver, config, plan.rows.len())
            .expect("a batch that was looked at");
        let table = self.n_layers * size_of::<StepLayer>();
        let weights = model.weights;
        let arguments = StepArgs {
            layers: self.arena.at(0, table),
            embed: model.embed_arguments(),
            rope: model.rope_arguments(0, None),
            attention: model.attention_arguments(plan, 0),
            head: weights.part(&weights.output, 0),
            head_norm: weights.vector(&weights.output_norm),
            ff: buffers.ff,
            logits: buffers.logits,
            best: self.best(),
            broken: self.broken(),
            arrived: self.arena.at((table + 12 * MAX_ROWS) as u64, 1),
            largest: self.arena.at(
                (table + 16 * MAX_ROWS) as u64,
                LARGEST_BYTES / 4 * self.n_layers,
            ),
            arrived_before: self.arrived,
            n_layers: self.n_layers as i32,
            rows: plan.rows.len() as i32,
            n_embd: config.n_embd as i32,
            n_ff: config.n_ff as i32,
            vocab: config.vocab_size as i32,
            layer_halves: model.kv.layer_halves(),
            eps: config.norm_eps,
            shared,
        };
        let blocks = model.driver.multiprocessors();
        let geometry = Geometry {
            grid: [blocks, 1],
            block: [32 * WARPS as u32, 1, 1],
            shared_bytes: shared.bytes(),
        };
        let barriers = 1 + LAYER_BARRIERS * self.n_layers;
        self.arrived = self.arrived.wrapping_add(blocks * barriers as u32);
        // SAFETY: one block a multiprocessor, resident together; the buffers are those of the
        // kernels that this one stands for, with as many rows.
        unsafe {
            self.kernel
                .launch_together(model.driver, geometry, &arguments)
        }
    }

    /// `rank` of the best logit of each row (`argmax.cu`).
    #[must_use]
    pub fn best(&self) -> DevicePtr<u64> {
        let table = self.n_layers * size_of::<StepLayer>();
        self.arena.at(table as u64, MAX_ROWS)
    }

    /// Not zero where a row holds a logit that is not finite.
    #[must_use]
    pub fn broken(&self) -> DevicePtr<u32> {
        let table = self.n_layers * size_of::<StepLayer>();
        self.arena.at((table + 8 * MAX_ROWS) as u64, MAX_ROWS)
    }
}

/// Two types have kernels of their own, smaller ones, for models that are made of them alone.
fn variant(config: &ModelConfig, types: &[TensorType]) -> &'static str {
    let common = [64, 128].contains(&config.head_dim);
    let all = |ty| common && types.iter().all(|other| *other == ty);
    match () {
        () if all(TensorType::F16) => "F16",
        () if all(TensorType::Q8_0) => "Q8_0",
        () => "any",
    }
}

/// Somebody wants to see what the kernel keeps to itself.
pub fn is_watched(config: &ModelConfig, plan: &Plan<'_>, tap: &dyn Tap) -> bool {
    let layers = (0..config.n_layers as u32).map(Checkpoint::Layer);
    let hidden: Vec<Checkpoint> = layers
        .chain([Checkpoint::Embedding, Checkpoint::FinalNorm])
        .collect();
    plan.sequences
        .iter()
        .any(|work| hidden.iter().any(|point| tap.wants(work.request, point)))
}

fn step_layer(config: &ModelConfig, weights: &Weights, layer: &super::weights::Layer) -> StepLayer {
    let q_width = config.n_heads * config.head_dim;
    let kv_width = config.n_kv_heads * config.head_dim;
    let [q, k, v] = &layer.qkv;
    let [gate, up] = &layer.gate_up;
    StepLayer {
        parts: [
            weights.part(q, 0),
            weights.part(k, q_width),
            weights.part(v, q_width + kv_width),
            weights.part(&layer.attn_output, 0),
            weights.part(gate, 0),
            weights.part(up, 0),
            weights.part(&layer.ffn_down, 0),
        ],
        attn_norm: weights.vector(&layer.attn_norm),
        ffn_norm: weights.vector(&layer.ffn_norm),
        q_norm: weights.optional_vector(layer.q_norm.as_ref()),
        k_norm: weights.optional_vector(layer.k_norm.as_ref()),
    }
}
