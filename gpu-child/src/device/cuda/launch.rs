//! Launch of a step in two parts: the pass up to the logits, and the draws. Masks may arrive after the launch of
//! the pass, and the device computes the pass in the meantime.

use super::CudaExecutor;
use super::decode_step::is_watched;
use super::graph::GraphKey;
use super::head::{self, Head, LogitsState, OpenStep};
use super::kernels::DrawnTokens;
use super::mixers;
use super::plan::Plan;
use super::scratch::StepInputs;
use crate::device::{Batch, Checkpoint, SampleWork, TO_BE_DRAWN, Tap};
use worker_orcd_ipc::Fault;

/// Launches a step up to its draws, after one that may still be running.
pub fn begin(
    executor: &mut CudaExecutor,
    batch: &Batch<'_>,
    tap: &mut dyn Tap,
) -> Result<(), Fault> {
    executor.rank.context.enter()?;
    let slot = executor.steps.slot();
    let (before, requests) = executor.steps.previous();
    let plan = Plan::new(batch, &executor.rank, requests);
    let (context, scatter_inputs) = (&executor.rank.context, &executor.rank.ops.scatter_inputs);
    let inputs = StepInputs {
        plan: &plan,
        slot,
        before,
        board: executor.rank.board.on_device(),
        step: batch.step,
    };
    executor
        .rank
        .scratch
        .upload(context, scatter_inputs, inputs)?;
    let logits = launch_pass(executor, &plan, tap)?;
    executor.open = Some(OpenStep {
        step: batch.step,
        rows: plan.drawing,
        logits,
    });
    Ok(())
}

/// Launches the draws of the latest step.
pub fn draw(
    executor: &mut CudaExecutor,
    draws: &[Option<SampleWork<'_>>],
    tap: &mut dyn Tap,
) -> Result<(), Fault> {
    executor.rank.context.enter()?;
    let open = executor.open.take().expect("a step that was begun");
    assert_eq!(draws.len(), open.rows.len(), "a draw for each row");
    let slot = executor.steps.slot();
    let rank = &executor.rank;
    let mut head = Head {
        rank,
        draws: &mut executor.draws,
        shown: &mut executor.shown,
        slot,
        open: &open,
        works: draws,
    };
    let drawn_tokens = head.run(tap)?;
    let drawn = open.rows.iter().zip(draws);
    let drawn = drawn.map(|(row, sample)| {
        let sample = sample.as_ref()?;
        Some(sample.drawn(row.request, TO_BE_DRAWN))
    });
    let requests = open.rows.iter().map(|row| row.request);
    let (context, drawn) = (&executor.rank.context, drawn.collect());
    executor
        .steps
        .launched(context, open.step, requests, drawn, drawn_tokens)
}

/// Runs the pass from embedding to logits. Returns the state of the logits.
fn launch_pass(
    executor: &mut CudaExecutor,
    plan: &Plan<'_>,
    tap: &mut dyn Tap,
) -> Result<LogitsState, Fault> {
    let rank = &executor.rank;
    if plan.rows.is_empty() {
        return Ok(LogitsState::ToCome);
    }
    let grids = plan.mixers.grids(rank);
    if let Some(key) = GraphKey::of(plan, rank.scratch.head_rows, grids)
        && !is_watched(&rank.config, plan, tap)
    {
        if let Some(decode_step) = &mut executor.decode_step
            && decode_step.takes(&rank.context, &rank.config, plan)
        {
            decode_step.launch(rank, plan)?;
            let ranks = DrawnTokens::of_rows(decode_step.best(), decode_step.broken());
            return Ok(LogitsState::Ranked(ranks));
        }
        let pass = || rank.pass(plan);
        if executor
            .graphs
            .launch(&rank.context, &executor.driver_thread, key, pass)?
        {
            return Ok(LogitsState::Chosen);
        }
    }
    rank.embed(plan)?;
    rank.watch(tap, plan, Checkpoint::Embedding)?;
    for (index, layer) in rank.weights.tensors.layers.iter().enumerate() {
        mixers::run(rank, plan, index, layer)?;
        rank.feed_forward(plan.rows.len(), index, layer)?;
        rank.watch(tap, plan, Checkpoint::Layer(index as u32))?;
    }
    head::show_hidden(rank, plan, tap)?;
    head::show_prompts(rank, plan, tap)?;
    let rows = plan.drawing.len();
    if rows == 0 || rows > rank.scratch.head_rows {
        return Ok(LogitsState::ToCome);
    }
    head::logits(rank, rows, 0, rows)?;
    Ok(LogitsState::Chosen)
}
