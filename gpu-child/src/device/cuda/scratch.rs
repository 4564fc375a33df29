//! Activations and inputs of one step, allocated once for the largest batch.

use super::context::Context;
use super::delta_net::{mixed_width, projected_stride};
use super::expert_room::{ExpertBuffers, ExpertPlaces, ExpertSizes};
use super::kernels::{DrawnTokens, Geometry, INPUTS, Kernel, Row, ScatterInputsArgs, Tile};
use super::memory::{Arena, DevicePtr, Layout, Pinned, Purpose, Taken};
use super::plan::Plan;
use super::states::{PageGroups, StateRow, StateSequence};
use super::step_queue::STEPS;
use super::weights::{UNIT, units};
use crate::device::common::kv::PAGE_TOKENS;
use crate::device::common::layer_groups::MAX_LAYER_GROUPS;
use crate::model::{DeltaNetConfig, ModelConfig};
use worker_orcd_ipc::Fault;

/// Bytes of logits held at a time: enough for 256 sequences of a large vocabulary.
const LOGIT_BYTES: usize = 256 << 20;
/// Bytes of attention results of single splits: if they do not fit, one block computes all
/// splits.
const PARTIAL_BYTES: usize = 64 << 20;

/// Inputs except page tables.
const OTHER_INPUTS: usize = 6;

const _: () = assert!(OTHER_INPUTS + MAX_LAYER_GROUPS == INPUTS);

/// Blocks that read a row of logits, one part each.
pub const ARGMAX_PARTS: usize = 8;
/// Number of drawing rows from which one part is enough.
pub const ENOUGH_ROWS: usize = 64;

/// Sizes of all buffers.
#[derive(Debug, Clone, Copy)]
pub struct Sizes {
    pub tokens: usize,
    pub n_embd: usize,
    pub q: usize,
    /// Width of projected queries, with their gates, keys and values.
    pub qkv: usize,
    /// Width of everything that is projected before attention, or before a delta net.
    projected: usize,
    /// Width of the outputs of attention, or of a delta net.
    attn: usize,
    /// Width of a row behind the convolution of a delta net.
    mixed: usize,
    /// Width of the dense feed-forward part, or of the shared expert in a mixture of experts.
    pub n_ff: usize,
    /// Columns of the widest matmul input, in whole units.
    widest: usize,
    pub vocab: usize,
    /// Maximum number of rows per computation of logits.
    pub head_rows: usize,
    /// Page table entries of a group of layers.
    tables: usize,
    groups: PageGroups,
    tiles: usize,
    experts: ExpertSizes,
}

impl Sizes {
    /// Halves of inputs of down. A packed layout has whole groups of eight rows.
    fn gated(&self) -> usize {
        self.tokens.next_multiple_of(8) * units(self.n_ff) * UNIT
    }

    /// Floats of gate and up; or of a block's outputs before a norm, followed by inputs of down.
    fn ff(&self) -> usize {
        (self.tokens * 2 * self.n_ff).max(self.tokens * self.n_embd + self.gated() / 2)
    }

    /// Rows of a step with an entry for recurrent states.
    fn state_rows(&self) -> usize {
        match self.groups.states {
            0 => 0,
            _ => self.tokens,
        }
    }

    /// Ranks of the parts of all drawing rows.
    fn ranks(&self) -> usize {
        self.tokens.max(ENOUGH_ROWS * ARGMAX_PARTS)
    }

    #[must_use]
    pub fn of(
        config: &ModelConfig,
        groups: PageGroups,
        tokens: usize,
        sequence_tokens: usize,
    ) -> Self {
        let q = config.heads_width();
        let qkv = config.queries_width() + 2 * config.n_kv_heads * config.head_dim;
        let net = config.delta_net.as_ref();
        let attn = q.max(net.map_or(0, DeltaNetConfig::v_width));
        let n_ff = match &config.experts {
            Some(experts) => experts.shared_n_ff.unwrap_or(0),
            None => config.n_ff,
        };
        let widest = config.n_embd.max(attn).max(n_ff);
        let group = config.n_heads / config.n_kv_heads;
        Self {
            tokens,
            n_embd: config.n_embd,
            q,
            qkv,
            projected: qkv.max(net.map_or(0, projected_stride)),
            attn,
            mixed: net.map_or(0, mixed_width),
            n_ff,
            widest: units(widest) * UNIT,
            vocab: config.vocab_size,
            head_rows: (LOGIT_BYTES / 4 / config.vocab_size)
                .clamp(16, 256)
                .min(tokens),
            tables: tokens * sequence_tokens.div_ceil(PAGE_TOKENS),
            groups,
            // A sequence of one token takes its own tile for each 16 heads of a group. Wide tiles are
            // fewer.
            tiles: tokens * group.div_ceil(16) + 1,
            experts: ExpertSizes::of(config, tokens),
        }
    }
}

/// Offsets of all buffers in the arena.
#[derive(Debug, Clone, Copy)]
struct Places {
    x: u64,
    qkv: u64,
    q: u64,
    attn: u64,
    mixed: u64,
    ff: u64,
    act: u64,
    scale: u64,
    norm: u64,
    logits: u64,
    best: u64,
    partial: u64,
    experts: ExpertPlaces,
    rows: u64,
    gather: u64,
    tiles: u64,
    state_rows: u64,
    state_sequences: u64,
    state_pages: u64,
    tables: u64,
    bytes: u64,
}

impl Places {
    fn of(s: &Sizes) -> Self {
        let mut layout = Layout::default();
        let mut floats = |count: usize| layout.place(4 * count as u64);
        let x = floats(s.tokens * s.n_embd);
        let qkv = floats(s.tokens * s.projected);
        let attn = floats(s.tokens * s.attn);
        let mixed = floats(s.tokens * s.mixed);
        let ff = floats(s.ff());
        let scale = floats(s.tokens);
        let norm = floats(s.head_rows * s.n_embd);
        let logits = floats(s.head_rows * s.vocab);
        let partial = floats(PARTIAL_BYTES / 4);
        let best = layout.place(8 * s.ranks() as u64);
        let q = layout.place(2 * (s.tokens * s.q) as u64);
        // A packed layout has whole groups of eight rows.
        let act = layout.place(2 * (s.tokens.next_multiple_of(8) * s.widest) as u64);
        let experts = ExpertPlaces::of(&mut layout, &s.experts);
        // The inputs of a step are adjacent, so that one copy transfers them all; the largest
        // buffer comes last.
        let rows = layout.place((size_of::<Row>() * s.tokens) as u64);
        let gather = layout.place(4 * s.tokens as u64);
        let tiles = layout.place((size_of::<Tile>() * s.tiles) as u64);
        let state_rows = layout.place((size_of::<StateRow>() * s.state_rows()) as u64);
        let state_sequences = layout.place((size_of::<StateSequence>() * s.state_rows()) as u64);
        let state_pages = layout.place(4 * s.groups.most_pages(s.tokens) as u64);
        let tables = layout.place(4 * (s.groups.attention * s.tables) as u64);
        Self {
            x,
            qkv,
            q,
            attn,
            mixed,
            ff,
            act,
            scale,
            norm,
            logits,
            best,
            partial,
            experts,
            rows,
            gather,
            tiles,
            state_rows,
            state_sequences,
            state_pages,
            tables,
            bytes: layout.bytes(),
        }
    }
}

#[derive(Debug)]
pub struct Scratch {
    pub sizes: Sizes,
    arena: Arena,
    places: Places,
    /// Pinned inputs of a step and of the next one.
    pinned: [Pinned; STEPS],
}

/// Buffers of a step on the device.
#[derive(Debug, Clone, Copy)]
pub struct Buffers {
    /// Residual stream, `[tokens, n_embd]`.
    pub x: DevicePtr<f32>,
    /// Everything that is projected before attention, or before a delta net.
    pub qkv: DevicePtr<f32>,
    /// Rotated queries, `[tokens, heads, head_dim]`.
    pub q: DevicePtr<u16>,
    /// Outputs of attention or of a delta net.
    pub attn: DevicePtr<f32>,
    /// Queries and values behind the convolution of a delta net.
    pub mixed: DevicePtr<f32>,
    /// Gate and up beside each other, then a block's outputs before its norm.
    pub ff: DevicePtr<f32>,
    /// Inputs of down from the product of gate and up, after the rows of such a norm.
    pub gated: DevicePtr<u16>,
    /// Another input of a product, and the powers of two of its rows.
    pub act: DevicePtr<u16>,
    pub scale: DevicePtr<f32>,
    /// Final norm in F32, `[head_rows, n_embd]`.
    pub norm: DevicePtr<f32>,
    pub logits: DevicePtr<f32>,
    /// Ranks of the largest logits by part of the drawing rows (`head.rs`); then the drawn
    /// tokens.
    pub best: DevicePtr<u64>,
    pub partial: DevicePtr<f32>,
    pub rows: DevicePtr<Row>,
    pub gather: DevicePtr<i32>,
    /// Tiles of the plan, then its wide ones.
    pub tiles: DevicePtr<Tile>,
    pub state_rows: DevicePtr<StateRow>,
    pub state_sequences: DevicePtr<StateSequence>,
    /// Pages of recurrent states, by block and group.
    pub state_pages: DevicePtr<i32>,
    tables: [DevicePtr<i32>; MAX_LAYER_GROUPS],
    /// Buffers of a mixture of experts.
    pub experts: ExpertBuffers,
}

/// Inputs that a step copies to the device.
#[derive(Debug, Clone, Copy)]
pub struct StepInputs<'a> {
    pub plan: &'a Plan<'a>,
    /// Index of the pinned buffer: its previous copy must have ended.
    pub slot: usize,
    /// Tokens of the previous step.
    pub before: DrawnTokens,
    pub board: DevicePtr<u32>,
    pub step: u64,
}

impl Buffers {
    /// Page tables of a group of layers.
    #[must_use]
    pub fn tables(&self, group: usize) -> DevicePtr<i32> {
        self.tables[group]
    }
}

impl Scratch {
    /// # Errors
    /// If the memory cannot be allocated.
    pub fn new(context: &Context, sizes: Sizes, when: Taken) -> Result<Self, Fault> {
        let places = Places::of(&sizes);
        let arena = Arena::taken(context, Purpose::Scratch, places.bytes, when)?;
        // Values that a kernel reads after the rows of a batch must be finite.
        if arena.has_memory() {
            arena.clear(context)?;
        }
        let input_bytes = (places.bytes - places.rows) as usize;
        Ok(Self {
            sizes,
            arena,
            places,
            pinned: [Pinned::new(input_bytes)?, Pinned::new(input_bytes)?],
        })
    }

    /// Takes the memory that a standby has deferred.
    ///
    /// # Errors
    /// If it cannot be allocated.
    pub fn take(&mut self, context: &Context) -> Result<(), Fault> {
        if self.arena.has_memory() {
            return Ok(());
        }
        self.arena.take(context)?;
        self.arena.clear(context)
    }

    /// Bytes that [`new`](Self::new) allocates.
    #[must_use]
    pub fn bytes_for(sizes: &Sizes) -> u64 {
        Places::of(sizes).bytes
    }

    /// Room for the splits of this many rows.
    #[must_use]
    pub fn holds_partials(
        &self,
        rows: usize,
        heads: usize,
        splits: usize,
        head_dim: usize,
    ) -> bool {
        rows * heads * splits * (head_dim + 2) * 4 <= PARTIAL_BYTES
    }

    #[must_use]
    pub fn buffers(&self) -> Buffers {
        let (p, s, a) = (&self.places, &self.sizes, &self.arena);
        Buffers {
            x: a.at(p.x, s.tokens * s.n_embd),
            qkv: a.at(p.qkv, s.tokens * s.projected),
            q: a.at(p.q, s.tokens * s.q),
            attn: a.at(p.attn, s.tokens * s.attn),
            mixed: a.at(p.mixed, s.tokens * s.mixed),
            ff: a.at(p.ff, s.ff()),
            gated: a.at(p.ff + 4 * (s.tokens * s.n_embd) as u64, s.gated()),
            act: a.at(p.act, s.tokens.next_multiple_of(8) * s.widest),
            scale: a.at(p.scale, s.tokens),
            norm: a.at(p.norm, s.head_rows * s.n_embd),
            logits: a.at(p.logits, s.head_rows * s.vocab),
            best: a.at(p.best, s.ranks()),
            partial: a.at(p.partial, PARTIAL_BYTES / 4),
            rows: a.at(p.rows, s.tokens),
            gather: a.at(p.gather, s.tokens),
            tiles: a.at(p.tiles, s.tiles),
            state_rows: a.at(p.state_rows, s.state_rows()),
            state_sequences: a.at(p.state_sequences, s.state_rows()),
            state_pages: a.at(p.state_pages, s.groups.most_pages(s.tokens)),
            tables: std::array::from_fn(|group| {
                let group = group.min(s.groups.attention - 1);
                a.at(p.tables + 4 * (group * s.tables) as u64, s.tables)
            }),
            experts: p.experts.buffers(a, &s.experts),
        }
    }

    /// Copies a step's plan to the device, inserts the tokens of the previous step according to the plan,
    /// and posts the start of the step on the board.
    ///
    /// # Errors
    /// If NVIDIA's driver returns an error.
    ///
    /// # Panics
    /// If the batch is larger than announced.
    pub fn upload(
        &mut self,
        context: &Context,
        scatter_inputs: &Kernel<ScatterInputsArgs>,
        StepInputs {
            plan,
            slot,
            before,
            board,
            step,
        }: StepInputs<'_>,
    ) -> Result<(), Fault> {
        const THREADS: usize = 256;
        let sizes = &self.sizes;
        assert!(
            plan.rows.len() <= sizes.tokens
                && plan.tiles.len() + plan.wide_tiles.len() <= sizes.tiles
                && plan.tables.len() == sizes.groups.attention
                && plan.tables[0].len() <= sizes.tables
                && plan.states.pages.len() <= sizes.groups.most_pages(sizes.tokens),
            "a batch larger than announced"
        );
        let buffers = self.buffers();
        let gather: Vec<i32> = plan.drawing.iter().map(|it| it.row as i32).collect();
        let tiles = [plan.tiles.as_slice(), &plan.wide_tiles].concat();
        let mut inputs = [&[][..]; INPUTS];
        inputs[..OTHER_INPUTS].copy_from_slice(&[
            bytes_of(&plan.rows),
            bytes_of(&gather),
            bytes_of(&tiles),
            bytes_of(&plan.states.rows),
            bytes_of(&plan.states.sequences),
            bytes_of(&plan.states.pages),
        ]);
        let tables = inputs[OTHER_INPUTS..].iter_mut().zip(&plan.tables);
        tables.for_each(|(input, table)| *input = bytes_of(table));
        let mut to = [buffers.gather; INPUTS];
        to[0] = buffers.rows.cast();
        to[2] = buffers.tiles.cast();
        to[3] = buffers.state_rows.cast();
        to[4] = buffers.state_sequences.cast();
        to[5] = buffers.state_pages;
        to[OTHER_INPUTS..].copy_from_slice(&buffers.tables);
        let mut room = self.pinned[slot].bytes_mut();
        for input in inputs {
            let (here, rest) = room.split_at_mut(input.len());
            here.copy_from_slice(input);
            room = rest;
        }
        let arguments = ScatterInputsArgs {
            from: self.pinned[slot].on_device().cast(),
            to,
            words: inputs.map(|input| (input.len() / 4) as i32),
            before,
            board,
            step: step as u32,
        };
        let bytes: usize = inputs.iter().map(|input| input.len()).sum();
        let geometry = Geometry::line((bytes / 4).div_ceil(THREADS), THREADS as u32);
        // SAFETY: a thread a word; the counts were checked against the buffers' sizes above, and
        // pinned memory is as large. Tokens below zero were made of places in `before`.
        unsafe { scatter_inputs.launch(context, geometry, &arguments) }
    }
}

/// A slice of the step's inputs as bytes.
fn bytes_of<T: Input>(values: &[T]) -> &[u8] {
    // SAFETY: `Input` types are whole 32-bit integers, without padding.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}

/// # Safety
/// Has only 32-bit integers.
unsafe trait Input: Copy {}
// SAFETY: four `i32`.
unsafe impl Input for Row {}
// SAFETY: five `i32`.
unsafe impl Input for Tile {}
// SAFETY: two `i32`.
unsafe impl Input for StateRow {}
// SAFETY: four `i32`.
unsafe impl Input for StateSequence {}
// SAFETY: one `i32`.
unsafe impl Input for i32 {}
