//! The head: from the residual stream to tokens by final norm, logits and the draw, only for rows
//! at which a token is drawn. For embeddings it is the final norm alone, of every row.

use super::forward::{Forward, show};
use super::linear::Epilogue;
use super::plan::Plan;
use super::pool::Disjoint;
use super::scratch::{HEAD_ROWS, Scratch};
use crate::device::common::batch::{DrawingRow, drawing_rows};
use crate::device::{Checkpoint, Tap};
use crate::sampler::sample;
use worker_orcd_ipc::{Drawn, Fault, TokenId};

pub fn run(
    forward: &Forward<'_>,
    step: u64,
    plan: &Plan<'_>,
    scratch: &mut Scratch,
    tap: &mut dyn Tap,
) -> Result<Vec<Drawn>, Fault> {
    let drawing = drawing_rows(plan.sequences);
    let mut answer = Vec::with_capacity(drawing.len());
    for rows in drawing.chunks(HEAD_ROWS) {
        logits(forward, plan, rows, scratch, tap);
        #[cfg(feature = "fault-injection")]
        crate::device::misdeed::spoil(&mut scratch.logits);
        let tokens = draw(forward, plan, rows, &mut scratch.logits);
        for (row, token) in rows.iter().zip(tokens) {
            let work = &plan.sequences[row.sequence];
            let request = work.request;
            let token = token.ok_or(Fault::NonFiniteLogits { step, request })?;
            answer.extend(work.drawn(token));
        }
    }
    Ok(answer)
}

/// Shows the final norm of every row to those who want it of every row: embeddings are made of it.
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

/// Fills `scratch.logits`, one row of the vocabulary after the other.
fn logits(
    forward: &Forward<'_>,
    plan: &Plan<'_>,
    rows: &[DrawingRow],
    scratch: &mut Scratch,
    tap: &mut dyn Tap,
) {
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
    let shown = rows
        .iter()
        .map(|it| (it.sequence, plan.rows[it.row].position));
    show(
        tap,
        plan,
        Checkpoint::FinalNorm,
        shown.clone(),
        norm,
        n_embd,
    );

    let output = [forward.projection(&forward.weights.tensors.output, 0)];
    forward
        .device
        .quantize(norm, n_embd, &[output[0].weight], quantized);
    let logits = &mut logits[..rows.len() * vocab];
    let input = quantized.view(norm, n_embd);
    forward
        .device
        .project(&input, rows.len(), &output, logits, Epilogue::Store);
    show(tap, plan, Checkpoint::Logits, shown, logits, vocab);
}

/// Draws the token of every row; none where a logit is not finite.
fn draw(
    forward: &Forward<'_>,
    plan: &Plan<'_>,
    rows: &[DrawingRow],
    logits: &mut [f32],
) -> Vec<Option<TokenId>> {
    let vocab = forward.config.vocab_size;
    let mut tokens = vec![None; rows.len()];
    let (logits, results) = (Disjoint::new(logits), Disjoint::new(&mut tokens));
    forward.device.pool.run(rows.len(), &|i| {
        // SAFETY: item i's own row and result.
        let (logits, result) = unsafe { (logits.part(i * vocab, vocab), results.part(i, 1)) };
        result[0] = draw_one(plan, rows[i].row, logits);
    });
    tokens
}

fn draw_one(plan: &Plan<'_>, row: usize, logits: &mut [f32]) -> Option<TokenId> {
    if !logits.iter().all(|value| value.is_finite()) {
        return None;
    }
    let row = &plan.rows[row];
    let sampling = plan.sequences[row.sequence]
        .sample
        .as_ref()
        .expect("a row that draws");
    Some(sample(logits, sampling, row.position + 1))
}
