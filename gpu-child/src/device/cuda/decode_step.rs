//! The whole decode step of a small batch as one cooperative launch (`decode_step.cu`).
//!
//! For up to four sequences with one token each, on devices that have bulk copies (compute
//! capability 9 and up), while the context is short enough for one block a head to walk it. Same
//! bits as the launches of [`forward`](super::forward); only time differs.

use super::driver::Driver;
use super::forward::Model;
use super::headers::{constant, layout};
use super::kernels::{AttentionArgs, EmbedArgs, Geometry, Kernel, Module, Part, RopeArgs};
use super::memory::{Arena, DevicePtr, Purpose, upload};
use super::plan::Plan;
use super::weights::{Layer, UNIT, Weights, multiplied_as, unit_bytes, units};
use crate::device::{Checkpoint, Tap};
use crate::model::{ModelConfig, ModelWeights};
use worker_orcd_ipc::Fault;
use worker_orcd_kernels::TensorType;

/// Sequences of one step: with more, many launches are faster (`bench/results/cuda.md`).
pub const MAX_ROWS: usize = constant!("step_plan.cuh", STEP_ROWS);
/// Those that compute, and a warpgroup of which one thread feeds them.
const WARPS: usize = constant!("step_plan.cuh", STEP_WARPS) + 4;
/// Units of one copy at most.
const PIECE_UNITS: usize = constant!("step_plan.cuh", PIECE_UNITS);
const MAX_SLOTS: usize = constant!("ring.cuh", MAX_SLOTS);
/// Some copies are under way while others are multiplied.
const MIN_SLOTS: usize = 6;
/// Partial sums, at least of two tiles of 16 segments of four rows each. Warps meet whenever they are
/// full; these hold all of a block's tiles of gate and up in the shapes of Qwen2.5-7B.
const SUMS_BYTES: usize = 18 << 10;
/// Bytes of weights that a block asks for at a time. More would stand in line, and the small reads
/// of exchanges behind them (`bench/results/cuda.md`).
const WINDOW_BYTES: usize = 48 << 10;
/// SharedPlan memory that the kernel declares itself, and a little for the driver.
const STATIC_SHARED_BYTES: usize = 6 << 10;
/// Splits of attention that the warps walk in turn without holding up the rest for long.
const MAX_SPLITS: usize = constant!("step_attention.cuh", MAX_PAGES);
/// What a block that attends knows of rows, at most.
const LOCAL_BYTES: usize = constant!("step_attention.cuh", LOCAL_BYTES);
/// Columns of rows that are normalized.
const MAX_EMBD: usize = constant!("step_plan.cuh", MAX_UNITS) * UNIT;
/// Vectors that blocks hand each other, a layer; the embedding is one more.
const LAYER_EXCHANGES: usize = constant!("step_plan.cuh", EXCHANGES);
/// Share of the blocks that do attention at most: the others stream the weights.
const ATTENTION_SHARE: u32 = 4;
/// Of what blocks hand each other.
const COPIES: usize = constant!("step_plan.cuh", COPIES);
/// Bytes of a value and its number, `Word`.
const WORD_BYTES: usize = 8;

layout! {
    struct StepLayer in "step_plan.cuh" {
        parts: [Part; 7],
        attn_norm: DevicePtr<f32>,
        ffn_norm: DevicePtr<f32>,
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
        number: u32,
        n_layers: i32,
        rows: i32,
        n_embd: i32,
        n_ff: i32,
        vocab: i32,
        attention_blocks: i32,
        layer_halves: u64,
        eps: f32,
        shared: SharedPlan,
    }

    /// Vectors of [`MAX_ROWS`] rows, of words.
    struct Exchange in "step_plan.cuh" {
        x: DevicePtr<u64>,
        qkv: DevicePtr<u64>,
        attended: DevicePtr<u64>,
        ff: DevicePtr<u64>,
        stride: u64,
    }

    /// Where things lie in a block's shared memory, in bytes.
    #[derive(PartialEq, Eq)]
    struct SharedPlan in "step_plan.cuh" {
        slot_bytes: i32,
        slots: i32,
        sums_bytes: i32,
        inputs_at: i32,
        norm_at: i32,
        sums_at: i32,
        layers_at: i32,
        ring_at: i32,
        window: i32,
    }
}

impl SharedPlan {
    /// `None` when the ring would be too short to be of use.
    fn of(config: &ModelConfig, rows: usize, unit_bytes: usize, available: usize) -> Option<Self> {
        let q_width = config.n_heads * config.head_dim;
        let piece_units = [config.n_embd, q_width, config.n_ff]
            .map(|cols| units(cols).div_ceil(units(cols).div_ceil(PIECE_UNITS)));
        let slot_bytes =
            (piece_units.into_iter().max().unwrap_or(0) * unit_bytes).next_multiple_of(128);
        let widest = config.n_embd.max(config.n_ff).max(q_width);
        let mut end = 0;
        let mut place = |bytes: usize| {
            let at = end;
            end = (at + bytes).next_multiple_of(128);
            at as i32
        };
        let inputs_at = place(rows * (units(widest) * 2 * UNIT + 64));
        let norm_at = place(config.n_embd * size_of::<f32>());
        let sums_at = place(SUMS_BYTES);
        let layers_at = place(config.n_layers * size_of::<StepLayer>());
        let ring_at = place(0);
        let left = available.checked_sub(STATIC_SHARED_BYTES + ring_at as usize)?;
        let slots = (left / slot_bytes).min(MAX_SLOTS);
        // Blocks that attend have their heads where the others have their ring.
        let group = config.n_heads / config.n_kv_heads;
        let heads = (group + 2) * config.head_dim * size_of::<f32>();
        let queries = group * config.head_dim * size_of::<u16>();
        let attends = slots * slot_bytes >= LOCAL_BYTES + heads + queries;
        (slots >= MIN_SLOTS && attends).then_some(Self {
            slot_bytes: slot_bytes as i32,
            slots: slots as i32,
            sums_bytes: SUMS_BYTES as i32,
            inputs_at,
            norm_at,
            sums_at,
            layers_at,
            ring_at,
            window: (WINDOW_BYTES / slot_bytes).clamp(2, slots) as i32,
        })
    }

    fn bytes(&self) -> u32 {
        (self.ring_at + self.slots * self.slot_bytes) as u32
    }
}

#[derive(Debug)]
pub struct DecodeStep {
    kernel: Kernel<StepArgs>,
    /// For one row, which needs no index of rows anywhere.
    alone: Kernel<StepArgs>,
    /// The layers' table, then `best` and `broken`.
    arena: Arena,
    n_layers: usize,
    /// Of the model's largest type.
    unit_bytes: usize,
    /// What blocks hand each other.
    words: Arena,
    numbers: Numbers,
}

/// What exchanges are told apart by: none is borne by two of them between two clearings of their
/// memory, however long the device runs, and zero by none.
#[derive(Debug, Default)]
struct Numbers {
    last: u32,
}

impl Numbers {
    /// The first of a step's `count`, and whether the memory must be cleared before.
    fn next(&mut self, count: u32) -> (u32, bool) {
        let begins_again = self.last > u32::MAX - count;
        if begins_again {
            self.last = 0;
        }
        let first = self.last + 1;
        self.last += count;
        (first, begins_again)
    }
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
        let ModelWeights { layers, output, .. } = &weights.tensors;
        let linears = layers.iter().flat_map(Layer::linears).chain([output]);
        let types: Vec<TensorType> = linears
            .map(|linear| multiplied_as(linear.weight.ty))
            .collect();
        let unit_bytes = types.iter().map(|ty| unit_bytes(*ty)).max().unwrap_or(0);
        let fits = SharedPlan::of(config, 1, unit_bytes, driver.shared_bytes() as usize).is_some();
        let has_kernel = [32, 64, 96, 128].contains(&config.head_dim);
        if !driver.has_bulk_copies() || !fits || !has_kernel || config.n_embd > MAX_EMBD {
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
            kernel.allow_shared(driver.shared_bytes() - STATIC_SHARED_BYTES as u32)?;
            Ok::<_, Fault>(kernel)
        };
        let (kernel, alone) = (load(&name)?, load(&format!("{name}_alone"))?);
        let layers: Vec<StepLayer> = layers
            .iter()
            .map(|layer| step_layer(config, weights, layer))
            .collect();
        let table = size_of_val(&*layers);
        let arena = Arena::new(driver, Purpose::Scratch, (table + 12 * MAX_ROWS) as u64)?;
        let words = COPIES * copy_words(config) * WORD_BYTES;
        let words = Arena::new(driver, Purpose::Scratch, words as u64)?;
        words.clear(driver)?;
        // SAFETY: StepLayer is made of addresses and integers without padding, and outlives the
        // copy, which has read pageable memory when it returns.
        unsafe {
            let bytes = std::slice::from_raw_parts(layers.as_ptr().cast::<u8>(), table);
            upload(driver, arena.at(0, table), bytes)?;
        }
        Ok(Some(Self {
            kernel,
            alone,
            arena,
            n_layers: layers.len(),
            unit_bytes,
            words,
            numbers: Numbers::default(),
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

    fn shared(&self, driver: &Driver, config: &ModelConfig, rows: usize) -> Option<SharedPlan> {
        let available = driver.shared_bytes() as usize;
        SharedPlan::of(config, rows, self.unit_bytes, available)
    }

    fn exchange(&self, config: &ModelConfig) -> Exchange {
        let mut end = 0;
        let [x, qkv, attended, ff] = widths(config).map(|width| {
            let at = end;
            end += (width * MAX_ROWS * WORD_BYTES) as u64;
            self.words.at(at, width * MAX_ROWS)
        });
        Exchange {
            x,
            qkv,
            attended,
            ff,
            stride: copy_words(config) as u64,
        }
    }

    /// The number of the next step's first exchange.
    fn next_number(&mut self, driver: &Driver) -> Result<u32, Fault> {
        // One more is for blocks that are done (board.cuh).
        let numbers = (2 + LAYER_EXCHANGES * self.n_layers) as u32;
        let (first, begins_again) = self.numbers.next(numbers);
        if begins_again {
            // In stream order: behind the steps that still use it.
            self.words.clear(driver)?;
        }
        Ok(first)
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
        let blocks = model.driver.multiprocessors();
        let heads = (plan.rows.len() * config.n_kv_heads) as u32;
        let arguments = StepArgs {
            layers: self.arena.at(0, table),
            embed: model.embed_arguments(),
            rope: model.rope_arguments(0, None),
            attention: model.attention_arguments(plan, 0),
            head: weights.part(&weights.tensors.output, 0),
            head_norm: weights.vector(&weights.tensors.output_norm),
            exchange: self.exchange(config),
            logits: buffers.logits,
            best: self.best(),
            broken: self.broken(),
            board: model.board,
            number: self.next_number(model.driver)?,
            n_layers: self.n_layers as i32,
            rows: plan.rows.len() as i32,
            n_embd: config.n_embd as i32,
            n_ff: config.n_ff as i32,
            vocab: config.vocab_size as i32,
            attention_blocks: heads.min(blocks / ATTENTION_SHARE) as i32,
            layer_halves: model.kv.layer_halves(),
            eps: config.norm_eps,
            shared,
        };
        let geometry = Geometry {
            grid: [blocks, 1],
            block: [32 * WARPS as u32, 1, 1],
            shared_bytes: shared.bytes(),
        };
        let kernel = match plan.rows.len() {
            1 => &self.alone,
            _ => &self.kernel,
        };
        // SAFETY: one block a multiprocessor, resident together; the buffers are those of the
        // kernels that this one stands for, with as many rows.
        unsafe { kernel.launch_together(model.driver, geometry, &arguments) }
    }

    /// `rank` of the best logit of each row (`argmax.cuh`).
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

/// Words of what blocks hand each other, a row: the stream, queries with keys and values, attention,
/// ff, each in whole units.
fn widths(config: &ModelConfig) -> [usize; 4] {
    let q_width = config.n_heads * config.head_dim;
    let kv_width = config.n_kv_heads * config.head_dim;
    [config.n_embd, q_width + 2 * kv_width, q_width, config.n_ff].map(|cols| units(cols) * UNIT)
}

/// Of one copy of all of them.
fn copy_words(config: &ModelConfig) -> usize {
    widths(config).into_iter().sum::<usize>() * MAX_ROWS
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

fn step_layer(config: &ModelConfig, weights: &Weights, layer: &Layer) -> StepLayer {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Architecture;
    use worker_orcd_kernels::reference::rope::{Rope, RopePairs};

    /// What an H200 gives to a block.
    const AVAILABLE: usize = 227 << 10;

    fn config(n_embd: usize, n_ff: usize, n_heads: usize, head_dim: usize) -> ModelConfig {
        ModelConfig {
            architecture: Architecture::Qwen2,
            n_layers: 28,
            n_embd,
            n_ff,
            n_heads,
            n_kv_heads: 2,
            head_dim,
            vocab_size: 1000,
            context_length: 32_768,
            norm_eps: 1e-6,
            rope: Rope {
                pairs: RopePairs::HalfOffset,
                dims: head_dim,
                base: 1e6,
                scale: 1.0,
                factors: None,
                attn_factor: 1.0,
            },
            sliding_window: None,
        }
    }

    #[test]
    fn what_shares_a_blocks_memory_fits_and_does_not_overlap() {
        let small = config(128, 1024, 2, 64);
        let half_billion = config(896, 4864, 14, 64);
        let seven_billion = config(3584, 18_944, 28, 128);
        for config in [&small, &half_billion, &seven_billion] {
            let inputs = 2 * config.n_ff + 64;
            for (unit_bytes, rows) in [(2048, 1), (576, 1), (576, 2)] {
                let shared = SharedPlan::of(config, rows, unit_bytes, AVAILABLE).expect("it fits");
                let ends = [
                    shared.inputs_at + (rows * inputs) as i32,
                    shared.norm_at + 4 * config.n_embd as i32,
                    shared.sums_at + shared.sums_bytes,
                    shared.layers_at + (config.n_layers * size_of::<StepLayer>()) as i32,
                ];
                let begins = [
                    shared.norm_at,
                    shared.sums_at,
                    shared.layers_at,
                    shared.ring_at,
                ];
                assert!(ends.iter().zip(begins).all(|(end, begin)| *end <= begin));
                assert!(shared.bytes() as usize + STATIC_SHARED_BYTES <= AVAILABLE);
                // A piece that the feeder waits for must still be in the ring.
                assert!(shared.window <= shared.slots, "{shared:?}");
            }
        }
    }

    #[test]
    fn rows_too_wide_for_a_ring_beside_them_are_left_to_other_kernels() {
        let wide = config(8192, 98_304, 64, 128);
        assert_eq!(SharedPlan::of(&wide, 1, 2048, AVAILABLE), None);
    }

    #[test]
    fn no_number_is_borne_twice_between_two_clearings() {
        let mut numbers = Numbers {
            last: u32::MAX - 10,
        };
        assert_eq!(numbers.next(7), (u32::MAX - 9, false));
        // Three are left: not enough.
        assert_eq!(numbers.next(4), (1, true));
        assert_eq!(numbers.next(4), (5, false));
    }
}
