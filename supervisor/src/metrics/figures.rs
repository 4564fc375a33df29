//! Table of the engine's snapshot, and of the kernel's figures of both processes.
//!
//! A figure without a value has no line. Counters start with the supervisor and continue across its children, unless
//! the help text states otherwise.

use super::figure::{Figure, Now, figures};
use worker_orcd_engine::Status;
use worker_orcd_ipc::Load;

pub(super) const FIGURES: &[Figure] = figures! { now:
    // === Requests ===
    Gauge "worker_orcd_up": Whole(answers(now).into()),
        "1 while requests are answered, 0 while a child is loaded or replaced, and while draining.";
    Gauge "worker_orcd_standby_ready": Whole(standbys_ready(now)?),
        "1 while a child stands by on every device in use, 0 while one is missing that should.";
    Gauge "worker_orcd_requests_live": Whole(now.live as u64),
        "Requests that were let in and have not ended.";
    Gauge "worker_orcd_requests_capacity": Whole(now.snapshot.load.capacity as u64),
        "Requests that may be live at once; the next one is refused with QUEUE_FULL.";
    Gauge "worker_orcd_requests_running": Whole(running(now)?),
        "Requests in the batches of the children of all devices, by their last heartbeats.";
    Gauge "worker_orcd_requests_waiting": Whole(waiting(now)?),
        "Requests that were let in and are in no child's batch, by their last heartbeats.";
    Counter "worker_orcd_overdue_children": Whole(now.snapshot.faults.overdue_children),
        "Times that a child was overdue and its requests went to another device.";
    Gauge "worker_orcd_requests_on_probation": Whole(now.snapshot.faults.on_probation as u64),
        "Requests that must run alone now, because children died under them.";
    Counter "worker_orcd_probations": Whole(now.snapshot.faults.probations),
        "Times that a request had to run alone because children died under it.";
    Counter "worker_orcd_requests_quarantined": Whole(now.snapshot.faults.quarantined_total),
        "Requests that were ended because they kill children.";
    Gauge "worker_orcd_quarantined_fingerprints": Whole(now.snapshot.faults.quarantined.len() as u64),
        "Requests that would be refused now because they killed children.";
    // === Tokens ===
    Counter "worker_orcd_generated_tokens": Whole(now.snapshot.load.tokens_total),
        "Tokens accepted from children.";
    Gauge "worker_orcd_tokens_per_second": Real(now.snapshot.load.tokens_per_second),
        "Tokens accepted from the children of all devices per second, over the last 5 seconds.";
    Gauge "worker_orcd_kv_used_ratio": Real(kv_used(now)?),
        "Share of the KV caches of all devices that holds tokens, by the last heartbeats.";
    Gauge "worker_orcd_kv_capacity_tokens": Whole(now.model?.kv_capacity_tokens),
        "Tokens that the KV caches of all devices can hold.";
    Counter "worker_orcd_prefix_cache_queries": Whole(now.snapshot.load.counters.prompt_tokens),
        "Prompt tokens that were looked up in the prefix cache, those of resumed requests included.";
    Counter "worker_orcd_prefix_cache_hits": Whole(now.snapshot.load.counters.prefix_hit_tokens),
        "Prompt tokens that were found in the prefix cache and not computed again.";
    Counter "worker_orcd_draft_tokens": Whole(now.snapshot.load.counters.draft_tokens),
        "Drafts of tokens that were verified.";
    Counter "worker_orcd_accepted_draft_tokens": Whole(now.snapshot.load.counters.accepted_draft_tokens),
        "Drafts that were accepted: tokens that needed no step of their own.";
    Counter "worker_orcd_model_draft_tokens": Whole(now.snapshot.load.counters.model_draft_tokens),
        "Verified drafts of the draft model.";
    Counter "worker_orcd_accepted_model_draft_tokens": Whole(now.snapshot.load.counters.accepted_model_draft_tokens),
        "Accepted drafts of the draft model.";
    Counter "worker_orcd_kv_adopted_tokens": Whole(now.snapshot.load.counters.adopted_tokens),
        "Tokens that were not computed again because their pages were adopted from a dead child.";
    Counter "worker_orcd_kv_changed_pages": Whole(now.snapshot.load.counters.changed_pages),
        "Pages of a dead child that were not adopted because they had changed.";
    Counter "worker_orcd_mixed_steps": Whole(now.snapshot.load.counters.mixed_steps),
        "Steps in which some streams got a token and prompts of others were computed, too.";
    Counter "worker_orcd_mixed_prompt_tokens": Whole(now.snapshot.load.counters.mixed_prompt_tokens),
        "Prompt tokens of those steps.";
    // === Children ===
    Counter "worker_orcd_child_restarts": Whole(now.snapshot.faults.restarts),
        "Children that were started after the first one.";
    Counter "worker_orcd_recoveries": Whole(now.snapshot.faults.recoveries),
        "Times that a request went on with another child.";
    Gauge "worker_orcd_child_generation": Whole(now.snapshot.child()?.generation.into()),
        "Number of the child that serves, or is to: 1 is the first.";
    Gauge "worker_orcd_child_deaths_in_window": Whole(now.snapshot.faults.deaths_in_window.into()),
        "Deaths of children in the last minute, on the device that has most; more than 5 make the worker degraded.";
    Gauge "worker_orcd_child_deaths_in_a_row": Whole(now.snapshot.faults.deaths_in_a_row.into()),
        "Children in a row that died and delivered nothing, on the device that has most.";
    Gauge "worker_orcd_child_deaths_allowed": Whole(now.snapshot.faults.deaths_allowed.into()),
        "Children in a row that may die and deliver nothing, as --max-restarts says; one more takes the device out, and ends the worker with exit 82 if it has no other.";
    Counter "worker_orcd_crash_reports": Whole(now.snapshot.faults.crash_reports),
        "Crash reports that were written, or kept in memory where they could not be.";
    Gauge "worker_orcd_child_resident_memory" in Bytes: Whole(now.child.as_ref()?.resident_bytes),
        "Resident memory of the child that runs now, files that it maps included.";
    Counter "worker_orcd_child_cpu" in Seconds: Real(now.child.as_ref()?.cpu_seconds),
        "User and system time of the child that runs now; it starts over with each child.";
    // === Memory of the first device that serves, as its child reports ===
    Gauge "worker_orcd_device_memory_total" in Bytes: Whole(now.memory_there()?.total_bytes?),
        "Memory of the device: the GPU's, or what the machine or the control group gives the CPU device.";
    Gauge "worker_orcd_device_memory_free" in Bytes: Whole(now.memory_there()?.free_bytes?),
        "Free memory of the device.";
    Gauge "worker_orcd_kv_used" in Bytes: Whole(now.memory_there()?.kv_used_bytes),
        "Memory of the KV cache that holds tokens.";
    Gauge "worker_orcd_custody" in Bytes: Whole(now.device.retained?.bytes),
        "Memory that outlives a child: weights, which the child's own figures include.";
    Gauge "worker_orcd_standby_memory" in Bytes: Whole(now.snapshot.standby_bytes(now.device)?),
        "Memory that the standby takes, the weights that it shares included.";
    // === The supervisor ===
    Gauge "worker_orcd_impairments": Whole(now.snapshot.impaired.len() as u64),
        "Things that do not work while everything else does; /health names them in its field impaired.";
    Counter "worker_orcd_log_lines_dropped": Whole(crate::logging::dropped_lines()),
        "Log lines that were dropped because their reader was too slow or had closed the pipe.";
    Gauge "worker_orcd_uptime" in Seconds: Real(now.at.saturating_duration_since(now.snapshot.started_at).as_secs_f64()),
        "Time since the supervisor started.";
    Gauge "process_resident_memory" in Bytes: Whole(now.supervisor.as_ref()?.resident_bytes),
        "Resident memory of the supervisor.";
    Counter "process_cpu" in Seconds: Real(now.supervisor.as_ref()?.cpu_seconds),
        "User and system time of the supervisor.";
    Gauge "process_open_fds": Whole(now.supervisor.as_ref()?.open_descriptors?),
        "Descriptors that the supervisor holds open.";
    Gauge "process_max_fds": Whole(now.supervisor.as_ref()?.max_descriptors?),
        "Descriptors that the supervisor may hold open.";
    // === For the Gateway API inference extension ===
    Gauge "vllm:num_requests_running": Whole(running(now)?),
        "Requests in the children's batches, under vLLM's name for the Gateway API inference extension.";
    Gauge "vllm:num_requests_waiting": Whole(waiting(now)?),
        "Requests that wait, under vLLM's name for the Gateway API inference extension.";
    Gauge "vllm:kv_cache_usage_perc": Real(kv_used(now)?),
        "Share of the KV cache in use, 0 to 1, under vLLM's name for the Gateway API inference extension.";
};

fn answers(now: &Now<'_>) -> bool {
    let status = now.snapshot.status(now.at);
    matches!(status, Status::Healthy | Status::Degraded) && now.snapshot.serving
}

/// 1 if every configured standby of a device in use is ready, else 0; unknown if none is configured.
fn standbys_ready(now: &Now<'_>) -> Option<u64> {
    let in_use = now
        .snapshot
        .devices
        .iter()
        .filter(|it| it.out_since.is_none());
    let each = in_use.filter_map(|device| device.standby.as_ref());
    let all = each.map(|standby| standby.is_ready).reduce(|a, b| a && b)?;
    Some(u64::from(all))
}

/// Unknown without a child that reports.
fn load<'a>(now: &Now<'a>) -> Option<&'a Load> {
    now.snapshot.load.children.as_ref().map(|(load, _)| load)
}

fn running(now: &Now<'_>) -> Option<u64> {
    Some(load(now)?.running.into())
}

fn waiting(now: &Now<'_>) -> Option<u64> {
    let unassigned = now.snapshot.load.unassigned as u64;
    Some(u64::from(load(now)?.waiting) + unassigned)
}

fn kv_used(now: &Now<'_>) -> Option<f64> {
    let capacity = now.model?.kv_capacity_tokens;
    let used = load(now)?.kv_used_tokens;
    (capacity > 0).then(|| used as f64 / capacity as f64)
}
