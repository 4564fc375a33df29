//! The head: final norm, logits and sampling, only for sampling rows. Embeddings use the final norm of every row; log
//! probabilities of a prompt use the logits of every row.

use super::OpenStep;
use super::forward::{Forward, show};
use super::linear::{Epilogue, Share};
use super::plan::Plan;
use super::pool::Disjoint;
use super::scratch::{HEAD_ROWS, Scratch};
use crate::device::common::batch::DrawingRow;
use crate::device::{Checkpoint, SampleWork, Tap};
use worker_orcd_ipc::{Drawn, Fault, TokenId};
use worker_orcd_kernels::cpu::softcap;

/// A sampling row with its parameters.
#[derive(Debug, Clone, Copy)]
struct Draw<'a> {
    row: DrawingRow,
    sample: &'a SampleWork<'a>,
}

pub fn run(
    forward: &Forward<'_>,
    open: &OpenStep,
    draws: &[Option<SampleWork<'_>>],
    scratch: &mut Scratch,
    tap: &mut dyn Tap,
) -> Result<Vec<Drawn>, Fault> {
    assert_eq!(draws.len(), open.rows.len(), "a draw for each row");
    let rows = open.rows.iter().zip(draws);
    // Rows that do not sample are not computed.
    let drawing = rows.filter_map(|(&row, sample)| {
        Some(Draw {
            row,
            sample: sample.as_ref()?,
        })
    });
    let drawing: Vec<_> = drawing.collect();
    let mut answer = Vec::with_capacity(drawing.len());
    for draws in drawing.chunks(HEAD_ROWS) {
        let rows: Vec<_> = draws.iter().map(|it| it.row).collect();
        logits(forward, &rows, scratch);
        let (n_embd, vocab) = (forward.config.n_embd, forward.config.vocab_size);
        show_rows(tap, Checkpoint::FinalNorm, &rows, &scratch.norm, n_embd);
        show_rows(tap, Checkpoint::Logits, &rows, &scratch.logits, vocab);
        #[cfg(feature = "fault-injection")]
        crate::device::injected_fault::spoil(&mut scratch.logits);
        let tokens = draw(forward, draws, &mut scratch.logits);
        for (Draw { row, sample }, token) in draws.iter().zip(tokens) {
            let (step, request) = (open.step, row.request);
            let token = token.ok_or(Fault::NonFiniteLogits { step, request })?;
            answer.push(sample.drawn(request, token));
        }
    }
    Ok(answer)
}

/// Passes the final norm of every row to the taps of embeddings.
pub fn show_hidden(
    forward: &Forward<'_>,
    plan: &Plan<'_>,
    scratch: &mut Scratch,
    tap: &mut dyn Tap,
) {
    let n_embd = forward.config.n_embd;
    let weight = forward.weights.vector(&forward.weights.tensors.output_norm);
    let mut first = 0;
    for work in plan.sequences {
        let of_sequence = first * n_embd..(first + work.tokens.len()) * n_embd;
        first += work.tokens.len();
        if !tap.wants(work.request, &Checkpoint::Hidden) {
            continue;
        }
        let norm = &mut scratch.norm[..of_sequence.len()];
        forward.normalize(&scratch.x[of_sequence], weight, norm);
        for (position, row) in (work.first_position..).zip(norm.chunks_exact(n_embd)) {
            tap.see(work.request, &Checkpoint::Hidden, position, row);
        }
    }
}

/// Passes the logits of every row to the taps of log probabilities of prompts.
pub fn show_prompts(
    forward: &Forward<'_>,
    plan: &Plan<'_>,
    scratch: &mut Scratch,
    tap: &mut dyn Tap,
) {
    let vocab = forward.config.vocab_size;
    let mut first = 0;
    for work in plan.sequences {
        let of_sequence = first..first + work.tokens.len();
        first = of_sequence.end;
        if !tap.wants(work.request, &Checkpoint::PromptLogits) {
            continue;
        }
        let rows = of_sequence.zip(work.first_position..);
        let rows: Vec<_> = rows
            .map(|(row, position)| DrawingRow {
                row,
                request: work.request,
                position,
            })
            .collect();
        for rows in rows.chunks(HEAD_ROWS) {
            logits(forward, rows, scratch);
            show_rows(tap, Checkpoint::PromptLogits, rows, &scratch.logits, vocab);
        }
    }
}

fn show_rows(
    tap: &mut dyn Tap,
    checkpoint: Checkpoint,
    rows: &[DrawingRow],
    values: &[f32],
    width: usize,
) {
    let places = rows.iter().map(|it| (it.request, it.position));
    show(tap, checkpoint, places, values, width);
}

/// Computes `scratch.logits`, `[rows, vocab]`, from the rows' final norms in `scratch.norm`.
fn logits(forward: &Forward<'_>, rows: &[DrawingRow], scratch: &mut Scratch) {
    let (n_embd, vocab) = (forward.config.n_embd, forward.config.vocab_size);
    let Scratch {
        x,
        norm,
        quantized,
        logits,
        ..
    } = scratch;
    // Rows ascend, so a row is never overwritten before it has been moved.
    for (to, from) in rows.iter().enumerate() {
        let (to, from) = (to * n_embd, from.row * n_embd);
        norm[to..to + n_embd].copy_from_slice(&x[from..from + n_embd]);
    }
    let gathered = norm[..rows.len() * n_embd].to_vec();
    let norm = &mut norm[..rows.len() * n_embd];
    let last = forward.weights.vector(&forward.weights.tensors.output_norm);
    forward.normalize(&gathered, last, norm);
    let output = [forward.projection(&forward.weights.tensors.output, 0)];
    forward
        .device
        .quantize(norm, n_embd, &[output[0].weight], quantized);
    let logits = &mut logits[..rows.len() * vocab];
    let input = quantized.view(norm, n_embd);
    forward.device.project(
        &input,
        &Share::all(rows.len()),
        &output,
        logits,
        Epilogue::Store,
    );
    let scale = forward.config.logit_scale;
    if scale != 1.0 {
        logits.iter_mut().for_each(|logit| *logit *= scale);
    }
    if let Some(cap) = forward.config.logit_cap {
        cap_logits(forward, cap, logits);
    }
}

fn cap_logits(forward: &Forward<'_>, cap: f32, logits: &mut [f32]) {
    /// Logits of an item: enough to be worth its start.
    const PART: usize = 4096;
    let len = logits.len();
    let logits = Disjoint::new(logits);
    forward.device.pool.run(len.div_ceil(PART), &|part| {
        let first = part * PART;
        // SAFETY: each item has logits of its own.
        softcap(cap, unsafe { logits.part(first, PART.min(len - first)) });
    });
}

/// Samples the token of every row; `None` if a logit is not finite.
fn draw(forward: &Forward<'_>, rows: &[Draw<'_>], logits: &mut [f32]) -> Vec<Option<TokenId>> {
    let vocab = forward.config.vocab_size;
    let mut tokens = vec![None; rows.len()];
    let (logits, results) = (Disjoint::new(logits), Disjoint::new(&mut tokens));
    forward.device.pool.run(rows.len(), &|i| {
        // SAFETY: item i's own row and result.
        let (logits, result) = unsafe { (logits.part(i * vocab, vocab), results.part(i, 1)) };
        let Draw { row, sample } = rows[i];
        let is_sound = logits.iter().all(|value| value.is_finite());
        result[0] = is_sound.then(|| worker_orcd_sampler::sample(logits, sample, row.position + 1));
    });
    tokens
}
