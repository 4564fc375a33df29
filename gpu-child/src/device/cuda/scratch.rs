//! Activations and inputs of one step, allocated once for the largest batch.

use super::buffer_allocator::{BufferAllocator, InputBuffer, StepInput};
use super::context::Context;
use super::expert_room::ExpertBuffers;
use super::kernels::{DrawnTokens, Geometry, INPUTS, Kernel, Row, ScatterInputsArgs};
use super::kv::PageGroups;
use super::memory::{Arena, DevicePtr, Pinned, Purpose, Taken};
use super::mixers::{MixerBuffers, outputs_width};
use super::plan::Plan;
use super::step_queue::STEPS;
use super::weights::{UNIT, units};
use crate::model::ModelConfig;
use worker_orcd_ipc::Fault;

/// Bytes of logits held at a time: enough for 256 sequences of a large vocabulary.
const LOGIT_BYTES: usize = 256 << 20;
/// Inputs besides those of the mixers.
pub const OWN_INPUTS: usize = 2;

/// Blocks that read a row of logits, one part each.
pub const ARGMAX_PARTS: usize = 8;
/// Number of drawing rows from which one part is enough.
pub const ENOUGH_ROWS: usize = 64;

/// The largest batch.
#[derive(Debug, Clone, Copy)]
pub struct Largest {
    pub tokens: usize,
    pub sequences: usize,
    /// Tokens of a sequence.
    pub sequence_tokens: usize,
    pub groups: PageGroups,
}

#[derive(Debug)]
pub struct Scratch {
    pub largest: Largest,
    /// Maximum number of rows per computation of logits.
    pub head_rows: usize,
    pub buffers: Buffers,
    arena: Arena,
    /// Pinned inputs of a step and of the next one.
    pinned: [Pinned; STEPS],
}

/// Buffers of a step on the device.
#[derive(Debug, Clone, Copy)]
pub struct Buffers {
    /// Residual stream, `[tokens, n_embd]`.
    pub x: DevicePtr<f32>,
    /// Gate and up beside each other, then a block's outputs before its norm.
    pub ff: DevicePtr<f32>,
    /// Inputs of down from the product of gate and up, after the rows of such a norm.
    pub gated: DevicePtr<u16>,
    /// Per-layer inputs of all layers, `[tokens, layers * width]`; null without any.
    pub layer_inputs: DevicePtr<f32>,
    /// Another input of a product, and the powers of two of its rows.
    pub act: DevicePtr<u16>,
    pub scale: DevicePtr<f32>,
    /// Final norm in F32, `[head_rows, n_embd]`.
    pub norm: DevicePtr<f32>,
    pub logits: DevicePtr<f32>,
    /// Ranks of the largest logits by part of the drawing rows (`head.rs`); then the drawn
    /// tokens.
    pub best: DevicePtr<u64>,
    /// Buffers of a mixture of experts.
    pub experts: Option<ExpertBuffers>,
    pub rows: InputBuffer<Row>,
    pub gather: InputBuffer<i32>,
    pub mixers: MixerBuffers,
}

impl Buffers {
    /// Buffers for batches of a model. In an arena of zeros, values after the rows of a batch are finite.
    pub fn place(places: &mut BufferAllocator<'_>, config: &ModelConfig, largest: Largest) -> Self {
        let (tokens, n_embd) = (largest.tokens, config.n_embd);
        // The dense feed-forward parts, or the shared expert in a mixture of experts.
        let shared = config.experts.and_then(|experts| experts.shared_n_ff);
        let n_ff = config.dense_width().max(shared).unwrap_or(0);
        // A packed layout has whole groups of eight rows.
        let packed_rows = tokens.next_multiple_of(8);
        let gated = packed_rows * units(n_ff) * UNIT;
        let input = config.layer_input.unwrap_or(0);
        let widest = units(n_embd.max(outputs_width(config)).max(n_ff).max(input)) * UNIT;
        let head_rows = head_rows(config, tokens);
        // Parts of the inputs of all layers are made there, too.
        let inputs = tokens * config.n_layers * input;
        let ff = (tokens * 2 * n_ff).max(tokens * n_embd + gated / 2);
        let ff = places.buffer(ff.max(inputs));
        Self {
            x: places.buffer(tokens * n_embd),
            ff,
            gated: ff.add(tokens * n_embd).cast(),
            layer_inputs: match inputs {
                0 => DevicePtr::NULL,
                inputs => places.buffer(inputs),
            },
            act: places.buffer(packed_rows * widest),
            scale: places.buffer(tokens),
            norm: places.buffer(head_rows * n_embd),
            logits: places.buffer(head_rows * config.vocab_size),
            // Ranks of the parts of all drawing rows.
            best: places.buffer(tokens.max(ENOUGH_ROWS * ARGMAX_PARTS)),
            experts: ExpertBuffers::place(places, config, tokens),
            rows: places.input(tokens),
            gather: places.input(tokens),
            mixers: MixerBuffers::place(places, config, largest),
        }
    }
}

/// Rows with logits at a time.
fn head_rows(config: &ModelConfig, tokens: usize) -> usize {
    let rows = LOGIT_BYTES / 4 / config.vocab_size;
    rows.clamp(16, 256).min(tokens)
}

/// Counts the bytes of all buffers.
fn counted(config: &ModelConfig, largest: Largest) -> BufferAllocator<'static> {
    let mut places = BufferAllocator::default();
    Buffers::place(&mut places, config, largest);
    places
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

impl Scratch {
    /// # Errors
    /// If the memory cannot be allocated.
    pub fn new(
        context: &Context,
        config: &ModelConfig,
        largest: Largest,
        when: Taken,
    ) -> Result<Self, Fault> {
        let counted = counted(config, largest);
        let arena = Arena::taken(context, Purpose::Scratch, counted.bytes(), when)?;
        // Values that a kernel reads after the rows of a batch must be finite.
        if arena.has_memory() {
            arena.clear(context)?;
        }
        let pinned = || Pinned::new(counted.input_bytes());
        Ok(Self {
            largest,
            head_rows: head_rows(config, largest.tokens),
            buffers: Buffers::place(&mut BufferAllocator::in_arena(&arena), config, largest),
            arena,
            pinned: [pinned()?, pinned()?],
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

    /// Frees what [`take`](Self::take) has allocated.
    ///
    /// # Errors
    /// If NVIDIA's driver returns an error.
    pub fn free_mapped(&mut self) -> Result<(), Fault> {
        self.arena.free_mapped()
    }

    /// Bytes that [`new`](Self::new) allocates.
    #[must_use]
    pub fn bytes_for(config: &ModelConfig, largest: Largest) -> u64 {
        counted(config, largest).bytes()
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
        let buffers = &self.buffers;
        let gather: Vec<i32> = plan.drawing.iter().map(|it| it.row as i32).collect();
        // Rows come first: the kernel inserts tokens there.
        let own: [StepInput<'_>; OWN_INPUTS] = [
            buffers.rows.filled(&plan.rows),
            buffers.gather.filled(&gather),
        ];
        let inputs = own.into_iter().chain(buffers.mixers.inputs(&plan.mixers));
        let mut to = [DevicePtr::NULL; INPUTS];
        let mut words = [0; INPUTS];
        let mut room = self.pinned[slot].bytes_mut();
        for (at, StepInput { to: buffer, bytes }) in inputs.enumerate() {
            let (here, rest) = room.split_at_mut(bytes.len());
            here.copy_from_slice(bytes);
            room = rest;
            to[at] = buffer;
            words[at] = (bytes.len() / 4) as i32;
        }
        let arguments = ScatterInputsArgs {
            from: self.pinned[slot].on_device().cast(),
            to,
            words,
            before,
            board,
            step: step as u32,
        };
        let all = words.iter().sum::<i32>() as usize;
        let geometry = Geometry::line(all.div_ceil(THREADS), THREADS as u32);
        // SAFETY: a thread a word; the counts were checked against the buffers' sizes (`filled`), and
        // pinned memory is as large. Tokens below zero were made of places in `before`.
        unsafe { scatter_inputs.launch(context, geometry, &arguments) }
    }
}
