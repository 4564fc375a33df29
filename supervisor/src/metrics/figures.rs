//! Table of the engine's snapshot, and of the kernel's figures of both processes.
//!
//! A figure without a value has no line. Counters start with the supervisor and continue across its children, unless
//! the help text states otherwise.

use super::figure::Source::{Real, Whole};
use super::figure::{Figure, Now, counter, gauge};
use worker_orcd_engine::Status;
use worker_orcd_ipc::Load;

pub(super) const FIGURES: &[Figure] = &[
    // === Requests ===
    gauge(
        "worker_orcd_up",
        "1 while requests are answered, 0 while a child is loaded or replaced, and while draining.",
        Whole(|now| {
            let status = now.snapshot.status(now.at);
            let answers = matches!(status, Status::Healthy | Status::Degraded);
            Some(u64::from(answers && now.snapshot.serving))
        }),
    ),
    gauge(
        "worker_orcd_standby_ready",
        "1 while a child stands by on every device in use, 0 while one is missing that should.",
        Whole(standbys_ready),
    ),
    gauge(
        "worker_orcd_requests_live",
        "Requests that were let in and have not ended.",
        Whole(|now| Some(now.live as u64)),
    ),
    gauge(
        "worker_orcd_requests_capacity",
        "Requests that may be live at once; the next one is refused with QUEUE_FULL.",
        Whole(|now| Some(now.snapshot.load.capacity as u64)),
    ),
    gauge(
        "worker_orcd_requests_running",
        "Requests in the batches of the children of all devices, by their last heartbeats.",
        Whole(running),
    ),
    gauge(
        "worker_orcd_requests_waiting",
        "Requests that were let in and are in no child's batch, by their last heartbeats.",
        Whole(waiting),
    ),
    counter(
        "worker_orcd_overdue_children",
        "Times that a child was overdue and its requests went to another device.",
        Whole(|now| Some(now.snapshot.faults.overdue_children)),
    ),
    gauge(
        "worker_orcd_requests_on_probation",
        "Requests that must run alone now, because children died under them.",
        Whole(|now| Some(now.snapshot.faults.on_probation as u64)),
    ),
    counter(
        "worker_orcd_probations",
        "Times that a request had to run alone because children died under it.",
        Whole(|now| Some(now.snapshot.faults.probations)),
    ),
    counter(
        "worker_orcd_requests_quarantined",
        "Requests that were ended because they kill children.",
        Whole(|now| Some(now.snapshot.faults.quarantined_total)),
    ),
    gauge(
        "worker_orcd_quarantined_fingerprints",
        "Requests that would be refused now because they killed children.",
        Whole(|now| Some(now.snapshot.faults.quarantined.len() as u64)),
    ),
    // === Tokens ===
    counter(
        "worker_orcd_generated_tokens",
        "Tokens accepted from children.",
        Whole(|now| Some(now.snapshot.load.tokens_total)),
    ),
    gauge(
        "worker_orcd_tokens_per_second",
        "Tokens accepted from the children of all devices per second, over the last 5 seconds.",
        Real(|now| Some(now.snapshot.load.tokens_per_second)),
    ),
    gauge(
        "worker_orcd_kv_used_ratio",
        "Share of the KV caches of all devices that holds tokens, by the last heartbeats.",
        Real(kv_used),
    ),
    gauge(
        "worker_orcd_kv_capacity_tokens",
        "Tokens that the KV caches of all devices can hold.",
        Whole(|now| Some(now.model?.kv_capacity_tokens)),
    ),
    counter(
        "worker_orcd_prefix_cache_queries",
        "Prompt tokens that were looked up in the prefix cache, those of resumed requests included.",
        Whole(|now| Some(now.snapshot.load.counters.prompt_tokens)),
    ),
    counter(
        "worker_orcd_prefix_cache_hits",
        "Prompt tokens that were found in the prefix cache and not computed again.",
        Whole(|now| Some(now.snapshot.load.counters.prefix_hit_tokens)),
    ),
    counter(
        "worker_orcd_draft_tokens",
        "Drafts of tokens that were verified.",
        Whole(|now| Some(now.snapshot.load.counters.draft_tokens)),
    ),
    counter(
        "worker_orcd_accepted_draft_tokens",
        "Drafts that were accepted: tokens that needed no step of their own.",
        Whole(|now| Some(now.snapshot.load.counters.accepted_draft_tokens)),
    ),
    counter(
        "worker_orcd_kv_adopted_tokens",
        "Tokens that were not computed again because their pages were adopted from a dead child.",
        Whole(|now| Some(now.snapshot.load.counters.adopted_tokens)),
    ),
    counter(
        "worker_orcd_kv_changed_pages",
        "Pages of a dead child that were not adopted because they had changed.",
        Whole(|now| Some(now.snapshot.load.counters.changed_pages)),
    ),
    counter(
        "worker_orcd_mixed_steps",
        "Steps in which some streams got a token and prompts of others were computed, too.",
        Whole(|now| Some(now.snapshot.load.counters.mixed_steps)),
    ),
    counter(
        "worker_orcd_mixed_prompt_tokens",
        "Prompt tokens of those steps.",
        Whole(|now| Some(now.snapshot.load.counters.mixed_prompt_tokens)),
    ),
    // === Children ===
    counter(
        "worker_orcd_child_restarts",
        "Children that were started after the first one.",
        Whole(|now| Some(now.snapshot.faults.restarts)),
    ),
    counter(
        "worker_orcd_recoveries",
        "Times that a request went on with another child.",
        Whole(|now| Some(now.snapshot.faults.recoveries)),
    ),
    gauge(
        "worker_orcd_child_generation",
        "Number of the child that serves, or is to: 1 is the first.",
        Whole(|now| Some(now.snapshot.child()?.generation.into())),
    ),
    gauge(
        "worker_orcd_child_deaths_in_window",
        "Deaths of children in the last minute, on the device that has most; more than 5 make the worker degraded.",
        Whole(|now| Some(now.snapshot.faults.deaths_in_window.into())),
    ),
    gauge(
        "worker_orcd_child_deaths_in_a_row",
        "Children in a row that died and delivered nothing, on the device that has most.",
        Whole(|now| Some(now.snapshot.faults.deaths_in_a_row.into())),
    ),
    gauge(
        "worker_orcd_child_deaths_allowed",
        "Children in a row that may die and deliver nothing, as --max-restarts says; one more takes the device out, and ends the worker with exit 82 if it has no other.",
        Whole(|now| Some(now.snapshot.faults.deaths_allowed.into())),
    ),
    counter(
        "worker_orcd_crash_reports",
        "Crash reports that were written, or kept in memory where they could not be.",
        Whole(|now| Some(now.snapshot.faults.crash_reports)),
    ),
    gauge(
        "worker_orcd_child_resident_memory",
        "Resident memory of the child that runs now, files that it maps included.",
        Whole(|now| Some(now.child.as_ref()?.resident_bytes)),
    ).in_bytes(),
    counter(
        "worker_orcd_child_cpu",
        "User and system time of the child that runs now; it starts over with each child.",
        Real(|now| Some(now.child.as_ref()?.cpu_seconds)),
    ).in_seconds(),
    // === Memory of the first device that serves, as its child reports ===
    gauge(
        "worker_orcd_device_memory_total",
        "Memory of the device: the GPU's, or what the machine or the control group gives the CPU device.",
        Whole(|now| now.memory_there()?.total_bytes),
    ).in_bytes(),
    gauge(
        "worker_orcd_device_memory_free",
        "Free memory of the device.",
        Whole(|now| now.memory_there()?.free_bytes),
    ).in_bytes(),
    gauge(
        "worker_orcd_kv_used",
        "Memory of the KV cache that holds tokens.",
        Whole(|now| Some(now.memory_there()?.kv_used_bytes)),
    ).in_bytes(),
    gauge(
        "worker_orcd_custody",
        "Memory that outlives a child: weights, which the child's own figures include.",
        Whole(|now| Some(now.device.custody?.bytes)),
    ).in_bytes(),
    gauge(
        "worker_orcd_standby_memory",
        "Memory that the standby takes, the weights that it shares included.",
        Whole(|now| now.snapshot.standby_bytes(now.device)),
    ).in_bytes(),
    // === The supervisor ===
    gauge(
        "worker_orcd_impairments",
        "Things that do not work while everything else does; /health names them in its field impaired.",
        Whole(|now| Some(now.snapshot.impaired.len() as u64)),
    ),
    counter(
        "worker_orcd_log_lines_dropped",
        "Log lines that were dropped because their reader was too slow or had closed the pipe.",
        Whole(|_| Some(crate::logging::dropped_lines())),
    ),
    gauge(
        "worker_orcd_uptime",
        "Time since the supervisor started.",
        Real(|now| {
            let since = now.at.saturating_duration_since(now.snapshot.started_at);
            Some(since.as_secs_f64())
        }),
    ).in_seconds(),
    gauge(
        "process_resident_memory",
        "Resident memory of the supervisor.",
        Whole(|now| Some(now.supervisor.as_ref()?.resident_bytes)),
    ).in_bytes(),
    counter(
        "process_cpu",
        "User and system time of the supervisor.",
        Real(|now| Some(now.supervisor.as_ref()?.cpu_seconds)),
    ).in_seconds(),
    gauge(
        "process_open_fds",
        "Descriptors that the supervisor holds open.",
        Whole(|now| now.supervisor.as_ref()?.open_descriptors),
    ),
    gauge(
        "process_max_fds",
        "Descriptors that the supervisor may hold open.",
        Whole(|now| now.supervisor.as_ref()?.max_descriptors),
    ),
    // === For the Gateway API inference extension ===
    gauge(
        "vllm:num_requests_running",
        "Requests in the children's batches, under vLLM's name for the Gateway API inference extension.",
        Whole(running),
    ),
    gauge(
        "vllm:num_requests_waiting",
        "Requests that wait, under vLLM's name for the Gateway API inference extension.",
        Whole(waiting),
    ),
    gauge(
        "vllm:kv_cache_usage_perc",
        "Share of the KV cache in use, 0 to 1, under vLLM's name for the Gateway API inference \
         extension.",
        Real(kv_used),
    ),
];

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
