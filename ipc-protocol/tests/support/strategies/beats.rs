//! Strategies for heartbeats.

use super::*;
use worker_orcd_ipc::{Counters, Heartbeat, Load, MemoryBound, MemoryReport};

pub(super) fn memory() -> BoxedStrategy<MemoryReport> {
    (
        any::<[Option<u64>; 4]>(),
        any::<[u64; 7]>(),
        any::<Option<bool>>(),
        of(prop_oneof![
            Just(MemoryBound::Device),
            Just(MemoryBound::Machine),
            Just(MemoryBound::ControlGroup)
        ]),
    )
        .prop_map(
            |(
                [total_bytes, free_bytes, context_bytes, kv_taken_bytes],
                [
                    weights,
                    capacity,
                    used,
                    scratch,
                    graphs_bytes,
                    draft_bytes,
                    weights_checked,
                ],
                resident,
                bound,
            )| {
                MemoryReport {
                    total_bytes,
                    free_bytes,
                    bound,
                    weights_bytes: weights,
                    kv_capacity_bytes: capacity,
                    kv_used_bytes: used,
                    kv_taken_bytes,
                    scratch_bytes: scratch,
                    graphs_bytes,
                    draft_bytes,
                    context_bytes,
                    resident,
                    weights_checked,
                }
            },
        )
        .boxed()
}

pub(super) fn heartbeat() -> BoxedStrategy<Heartbeat> {
    let load = (any::<[u32; 2]>(), any::<[u64; 12]>(), any::<Option<u32>>()).prop_map(
        |(
            [running, waiting],
            [
                kv_used_tokens,
                prefix_hit_tokens,
                prompt_tokens,
                generated_tokens,
                draft_tokens,
                accepted_draft_tokens,
                model_draft_tokens,
                accepted_model_draft_tokens,
                adopted_tokens,
                changed_pages,
                mixed_steps,
                mixed_prompt_tokens,
            ],
            step_budget_us,
        )| {
            Load {
                running,
                waiting,
                kv_used_tokens,
                counters: Counters {
                    prefix_hit_tokens,
                    prompt_tokens,
                    generated_tokens,
                    draft_tokens,
                    accepted_draft_tokens,
                    model_draft_tokens,
                    accepted_model_draft_tokens,
                    adopted_tokens,
                    changed_pages,
                    mixed_steps,
                    mixed_prompt_tokens,
                },
                step_budget_us,
            }
        },
    );
    (
        any::<u64>(),
        any::<Option<u64>>(),
        any::<bool>(),
        load,
        memory(),
    )
        .prop_map(
            |(steps, step_elapsed_ms, step_overdue, load, memory)| Heartbeat {
                steps,
                step_elapsed_ms,
                step_overdue,
                load,
                memory,
            },
        )
        .boxed()
}
