//! The head: final norm, logits and draw, from the residual stream to tokens, only for rows that
//! draw. For embeddings it is the final norm alone, of every row; for log probabilities of
//! a prompt it is the logits of every row.
//!
//! Everything runs on the device, which also checks every logit for NaN and infinity: the result
//! is one token per row. Greedy rows get theirs with the logits; the others use
//! [`sample`](super::sample).

use super::board::Stage;
use super::headers::constant;
use super::kernels::{ArgmaxArgs, DrawnTokens, Geometry, RowArgs, SoftcapArgs};
use super::matmul::Output;
use super::memory::read;
use super::plan::Plan;
use super::rank::Rank;
use super::sample::{Drawing, Draws, Logits, PinnedRows};
use super::scratch::{ARGMAX_PARTS, ENOUGH_ROWS};
use super::shown_rows::ShownRows;
use crate::device::common::batch::{DrawingRow, watch};
use crate::device::{Checkpoint, SampleWork, Tap};
use worker_orcd_ipc::Fault;

/// Threads per block of argmax.cu.
const ARGMAX_THREADS: u32 = constant!("argmax.cu", ARGMAX_THREADS) as u32;
/// Threads per block of softcap.cu.
const SOFTCAP_THREADS: u32 = constant!("softcap.cu", SOFTCAP_THREADS) as u32;

/// State of a step's logits after the pass.
#[derive(Debug, Clone, Copy)]
pub enum LogitsState {
    /// Not computed: there are more rows than the buffer of logits holds.
    ToCome,
    /// All logits, and the greedy choices.
    Chosen,
    /// All logits, ranked by [`DecodeStep`](super::decode_step::DecodeStep).
    Ranked(DrawnTokens),
}

/// A step launched up to its draws.
#[derive(Debug)]
pub struct OpenStep {
    pub step: u64,
    /// Rows that may draw.
    pub rows: Vec<DrawingRow>,
    pub logits: LogitsState,
}

/// End of a step.
#[derive(Debug)]
pub struct Head<'a> {
    pub rank: &'a Rank,
    pub draws: &'a mut Draws,
    pub shown: &'a mut ShownRows,
    /// Index of the step's buffers among the steps in flight.
    pub slot: usize,
    pub open: &'a OpenStep,
    /// Parameters of each row's draw, if any.
    pub works: &'a [Option<SampleWork<'a>>],
}

impl Head<'_> {
    /// Launches the draws, and before them the remaining logits. Returns the location of the tokens.
    pub fn run(&mut self, tap: &mut dyn Tap) -> Result<DrawnTokens, Fault> {
        let (rank, all) = (self.rank, self.open.rows.len());
        if all == 0 {
            return Ok(DrawnTokens::NONE);
        }
        let chosen = drawn(rank, all, 0);
        match self.open.logits {
            LogitsState::Chosen => self.draw(0, all, chosen, tap)?,
            LogitsState::Ranked(ranks) => {
                self.draw(0, all, ranks, tap)?;
                return Ok(ranks);
            }
            LogitsState::ToCome => {
                let head_rows = rank.scratch.head_rows;
                for first in (0..all).step_by(head_rows) {
                    let rows = head_rows.min(all - first);
                    logits(rank, all, first, rows)?;
                    self.draw(first, rows, drawn(rank, all, first), tap)?;
                }
            }
        }
        Ok(chosen)
    }

    /// Draws the tokens of some drawing rows with logits in flight.
    fn draw(
        &mut self,
        first: usize,
        rows: usize,
        drawn: DrawnTokens,
        tap: &mut dyn Tap,
    ) -> Result<(), Fault> {
        let rank = self.rank;
        let drawing = &self.open.rows[first..][..rows];
        show_norms(rank, drawing, tap)?;
        // Penalties change logits in place.
        self.take_along(first, drawing, tap)?;
        let logits = Logits {
            rows: rank.scratch.buffers.logits,
            vocab: rank.config.vocab_size,
            batch: rank.scratch.buffers.rows.on_device(),
            drawn,
        };
        let works = self.works[first..].iter();
        let drawings = drawing.iter().zip(works).enumerate();
        let drawings = drawings.filter_map(|(at, (it, work))| {
            Some(Drawing {
                row: at,
                newest: it.row,
                work: work.as_ref()?,
                position: it.position + 1,
            })
        });
        let slot = self.slot;
        let place = PinnedRows { slot, first };
        // SAFETY: a row of logits and its largest for each of `drawing` were launched before.
        unsafe { self.draws.run(&rank.context, place, logits, drawings) }?;
        self.draws.copy_to_host(&rank.context, place, drawn, rows)
    }

    /// Copies the logits that a tap requests, of drawing rows.
    fn take_along(
        &mut self,
        first: usize,
        drawing: &[DrawingRow],
        tap: &dyn Tap,
    ) -> Result<(), Fault> {
        let (context, vocab) = (&self.rank.context, self.rank.config.vocab_size);
        for (at, (row, work)) in drawing.iter().zip(&self.works[first..]).enumerate() {
            if tap.wants(row.request, &Checkpoint::Logits) && work.is_some() {
                let logits = self.rank.scratch.buffers.logits.add(at * vocab);
                // SAFETY: a row of logits for each of `drawing` was launched before.
                unsafe { self.shown.take(context, self.slot, *row, logits) }?;
            }
        }
        Ok(())
    }
}

/// Blocks per row: one, if the rows occupy all multiprocessors.
fn argmax_parts(drawing: usize) -> usize {
    if drawing < ENOUGH_ROWS {
        ARGMAX_PARTS
    } else {
        1
    }
}

/// Tokens of the rows from `first` on, of the step's `drawing` rows.
fn drawn(rank: &Rank, drawing: usize, first: usize) -> DrawnTokens {
    let parts = argmax_parts(drawing);
    DrawnTokens::of_parts(rank.scratch.buffers.best.add(first * parts), parts)
}

/// Shows the final norm of every row of the sequences that request it: the input of embeddings.
pub fn show_hidden(rank: &Rank, plan: &Plan<'_>, tap: &mut dyn Tap) -> Result<(), Fault> {
    let n_embd = rank.config.n_embd;
    every_row(rank, plan, tap, Checkpoint::Hidden, |rows, show| {
        // SAFETY: `norm` holds `head_rows` rows, and there are no more.
        let values = unsafe { read(&rank.context, rank.scratch.buffers.norm, rows * n_embd)? };
        values.chunks_exact(n_embd).for_each(show);
        Ok(())
    })
}

/// Shows the logits of every row of the sequences that request it.
pub fn show_prompts(rank: &Rank, plan: &Plan<'_>, tap: &mut dyn Tap) -> Result<(), Fault> {
    let (n_embd, vocab) = (rank.config.n_embd, rank.config.vocab_size);
    let (output, logits) = (rank.weights.tensors.output, rank.scratch.buffers.logits);
    every_row(rank, plan, tap, Checkpoint::PromptLogits, |rows, show| {
        rank.project(rows, &[output], n_embd, Output::stored(logits, vocab))?;
        cap_logits(rank, rows)?;
        // One row at a time: all of them would take a large part of the host's memory.
        for row in 0..rows {
            // SAFETY: `logits` holds `head_rows` rows, and there are no more.
            show(&unsafe { read(&rank.context, logits.add(row * vocab), vocab)? });
        }
        Ok(())
    })
}

/// Computes the final norm of every row of the sequences that request the checkpoint, some rows at a time. `values`
/// shows a result of these rows.
fn every_row(
    rank: &Rank,
    plan: &Plan<'_>,
    tap: &mut dyn Tap,
    checkpoint: Checkpoint,
    values: impl Fn(usize, &mut dyn FnMut(&[f32])) -> Result<(), Fault>,
) -> Result<(), Fault> {
    let (n_embd, buffers) = (rank.config.n_embd, &rank.scratch.buffers);
    let head_rows = rank.scratch.head_rows;
    let stage = Stage::Qkv.of(rank.config.n_layers);
    let mut first = 0;
    for work in plan.sequences {
        let of_sequence = first..first + work.tokens.len();
        first = of_sequence.end;
        if !tap.wants(work.request, &checkpoint) {
            continue;
        }
        let mut position = work.first_position;
        for start in of_sequence.clone().step_by(head_rows) {
            let rows = head_rows.min(of_sequence.end - start);
            let norm = RowArgs {
                weight: rank.weights.vector(&rank.weights.tensors.output_norm),
                plain: buffers.norm,
                ..rank.row_arguments(rows, buffers.x.add(start * n_embd), n_embd, stage)
            };
            // SAFETY: the stream holds a row for each token of the batch, `norm` holds `head_rows` rows, and there
            // are no more.
            unsafe {
                rank.ops
                    .rmsnorm
                    .launch(&rank.context, (rows, n_embd), &norm)?;
            }
            values(rows, &mut |row| {
                tap.see(work.request, &checkpoint, position, row);
                position += 1;
            })?;
        }
    }
    Ok(())
}

/// Launches final norm, logits and the greedy choice of some of the step's `drawing` rows.
pub fn logits(rank: &Rank, drawing: usize, first: usize, rows: usize) -> Result<(), Fault> {
    let (config, buffers) = (&rank.config, &rank.scratch.buffers);
    let parts = argmax_parts(drawing);
    let (n_embd, vocab) = (config.n_embd, config.vocab_size);
    let stage = Stage::Qkv.of(config.n_layers);
    let norm = RowArgs {
        gather: buffers.gather.on_device().add(first),
        weight: rank.weights.vector(&rank.weights.tensors.output_norm),
        plain: buffers.norm,
        ..rank.row_arguments(rows, buffers.x, n_embd, stage)
    };
    let argmax = ArgmaxArgs {
        logits: buffers.logits,
        best: buffers.best.add(first * parts),
        vocab: vocab as i32,
    };
    let argmax_geometry = Geometry {
        grid: [rows as u32, parts as u32],
        ..Geometry::line(rows, ARGMAX_THREADS)
    };
    // SAFETY: `gather` names rows of the stream; `norm` and `logits` hold `head_rows` rows, `best`
    // the parts of all that draw, and there are no more.
    unsafe {
        rank.ops
            .rmsnorm
            .launch(&rank.context, (rows, n_embd), &norm)?;
        rank.project(
            rows,
            &[rank.weights.tensors.output],
            n_embd,
            Output::stored(buffers.logits, vocab),
        )?;
        cap_logits(rank, rows)?;
        rank.ops
            .argmax
            .launch(&rank.context, argmax_geometry, &argmax)
    }
}

/// Caps the logits of these rows, if the model has a cap.
fn cap_logits(rank: &Rank, rows: usize) -> Result<(), Fault> {
    let (cap, scale) = (rank.config.logit_cap, rank.config.logit_scale);
    if cap.is_none() && scale == 1.0 {
        return Ok(());
    }
    let count = rows * rank.config.vocab_size;
    let arguments = SoftcapArgs {
        logits: rank.scratch.buffers.logits,
        count: count as u64,
        cap: cap.unwrap_or(0.0),
        scale,
    };
    let blocks = count.div_ceil(SOFTCAP_THREADS as usize);
    let geometry = Geometry::line(blocks, SOFTCAP_THREADS);
    // SAFETY: a thread a logit; the buffer holds `head_rows` rows, and there are no more.
    unsafe { rank.ops.softcap.launch(&rank.context, geometry, &arguments) }
}

/// Shows the final norm of some drawing rows to a tap that requests it.
fn show_norms(rank: &Rank, drawing: &[DrawingRow], tap: &mut dyn Tap) -> Result<(), Fault> {
    let (norm, width) = (rank.scratch.buffers.norm, rank.config.n_embd);
    let rows = drawing.iter().map(|it| (it.request, it.position));
    // SAFETY: there is a row for each of `drawing`.
    let row = |at| unsafe { read(&rank.context, norm.add(at * width), width) };
    watch(tap, Checkpoint::FinalNorm, rows, row)
}
