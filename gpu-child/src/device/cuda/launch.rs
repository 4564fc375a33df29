//! Launch of a step in two parts: the pass up to the logits, and the draws. Masks may arrive after the launch of
//! the pass, and the device computes the pass in the meantime.

use super::CudaExecutor;
use super::decode_step::is_watched;
use super::forward::Forward;
use super::graph::GraphKey;
use super::head::{self, Head, LogitsState, OpenStep};
use super::kernels::DrawnTokens;
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
    executor.context.enter()?;
    let slot = executor.steps.slot();
    let (before, requests) = executor.steps.previous();
    let multiprocessors = executor.context.multiprocessors() as usize;
    let wide_on = executor
        .ops
        .attention_wide
        .is_some()
        .then_some(multiprocessors);
    let groups = executor.kv.page_groups();
    let plan = Plan::new(batch, &executor.config, groups, requests, wide_on);
    let (context, scatter_inputs) = (&executor.context, &executor.ops.scatter_inputs);
    let inputs = StepInputs {
        plan: &plan,
        slot,
        before,
        board: executor.board.on_device(),
        step: batch.step,
    };
    executor.scratch.upload(context, scatter_inputs, inputs)?;
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
    executor.context.enter()?;
    let open = executor.open.take().expect("a step that was begun");
    assert_eq!(draws.len(), open.rows.len(), "a draw for each row");
    let slot = executor.steps.slot();
    let forward = Forward {
        context: &executor.context,
        config: &executor.config,
        weights: &executor.weights,
        powers: &executor.powers,
        kv: &executor.kv,
        scratch: &executor.scratch,
        ops: &executor.ops,
        matmul: &executor.matmul,
        experts: executor.experts.as_ref(),
        buffers: executor.scratch.buffers,
        board: executor.board.on_device(),
    };
    let mut head = Head {
        forward: &forward,
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
    let (context, drawn) = (&executor.context, drawn.collect());
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
    let forward = Forward {
        context: &executor.context,
        config: &executor.config,
        weights: &executor.weights,
        powers: &executor.powers,
        kv: &executor.kv,
        scratch: &executor.scratch,
        ops: &executor.ops,
        matmul: &executor.matmul,
        experts: executor.experts.as_ref(),
        buffers: executor.scratch.buffers,
        board: executor.board.on_device(),
    };
    if plan.rows.is_empty() {
        return Ok(LogitsState::ToCome);
    }
    let splits = if forward.splits_over_blocks(plan) {
        plan.splits
    } else {
        0
    };
    if let Some(key) = GraphKey::of(plan, forward.scratch.head_rows, splits)
        && !is_watched(forward.config, plan, tap)
    {
        if let Some(decode_step) = &mut executor.decode_step
            && decode_step.takes(forward.context, forward.config, plan)
        {
            decode_step.launch(&forward, plan)?;
            let ranks = DrawnTokens::of_rows(decode_step.best(), decode_step.broken());
            return Ok(LogitsState::Ranked(ranks));
        }
        let pass = || forward.pass(plan);
        if executor
            .graphs
            .launch(forward.context, &executor.aside, key, pass)?
        {
            return Ok(LogitsState::Chosen);
        }
    }
    forward.embed(plan)?;
    forward.watch(tap, plan, Checkpoint::Embedding)?;
    for (index, layer) in forward.weights.tensors.layers.iter().enumerate() {
        forward.mixer(plan, index, layer)?;
        forward.feed_forward(plan.rows.len(), index, layer)?;
        forward.watch(tap, plan, Checkpoint::Layer(index as u32))?;
    }
    head::show_hidden(&forward, plan, tap)?;
    head::show_prompts(&forward, plan, tap)?;
    let rows = plan.drawing.len();
    if rows == 0 || rows > forward.scratch.head_rows {
        return Ok(LogitsState::ToCome);
    }
    head::logits(&forward, rows, 0, rows)?;
    Ok(LogitsState::Chosen)
}
