//! Draws on the device (`kernels/cuda/sample.cu`) for every row that needs more than its largest
//! logit. The token equals that of [`worker_orcd_sampler::sample`], which defines it.
//!
//! The kernel reads the parameters of a row from pinned memory, once. The rest is copied
//! contiguously: its history for penalties, the words of its mask, its biases.
//! The copies have a buffer of fixed size, enough for the masks of a usual step. If it is too small, the
//! rows are drawn in several passes, and the host waits between them.

use super::context::Context;
use super::headers::constant;
use super::kernels::{
    DrawnTokens, Geometry, Kernel, Module, Row, SampleArgs, SampleRow, TokensToHostArgs,
};
use super::memory::{Arena, DevicePtr, Pinned, Purpose, upload};
use super::step_queue::STEPS;
use crate::device::SampleWork;
use worker_orcd_ipc::{Fault, MAX_LOGIT_BIASES, TokenId};
use worker_orcd_sampler::Draw;

/// Value in place of an id for a logit that is not finite.
pub const NOT_FINITE: u32 = constant!("drawn_tokens.cuh", NO_TOKEN) as u32;

const THREADS: u32 = constant!("sample.cu", SAMPLE_THREADS) as u32;
const STRIP: usize = constant!("sample.cu", STRIP);
/// Bytes of a filter's survivors that one block completes.
const SURVIVOR_BYTES: usize = 8 * constant!("sample.cu", MAX_SURVIVORS);
/// Maximum number of blocks that share a row, if all of them run concurrently.
const MAX_CLUSTER: usize = constant!("sample.cu", MAX_CLUSTER);
/// Concurrent blocks per multiprocessor.
const RESIDENT: usize = 2;
const ROW_BYTES: usize = size_of::<SampleRow>();
const TOKEN_BYTES: usize = 4;
/// Words of histories, masks and biases in flight, unless a row below needs more.
const HISTORY_WORDS: usize = 1 << 18;
/// Rows that may all have a mask in one pass: the usual number of decoding rows in a step.
const MASKED_ROWS: usize = 64;

/// Logits on the device, and the tokens drawn from them: the largest of each row before the draw,
/// its token after.
#[derive(Debug, Clone, Copy)]
pub struct Logits {
    pub rows: DevicePtr<f32>,
    pub vocab: usize,
    pub batch: DevicePtr<Row>,
    pub drawn: DrawnTokens,
}

/// A row of logits that a token is drawn from.
#[derive(Debug, Clone, Copy)]
pub struct Drawing<'a> {
    /// Row of the logits.
    pub row: usize,
    /// Row of the batch with its newest token.
    pub newest: usize,
    pub work: &'a SampleWork<'a>,
    /// Position of the token that is drawn.
    pub position: u32,
}

impl Drawing<'_> {
    fn has_penalties(&self) -> bool {
        let sampling = &self.work.sampling;
        sampling.repetition_penalty != 1.0
            || sampling.frequency_penalty != 0.0
            || sampling.presence_penalty != 0.0
    }

    /// History for penalties.
    fn history(&self) -> [&[TokenId]; 2] {
        if self.has_penalties() {
            [self.work.prompt, self.work.generated]
        } else {
            [&[], &[]]
        }
    }

    /// Words of the mask; empty if every token is allowed.
    fn mask(&self) -> &[u32] {
        self.work.allowed.unwrap_or_default()
    }

    /// History, mask and biases, concatenated. A token that is not drawn yet is negative
    /// there.
    fn words(&self) -> impl Iterator<Item = u32> {
        let history = self.history().into_iter().flatten().map(|token| token.0);
        let bias = self.work.bias.iter();
        let biased = bias.clone().map(|(token, _)| token.0);
        let biases = bias.map(|(_, bias)| bias.to_bits());
        let words = history.chain(self.mask().iter().copied());
        words.chain(biased).chain(biases)
    }

    /// The kernel's row; `None` if the draw is the largest logit. Its [`words`](Self::words) begin at
    /// `history`.
    fn row(&self, history: usize) -> Option<SampleRow> {
        let draw = Draw::new(&self.work.sampling, self.position);
        let is_plain = self.mask().is_empty() && self.work.bias.is_empty();
        if draw.is_none() && !self.has_penalties() && is_plain {
            return None;
        }
        let [prompt, generated] = self.history();
        let sampling = &self.work.sampling;
        Some(SampleRow {
            top_p: draw.map_or(u64::MAX, |draw| draw.top_p),
            number: draw.map_or(0, |draw| draw.number),
            rate: draw.map_or(0.0, |draw| draw.rate),
            min_p: draw.map_or(0.0, |draw| draw.min_p),
            repetition: sampling.repetition_penalty,
            frequency: sampling.frequency_penalty,
            presence: sampling.presence_penalty,
            row: self.row as i32,
            top_k: draw.map_or(0, |draw| i32::try_from(draw.top_k).unwrap_or(0)),
            history: history as i32,
            prompt: prompt.len() as i32,
            length: (prompt.len() + generated.len()) as i32,
            newest: self.newest as i32,
            mask: self.mask().len() as i32,
            biases: self.work.bias.len() as i32,
            unused: 0,
        })
    }
}

/// Location of some rows of a step in pinned memory.
#[derive(Debug, Clone, Copy)]
pub struct PinnedRows {
    /// Buffers of the step, used by no other step in flight.
    pub slot: usize,
    /// Index of the first of these rows in the step.
    pub first: usize,
}

#[derive(Debug)]
pub struct Draws {
    kernel: Kernel<SampleArgs>,
    to_host: Kernel<TokensToHostArgs>,
    /// Pinned memory of each step in flight: rows, which the device reads from here;
    /// tokens copied to the host; histories copied to the device.
    pinned: [Pinned; STEPS],
    history: Arena,
    max_rows: usize,
    max_words: usize,
    shared_bytes: u32,
}

impl Draws {
    /// Loads the kernels for `max_rows` rows per step, and sequences of `sequence_tokens` tokens.
    ///
    /// # Errors
    /// If the memory cannot be allocated.
    pub fn load(
        context: &Context,
        module: &Module,
        max_rows: usize,
        vocab: usize,
        sequence_tokens: usize,
    ) -> Result<Self, Fault> {
        // SAFETY: sample.cu takes SampleArgs, tokens_to_host.cu TokensToHostArgs.
        let (kernel, to_host) =
            unsafe { (module.kernel("sample")?, module.kernel("tokens_to_host")?) };
        let shared_bytes = (SURVIVOR_BYTES + 8 * vocab.div_ceil(STRIP)) as u32;
        kernel.allow_shared(shared_bytes)?;
        let max_words = max_words(vocab, sequence_tokens);
        let pinned_bytes = max_rows * (ROW_BYTES + TOKEN_BYTES) + 4 * max_words;
        Ok(Self {
            kernel,
            to_host,
            pinned: [Pinned::new(pinned_bytes)?, Pinned::new(pinned_bytes)?],
            history: Arena::new(context, Purpose::Scratch, 4 * max_words as u64)?,
            max_rows,
            max_words,
            shared_bytes,
        })
    }

    /// Draws the tokens of all rows that need more than their largest logit. The step that used the
    /// slot before has ended.
    ///
    /// # Errors
    /// If a launch fails.
    ///
    /// # Safety
    /// Logits and answers of every row are complete when the stream reaches the draw.
    ///
    /// # Panics
    /// If a row needs more words than announced.
    pub unsafe fn run<'a>(
        &mut self,
        context: &Context,
        place: PinnedRows,
        logits: Logits,
        drawings: impl Iterator<Item = Drawing<'a>>,
    ) -> Result<(), Fault> {
        let (mut rows, mut words) = (Vec::new(), 0);
        for drawing in drawings {
            let Some(mut row) = drawing.row(words) else {
                continue;
            };
            let length = (row.length + row.mask + 2 * row.biases) as usize;
            assert!(length <= self.max_words, "more words than announced");
            if words + length > self.max_words {
                // SAFETY: as promised by the caller.
                unsafe { self.launch(context, place, logits, &rows, words) }?;
                context.synchronize("a draw")?;
                rows.clear();
                (words, row.history) = (0, 0);
            }
            if length > 0 && words == 0 && place.first > 0 {
                // Words of earlier rows of the step may still be in flight from the same buffer.
                context.synchronize("a draw")?;
            }
            self.write_words(place.slot, words, drawing.words());
            words += length;
            rows.push(row);
        }
        // SAFETY: as promised by the caller.
        unsafe { self.launch(context, place, logits, &rows, words) }
    }

    /// Copies the tokens of `rows` rows to the host.
    ///
    /// # Errors
    /// If the launch fails.
    pub fn copy_to_host(
        &mut self,
        context: &Context,
        PinnedRows { slot, first }: PinnedRows,
        drawn: DrawnTokens,
        rows: usize,
    ) -> Result<(), Fault> {
        const THREADS: usize = 256;
        assert!(first + rows <= self.max_rows, "more rows than announced");
        let at = self.drawn_at() + 4 * first;
        let arguments = TokensToHostArgs {
            drawn,
            out: self.pinned[slot].on_device().add(at).cast(),
            rows: rows as i32,
        };
        let geometry = Geometry::line(rows.div_ceil(THREADS), THREADS as u32);
        // SAFETY: a thread a row; pinned memory holds a word for each, which is not read
        // before the stream got there.
        unsafe { self.to_host.launch(context, geometry, &arguments) }
    }

    /// Tokens of an ended step: an id for each row, or [`NOT_FINITE`].
    pub fn drawn(&mut self, slot: usize, rows: usize) -> impl Iterator<Item = u32> {
        let at = self.drawn_at();
        let words = self.pinned[slot].bytes_mut()[at..][..4 * rows]
            .as_chunks()
            .0;
        words.iter().map(|word| u32::from_ne_bytes(*word))
    }

    fn drawn_at(&self) -> usize {
        self.max_rows * ROW_BYTES
    }

    fn words_at(&self, index: usize) -> usize {
        self.max_rows * (ROW_BYTES + TOKEN_BYTES) + 4 * index
    }

    fn write_words(&mut self, slot: usize, first: usize, words: impl Iterator<Item = u32>) {
        let at = self.words_at(first);
        let room = self.pinned[slot].bytes_mut()[at..].chunks_exact_mut(4);
        for (place, word) in room.zip(words) {
            place.copy_from_slice(&word.to_ne_bytes());
        }
    }

    /// # Safety
    /// The contract of [`run`](Self::run); every row's words are written.
    unsafe fn launch(
        &mut self,
        context: &Context,
        PinnedRows { slot, first }: PinnedRows,
        logits: Logits,
        rows: &[SampleRow],
        words: usize,
    ) -> Result<(), Fault> {
        if rows.is_empty() {
            return Ok(());
        }
        // SAFETY: 64-bit and 32-bit fields without padding: all of their bytes are initialised.
        let bytes =
            unsafe { std::slice::from_raw_parts(rows.as_ptr().cast::<u8>(), size_of_val(rows)) };
        let (begin, end) = (self.words_at(0), self.words_at(words));
        let pinned = &mut self.pinned[slot];
        pinned.bytes_mut()[first * ROW_BYTES..][..bytes.len()].copy_from_slice(bytes);
        let history = self.history.at::<u8>(0, 4 * words);
        if words > 0 {
            // SAFETY: as many bytes; pinned memory is written again when the step is over.
            unsafe { upload(context, history, &pinned.bytes_mut()[begin..end]) }?;
        }
        let arguments = SampleArgs {
            logits: logits.rows,
            rows: pinned.on_device().cast::<SampleRow>().add(first),
            history: history.cast(),
            batch: logits.batch,
            drawn: logits.drawn,
            vocab: logits.vocab as i32,
        };
        let cluster = if context.has_bulk_copies() {
            cluster(rows.len(), context.multiprocessors() as usize)
        } else {
            1
        };
        let geometry = Geometry {
            grid: [cluster as u32, rows.len() as u32],
            block: [THREADS, 1, 1],
            shared_bytes: self.shared_bytes,
        };
        // SAFETY: a team a row; the rest is the caller's promise.
        unsafe {
            self.kernel
                .launch_clusters(context, geometry, cluster as u32, &arguments)
        }
    }
}

/// Maximum number of words in flight: the larger of one row with everything and the masks of a usual step.
fn max_words(vocab: usize, sequence_tokens: usize) -> usize {
    let mask = vocab.div_ceil(32);
    let most = sequence_tokens + mask + 2 * MAX_LOGIT_BIASES;
    most.max(MASKED_ROWS * mask).max(HISTORY_WORDS)
}

/// Blocks per row for `rows` rows: all of them run concurrently.
fn cluster(rows: usize, multiprocessors: usize) -> usize {
    let fits = |cluster: &usize| rows * cluster <= RESIDENT * multiprocessors;
    [MAX_CLUSTER, 4, 2].into_iter().find(fits).unwrap_or(1)
}

#[cfg(test)]
mod tests;
