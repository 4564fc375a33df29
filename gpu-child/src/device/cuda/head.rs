//! The head: final norm, logits and draw, from the residual stream to tokens, only for rows that
//! draw. For embeddings it is the final norm alone, of every row; for log probabilities of
//! a prompt it is the logits of every row.
//!
//! Everything runs on the device, which also checks every logit for NaN and infinity: the result
//! is one token per row. Greedy rows get theirs with the logits; the others use
//! [`sample`](super::sample).

use super::board::Stage;
use super::forward::Forward;
use super::headers::constant;
use super::kernels::{ArgmaxArgs, DrawnTokens, Geometry, RowArgs};
use super::matmul::Output;
use super::memory::read;
use super::ops::row_geometry;
use super::plan::Plan;
use super::sample::{Drawing, Draws, Logits, PinnedRows};
use super::scratch::{ARGMAX_PARTS, ENOUGH_ROWS};
use super::shown_rows::ShownRows;
use crate::device::common::batch::{DrawingRow, watch};
use crate::device::{Checkpoint, SampleWork, Tap};
use worker_orcd_ipc::Fault;

/// Threads per block of argmax.cu.
const ARGMAX_THREADS: u32 = constant!("argmax.cu", ARGMAX_THREADS) as u32;

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
    pub forward: &'a Forward<'a>,
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
        let (forward, all) = (self.forward, self.open.rows.len());
        if all == 0 {
            return Ok(DrawnTokens::NONE);
        }
        let chosen = drawn(forward, all, 0);
        match self.open.logits {
            LogitsState::Chosen => self.draw(0, all, chosen, tap)?,
            LogitsState::Ranked(ranks) => {
                self.draw(0, all, ranks, tap)?;
                return Ok(ranks);
            }
            LogitsState::ToCome => {
                let head_rows = forward.scratch.head_rows;
                for first in (0..all).step_by(head_rows) {
                    let rows = head_rows.min(all - first);
                    logits(forward, all, first, rows)?;
                    self.draw(first, rows, drawn(forward, all, first), tap)?;
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
        let forward = self.forward;
        let drawing = &self.open.rows[first..][..rows];
        show_norms(forward, drawing, tap)?;
        // Penalties change logits in place.
        self.take_along(first, drawing, tap)?;
        let logits = Logits {
            rows: forward.buffers.logits,
            vocab: forward.config.vocab_size,
            batch: forward.buffers.rows.on_device(),
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
        unsafe { self.draws.run(forward.context, place, logits, drawings) }?;
        self.draws.copy_to_host(forward.context, place, drawn, rows)
    }

    /// Copies the logits that a tap requests, of drawing rows.
    fn take_along(
        &mut self,
        first: usize,
        drawing: &[DrawingRow],
        tap: &dyn Tap,
    ) -> Result<(), Fault> {
        let (context, vocab) = (self.forward.context, self.forward.config.vocab_size);
        for (at, (row, work)) in drawing.iter().zip(&self.works[first..]).enumerate() {
            if tap.wants(row.request, &Checkpoint::Logits) && work.is_some() {
                let logits = self.forward.buffers.logits.add(at * vocab);
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
fn drawn(forward: &Forward<'_>, drawing: usize, first: usize) -> DrawnTokens {
    let parts = argmax_parts(drawing);
    DrawnTokens::of_parts(forward.buffers.best.add(first * parts), parts)
}

/// Shows the final norm of every row of the sequences that request it: the input of embeddings.
pub fn show_hidden(forward: &Forward<'_>, plan: &Plan<'_>, tap: &mut dyn Tap) -> Result<(), Fault> {
    let n_embd = forward.config.n_embd;
    every_row(forward, plan, tap, Checkpoint::Hidden, |rows, show| {
        // SAFETY: `norm` holds `head_rows` rows, and there are no more.
        let values = unsafe { read(forward.context, forward.buffers.norm, rows * n_embd)? };
        values.chunks_exact(n_embd).for_each(show);
        Ok(())
    })
}

/// Shows the logits of every row of the sequences that request it.
pub fn show_prompts(
    forward: &Forward<'_>,
    plan: &Plan<'_>,
    tap: &mut dyn Tap,
) -> Result<(), Fault> {
    let (n_embd, vocab) = (forward.config.n_embd, forward.config.vocab_size);
    let (output, logits) = (forward.weights.tensors.output, forward.buffers.logits);
    every_row(
        forward,
        plan,
        tap,
        Checkpoint::PromptLogits,
        |rows, show| {
            forward.project(rows, &[output], n_embd, Output::stored(logits, vocab))?;
            // One row at a time: all of them would take a large part of the host's memory.
            for row in 0..rows {
                // SAFETY: `logits` holds `head_rows` rows, and there are no more.
                show(&unsafe { read(forward.context, logits.add(row * vocab), vocab)? });
            }
            Ok(())
        },
    )
}

/// Computes the final norm of every row of the sequences that request the checkpoint, some rows at a time. `values`
/// shows a result of these rows.
fn every_row(
    forward: &Forward<'_>,
    plan: &Plan<'_>,
    tap: &mut dyn Tap,
    checkpoint: Checkpoint,
    values: impl Fn(usize, &mut dyn FnMut(&[f32])) -> Result<(), Fault>,
) -> Result<(), Fault> {
    let (n_embd, buffers) = (forward.config.n_embd, &forward.buffers);
    let head_rows = forward.scratch.head_rows;
    let stage = Stage::Qkv.of(forward.config.n_layers);
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
                weight: forward.weights.vector(&forward.weights.tensors.output_norm),
                plain: buffers.norm,
                ..forward.row_arguments(rows, buffers.x.add(start * n_embd), n_embd, stage)
            };
            // SAFETY: the stream holds a row for each token of the batch, `norm` holds `head_rows` rows, and there
            // are no more.
            unsafe {
                forward
                    .ops
                    .rmsnorm
                    .launch(forward.context, row_geometry(rows, n_embd), &norm)?;
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
pub fn logits(
    forward: &Forward<'_>,
    drawing: usize,
    first: usize,
    rows: usize,
) -> Result<(), Fault> {
    let (config, buffers) = (forward.config, &forward.buffers);
    let parts = argmax_parts(drawing);
    let (n_embd, vocab) = (config.n_embd, config.vocab_size);
    let stage = Stage::Qkv.of(config.n_layers);
    let norm = RowArgs {
        gather: buffers.gather.on_device().add(first),
        weight: forward.weights.vector(&forward.weights.tensors.output_norm),
        plain: buffers.norm,
        ..forward.row_arguments(rows, buffers.x, n_embd, stage)
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
        forward
            .ops
            .rmsnorm
            .launch(forward.context, row_geometry(rows, n_embd), &norm)?;
        forward.project(
            rows,
            &[forward.weights.tensors.output],
            n_embd,
            Output::stored(buffers.logits, vocab),
        )?;
        forward
            .ops
            .argmax
            .launch(forward.context, argmax_geometry, &argmax)
    }
}

/// Shows the final norm of some drawing rows to a tap that requests it.
fn show_norms(
    forward: &Forward<'_>,
    drawing: &[DrawingRow],
    tap: &mut dyn Tap,
) -> Result<(), Fault> {
    let (norm, width) = (forward.buffers.norm, forward.config.n_embd);
    let rows = drawing.iter().map(|it| (it.request, it.position));
    // SAFETY: there is a row for each of `drawing`.
    let row = |at| unsafe { read(forward.context, norm.add(at * width), width) };
    watch(tap, Checkpoint::FinalNorm, rows, row)
}
