//! From the residual stream to tokens: final norm, logits and the draw, only for rows at which a
//! token is drawn.
//!
//! Greedy tokens are chosen on the device, which also looks at every logit for NaN and infinity.
//! Whatever needs more than the largest logit copies its row and uses the host's sampler: the
//! same bits as on the CPU device, given the same logits.

use super::decode_step::{DecodeStep, MAX_ROWS};
use super::forward::{Model, row_geometry};
use super::kernels::{ArgmaxArgs, Geometry, RowArgs};
use super::memory::download;
use super::plan::Plan;
use super::scratch::ARGMAX_PARTS;
use crate::device::{Checkpoint, SampleWork, Tap};
use crate::sampler::sample;
use worker_orcd_ipc::{Fault, TokenId};

/// What stands for the choice where a logit is not finite; argmax.cu says it with all bits.
const NOT_FINITE: u32 = u32::MAX;

/// Threads of a block of argmax.cu.
const ARGMAX_THREADS: u32 = 1024;
const ENOUGH_ROWS: usize = 64;

pub fn run(
    model: &Model<'_>,
    step: u64,
    plan: &Plan<'_>,
    tap: &mut dyn Tap,
) -> Result<Vec<Option<TokenId>>, Fault> {
    let mut tokens = vec![None; plan.sequences.len()];
    let head_rows = model.scratch.sizes.head_rows;
    for (index, rows) in plan.drawing.chunks(head_rows).enumerate() {
        logits(model, index * head_rows, rows.len())?;
        let chosen = chosen(model, rows.len())?;
        watch(model, plan, rows, tap)?;
        draw(model, step, plan, rows, &chosen, &mut tokens)?;
    }
    if plan.drawing.is_empty() {
        // The pinned inputs are written anew by the next step.
        model.driver.synchronize("a step")?;
    }
    Ok(tokens)
}

/// As [`run`], when the logits and the greedy choice of all rows are on their way.
pub fn draw_chosen(
    model: &Model<'_>,
    step: u64,
    plan: &Plan<'_>,
    tap: &mut dyn Tap,
) -> Result<Vec<Option<TokenId>>, Fault> {
    let chosen = chosen(model, plan.drawing.len())?;
    watch(model, plan, &plan.drawing, tap)?;
    let mut tokens = vec![None; plan.sequences.len()];
    draw(model, step, plan, &plan.drawing, &chosen, &mut tokens)?;
    Ok(tokens)
}

/// Blocks that look at a row: one, where there are rows enough for all multiprocessors.
fn argmax_parts(rows: usize) -> usize {
    if rows < ENOUGH_ROWS { ARGMAX_PARTS } else { 1 }
}

/// Waits for the greedy choice of `rows` rows.
fn chosen(model: &Model<'_>, rows: usize) -> Result<Vec<u32>, Fault> {
    let parts = argmax_parts(rows);
    let mut best = vec![0_u64; rows * parts];
    // SAFETY: the buffer holds a rank for each part of each row of logits.
    unsafe { download(model.driver, &mut best, model.buffers.best) }?;
    let of_row = |parts: &[u64]| match parts.iter().max() {
        Some(&u64::MAX) | None => NOT_FINITE,
        // The id's complement is the lower half of a rank.
        Some(&rank) => !(rank as u32),
    };
    Ok(best.chunks(parts).map(of_row).collect())
}

/// As [`run`], when [`DecodeStep`] has computed the logits of all rows and ranked them.
pub fn draw_ranked(
    model: &Model<'_>,
    decode_step: &DecodeStep,
    step: u64,
    plan: &Plan<'_>,
    tap: &mut dyn Tap,
) -> Result<Vec<Option<TokenId>>, Fault> {
    let rows = plan.drawing.len();
    let (mut best, mut broken) = ([0_u64; MAX_ROWS], [0_u32; MAX_ROWS]);
    // SAFETY: both hold an entry for each of the most rows there can be.
    unsafe {
        download(model.driver, &mut best, decode_step.best())?;
        download(model.driver, &mut broken, decode_step.broken())?;
    }
    watch(model, plan, &plan.drawing, tap)?;
    let chosen: Vec<u32> = (0..rows)
        .map(|row| match broken[row] {
            // The id's complement is the lower half of a rank.
            0 => !(best[row] as u32),
            _ => NOT_FINITE,
        })
        .collect();
    let mut tokens = vec![None; plan.sequences.len()];
    draw(model, step, plan, &plan.drawing, &chosen, &mut tokens)?;
    Ok(tokens)
}

/// The tokens of some drawing rows whose logits are at hand.
fn draw(
    model: &Model<'_>,
    step: u64,
    plan: &Plan<'_>,
    rows: &[(usize, usize)],
    chosen: &[u32],
    tokens: &mut [Option<TokenId>],
) -> Result<(), Fault> {
    for (at, (&(row, sequence), &id)) in rows.iter().zip(chosen).enumerate() {
        let work = &plan.sequences[sequence];
        if id == NOT_FINITE {
            let request = work.request;
            return Err(Fault::NonFiniteLogits { step, request });
        }
        let sampling = work.sample.as_ref().expect("a row that draws");
        tokens[sequence] = Some(if is_argmax(sampling) {
            TokenId(id)
        } else {
            let position = plan.rows[row].position.unsigned_abs() + 1;
            sample(&mut row_of_logits(model, at)?, sampling, position)
        });
    }
    Ok(())
}

/// The largest logit as it is.
fn is_argmax(work: &SampleWork<'_>) -> bool {
    let sampling = &work.sampling;
    sampling.temperature == 0.0
        && sampling.repetition_penalty == 1.0
        && sampling.frequency_penalty == 0.0
        && sampling.presence_penalty == 0.0
}

/// Final norm, logits and the greedy choice of some drawing rows.
pub fn logits(model: &Model<'_>, first: usize, rows: usize) -> Result<(), Fault> {
    let (config, buffers) = (model.config, &model.buffers);
    let (n_embd, vocab) = (config.n_embd, config.vocab_size);
    let norm = RowArgs {
        gather: buffers.gather.add(first),
        weight: model.weights.vector(&model.weights.output_norm),
        plain: buffers.norm,
        ..model.row_arguments(rows, (buffers.x, n_embd), n_embd)
    };
    let argmax = ArgmaxArgs {
        logits: buffers.logits,
        best: buffers.best,
        vocab: vocab as i32,
    };
    let argmax_geometry = Geometry {
        grid: [rows as u32, argmax_parts(rows) as u32],
        ..Geometry::line(rows, ARGMAX_THREADS)
    };
    // SAFETY: `gather` names rows of the stream; `norm`, `logits` and `best` hold `head_rows`
    // rows, and there are no more.
    unsafe {
        model
            .ops
            .rmsnorm
            .launch(model.driver, row_geometry(rows, n_embd), &norm)?;
        model.project(
            rows,
            &[model.weights.output],
            n_embd,
            (buffers.logits, vocab, false),
        )?;
        model
            .ops
            .argmax
            .launch(model.driver, argmax_geometry, &argmax)
    }
}

fn row_of_logits(model: &Model<'_>, at: usize) -> Result<Vec<f32>, Fault> {
    let vocab = model.config.vocab_size;
    let mut row = vec![0.0; vocab];
    // SAFETY: row `at` of the logits.
    unsafe { download(model.driver, &mut row, model.buffers.logits.add(at * vocab)) }?;
    Ok(row)
}

fn watch(
    model: &Model<'_>,
    plan: &Plan<'_>,
    rows: &[(usize, usize)],
    tap: &mut dyn Tap,
) -> Result<(), Fault> {
    let n_embd = model.config.n_embd;
    for (at, &(row, sequence)) in rows.iter().enumerate() {
        let request = plan.sequences[sequence].request;
        let position = plan.rows[row].position.unsigned_abs();
        if tap.wants(request, &Checkpoint::FinalNorm) {
            let mut values = vec![0.0; n_embd];
            // SAFETY: row `at` of the final norm.
            unsafe {
                download(
                    model.driver,
                    &mut values,
                    model.buffers.norm.add(at * n_embd),
                )
            }?;
            tap.see(request, &Checkpoint::FinalNorm, position, &values);
        }
        if tap.wants(request, &Checkpoint::Logits) {
            let values = row_of_logits(model, at)?;
            tap.see(request, &Checkpoint::Logits, position, &values);
        }
    }
    Ok(())
}
