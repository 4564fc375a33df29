//! Table of the engine's snapshot, and of the kernel's figures of both processes.
//!
//! A figure without a value has no line. Counters start with the supervisor and continue across its children, unless
//! the help text states otherwise.

use super::figure::{Figure, Now, Value, count, figure, gauge};
use prometheus_client::registry::Unit;
use worker_orcd_engine::Status;
use worker_orcd_ipc::Load;

const SECONDS: Option<Unit> = Some(Unit::Seconds);
const BYTES: Option<Unit> = Some(Unit::Bytes);

pub(super) const FIGURES: &[Figure] = &[
    // === Requests ===
    figure(
        "worker_orcd_up",
        None,
        "1 while requests are answered, 0 while a child is loaded or replaced, and while draining.",
        |now| {
            let status = now.snapshot.status(now.at);
            let answers = matches!(status, Status::Healthy | Status::Degraded);
            gauge(u64::from(answers && now.snapshot.serving))
        },
    ),
    figure(
        "worker_orcd_standby_ready",
        None,
        "1 while a child stands by on every device in use, 0 while one is missing that should.",
        standbys_ready,
    ),
    figure(
        "worker_orcd_requests_live",
        None,
        "Requests that were let in and have not ended.",
        |now| gauge(now.live as u64),
    ),
    figure(
        "worker_orcd_requests_capacity",
        None,
        "Requests that may be live at once; the next one is refused with QUEUE_FULL.",
        |now| gauge(now.snapshot.load.capacity as u64),
    ),
    figure(
        "worker_orcd_requests_running",
        None,
        "Requests in the batches of the children of all devices, by their last heartbeats.",
        running,
    ),
    figure(
        "worker_orcd_requests_waiting",
        None,
        "Requests that were let in and are in no child's batch, by their last heartbeats.",
        waiting,
    ),
    figure(
        "worker_orcd_overdue_children",
        None,
        "Times that a child was overdue and its requests went to another device.",
        |now| count(now.snapshot.faults.overdue_children),
    ),
    figure(
        "worker_orcd_requests_on_probation",
        None,
        "Requests that must run alone now, because children died under them.",
        |now| gauge(now.snapshot.faults.on_probation as u64),
    ),
    figure(
        "worker_orcd_probations",
        None,
        "Times that a request had to run alone because children died under it.",
        |now| count(now.snapshot.faults.probations),
    ),
    figure(
        "worker_orcd_requests_quarantined",
        None,
        "Requests that were ended because they kill children.",
        |now| count(now.snapshot.faults.quarantined_total),
    ),
    figure(
        "worker_orcd_quarantined_fingerprints",
        None,
        "Requests that would be refused now because they killed children.",
        |now| gauge(now.snapshot.faults.quarantined.len() as u64),
    ),
    // === Tokens ===
    figure(
        "worker_orcd_generated_tokens",
        None,
        "Tokens accepted from children.",
        |now| count(now.snapshot.load.tokens_total),
    ),
    figure(
        "worker_orcd_tokens_per_second",
        None,
        "Tokens accepted from the children of all devices per second, over the last 5 seconds.",
        |now| Some(Value::Real(now.snapshot.load.tokens_per_second)),
    ),
    figure(
        "worker_orcd_kv_used_ratio",
        None,
        "Share of the KV caches of all devices that holds tokens, by the last heartbeats.",
        kv_used,
    ),
    figure(
        "worker_orcd_kv_capacity_tokens",
        None,
        "Tokens that the KV caches of all devices can hold.",
        |now| gauge(now.model?.kv_capacity_tokens),
    ),
    figure(
        "worker_orcd_prefix_cache_queries",
        None,
        "Prompt tokens that were looked up in the prefix cache, those of resumed requests included.",
        |now| count(now.snapshot.load.counters.prompt_tokens),
    ),
    figure(
        "worker_orcd_prefix_cache_hits",
        None,
        "Prompt tokens that were found in the prefix cache and not computed again.",
        |now| count(now.snapshot.load.counters.prefix_hit_tokens),
    ),
    figure(
        "worker_orcd_draft_tokens",
        None,
        "Drafts of tokens that were verified.",
        |now| count(now.snapshot.load.counters.draft_tokens),
    ),
    figure(
        "worker_orcd_accepted_draft_tokens",
        None,
        "Drafts that were accepted: tokens that needed no step of their own.",
        |now| count(now.snapshot.load.counters.accepted_draft_tokens),
    ),
    figure(
        "worker_orcd_kv_adopted_tokens",
        None,
        "Tokens that were not computed again because their pages were adopted from a dead child.",
        |now| count(now.snapshot.load.counters.adopted_tokens),
    ),
    figure(
        "worker_orcd_kv_changed_pages",
        None,
        "Pages of a dead child that were not adopted because they had changed.",
        |now| count(now.snapshot.load.counters.changed_pages),
    ),
    figure(
        "worker_orcd_mixed_steps",
        None,
        "Steps in which some streams got a token and prompts of others were computed, too.",
        |now| count(now.snapshot.load.counters.mixed_steps),
    ),
    figure(
        "worker_orcd_mixed_prompt_tokens",
        None,
        "Prompt tokens of those steps.",
        |now| count(now.snapshot.load.counters.mixed_prompt_tokens),
    ),
    // === Children ===
    figure(
        "worker_orcd_child_restarts",
        None,
        "Children that were started after the first one.",
        |now| count(now.snapshot.faults.restarts),
    ),
    figure(
        "worker_orcd_recoveries",
        None,
        "Times that a request went on with another child.",
        |now| count(now.snapshot.faults.recoveries),
    ),
    figure(
        "worker_orcd_child_generation",
        None,
        "Number of the child that serves, or is to: 1 is the first.",
        |now| gauge(now.snapshot.child()?.generation.into()),
    ),
    figure(
        "worker_orcd_child_deaths_in_window",
        None,
        "Deaths of children in the last minute, on the device that has most; more than 5 make the worker degraded.",
        |now| gauge(now.snapshot.faults.deaths_in_window.into()),
    ),
    figure(
        "worker_orcd_child_deaths_in_a_row",
        None,
        "Children in a row that died and delivered nothing, on the device that has most.",
        |now| gauge(now.snapshot.faults.deaths_in_a_row.into()),
    ),
    figure(
        "worker_orcd_child_deaths_allowed",
        None,
        "Children in a row that may die and deliver nothing, as --max-restarts says; one more takes the device out, and ends the worker with exit 82 if it has no other.",
        |now| gauge(now.snapshot.faults.deaths_allowed.into()),
    ),
    figure(
        "worker_orcd_crash_reports",
        None,
        "Crash reports that were written, or kept in memory where they could not be.",
        |now| count(now.snapshot.faults.crash_reports),
    ),
    figure(
        "worker_orcd_child_resident_memory",
        BYTES,
        "Resident memory of the child that runs now, files that it maps included.",
        |now| gauge(now.child.as_ref()?.resident_bytes),
    ),
    figure(
        "worker_orcd_child_cpu",
        SECONDS,
        "User and system time of the child that runs now; it starts over with each child.",
        |now| Some(Value::RealCount(now.child.as_ref()?.cpu_seconds)),
    ),
    // === Memory of the first device that serves, as its child reports ===
    figure(
        "worker_orcd_device_memory_total",
        BYTES,
        "Memory of the device: the GPU's, or what the machine or the control group gives the CPU device.",
        |now| gauge(now.memory_there()?.total_bytes?),
    ),
    figure(
        "worker_orcd_device_memory_free",
        BYTES,
        "Free memory of the device.",
        |now| gauge(now.memory_there()?.free_bytes?),
    ),
    figure(
        "worker_orcd_kv_used",
        BYTES,
        "Memory of the KV cache that holds tokens.",
        |now| gauge(now.memory_there()?.kv_used_bytes),
    ),
    figure(
        "worker_orcd_custody",
        BYTES,
        "Memory that outlives a child: weights, which the child's own figures include.",
        |now| gauge(now.device.custody?.bytes),
    ),
    figure(
        "worker_orcd_standby_memory",
        BYTES,
        "Memory that the standby takes, the weights that it shares included.",
        |now| gauge(now.snapshot.standby_bytes(now.device)?),
    ),
    // === The supervisor ===
    figure(
        "worker_orcd_impairments",
        None,
        "Things that do not work while everything else does; /health names them in its field impaired.",
        |now| gauge(now.snapshot.impaired.len() as u64),
    ),
    figure(
        "worker_orcd_log_lines_dropped",
        None,
        "Log lines that were dropped because their reader was too slow or had closed the pipe.",
        |_| count(crate::logging::dropped_lines()),
    ),
    figure(
        "worker_orcd_uptime",
        SECONDS,
        "Time since the supervisor started.",
        |now| {
            let since = now.at.saturating_duration_since(now.snapshot.started_at);
            Some(Value::Real(since.as_secs_f64()))
        },
    ),
    figure(
        "process_resident_memory",
        BYTES,
        "Resident memory of the supervisor.",
        |now| gauge(now.supervisor.as_ref()?.resident_bytes),
    ),
    figure(
        "process_cpu",
        SECONDS,
        "User and system time of the supervisor.",
        |now| Some(Value::RealCount(now.supervisor.as_ref()?.cpu_seconds)),
    ),
    figure(
        "process_open_fds",
        None,
        "Descriptors that the supervisor holds open.",
        |now| gauge(now.supervisor.as_ref()?.open_descriptors?),
    ),
    figure(
        "process_max_fds",
        None,
        "Descriptors that the supervisor may hold open.",
        |now| gauge(now.supervisor.as_ref()?.max_descriptors?),
    ),
    // === For the Gateway API inference extension ===
    figure(
        "vllm:num_requests_running",
        None,
        "Requests in the children's batches, under vLLM's name for the Gateway API inference extension.",
        running,
    ),
    figure(
        "vllm:num_requests_waiting",
        None,
        "Requests that wait, under vLLM's name for the Gateway API inference extension.",
        waiting,
    ),
    figure(
        "vllm:kv_cache_usage_perc",
        None,
        "Share of the KV cache in use, 0 to 1, under vLLM's name for the Gateway API inference \
         extension.",
        kv_used,
    ),
];

/// 1 if every configured standby of a device in use is ready, else 0; unknown if none is configured.
fn standbys_ready(now: &Now<'_>) -> Option<Value> {
    let in_use = now
        .snapshot
        .devices
        .iter()
        .filter(|it| it.out_since.is_none());
    let each = in_use.filter_map(|device| device.standby.as_ref());
    let all = each.map(|standby| standby.is_ready).reduce(|a, b| a && b)?;
    gauge(u64::from(all))
}

/// Unknown without a child that reports.
fn load<'a>(now: &Now<'a>) -> Option<&'a Load> {
    now.snapshot.load.children.as_ref().map(|(load, _)| load)
}

fn running(now: &Now<'_>) -> Option<Value> {
    gauge(load(now)?.running.into())
}

fn waiting(now: &Now<'_>) -> Option<Value> {
    let unassigned = now.snapshot.load.unassigned as u64;
    gauge(u64::from(load(now)?.waiting) + unassigned)
}

fn kv_used(now: &Now<'_>) -> Option<Value> {
    let capacity = now.model?.kv_capacity_tokens;
    let used = load(now)?.kv_used_tokens;
    (capacity > 0).then(|| Value::Real(used as f64 / capacity as f64))
}
