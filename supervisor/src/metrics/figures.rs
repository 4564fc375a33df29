//! The table of what the engine's snapshot knows, and of what the kernel says of both processes.
//!
//! A figure without a value has no line. Counters begin with the supervisor, whatever becomes of
//! its children, unless the sentence says otherwise.

use super::figure::{Figure, Now, Value, count, figure, gauge};
use crate::engine::Status;
use crate::requests::Pace;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Unit;
use std::fmt;
use worker_orcd_ipc::Load;
use worker_orcd_lifecycle::DeathCause;

const SECONDS: Option<Unit> = Some(Unit::Seconds);
const BYTES: Option<Unit> = Some(Unit::Bytes);

const FIGURES: &[Figure] = &[
    // === Requests ===
    figure(
        "worker_orcd_up",
        None,
        "1 while requests are answered, 0 while a child is loaded or replaced, and while draining.",
        |now| gauge(u64::from(now.snapshot.status(now.at) == Status::Healthy)),
    ),
    figure(
        "worker_orcd_standby_ready",
        None,
        "1 while a child stands by, 0 while none does although there should be one.",
        |now| gauge(u64::from(now.snapshot.standby.as_ref()?.is_ready)),
    ),
    figure(
        "worker_orcd_requests_live",
        None,
        "Requests that were let in and have not ended.",
        |now| gauge(now.live as u64),
    ),
    figure(
        "worker_orcd_requests_running",
        None,
        "Requests in the child's batch, by its last heartbeat.",
        running,
    ),
    figure(
        "worker_orcd_requests_waiting",
        None,
        "Requests that were let in and are not in the child's batch, by its last heartbeat.",
        waiting,
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
        "Tokens accepted from the child per second, over the last 5 seconds.",
        |now| Some(Value::Real(now.snapshot.load.tokens_per_second)),
    ),
    figure(
        "worker_orcd_kv_used_ratio",
        None,
        "Share of the KV cache that holds tokens, by the child's last heartbeat.",
        kv_used,
    ),
    figure(
        "worker_orcd_kv_capacity_tokens",
        None,
        "Tokens that the KV cache can hold.",
        |now| gauge(now.model?.kv_capacity_tokens),
    ),
    figure(
        "worker_orcd_prefix_cache_queries",
        None,
        "Prompt tokens that were looked up in the prefix cache, those of resumed requests included.",
        |now| count(now.snapshot.load.prompt_tokens_total),
    ),
    figure(
        "worker_orcd_prefix_cache_hits",
        None,
        "Prompt tokens that were found in the prefix cache and not computed again.",
        |now| count(now.snapshot.load.prefix_hit_tokens_total),
    ),
    figure(
        "worker_orcd_kv_adopted_tokens",
        None,
        "Tokens that were not computed again because their pages were adopted from a dead child.",
        |now| count(now.snapshot.load.adopted_tokens_total),
    ),
    figure(
        "worker_orcd_kv_changed_pages",
        None,
        "Pages of a dead child that were not adopted because they had changed.",
        |now| count(now.snapshot.load.changed_pages_total),
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
    // === The supervisor ===
    figure(
        "worker_orcd_log_lines_dropped",
        None,
        "Log lines that were dropped because whoever reads them was too slow or gone.",
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
        "Requests in the child's batch, under vLLM's name for the Gateway API inference extension.",
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

/// Unknown while there is no child that could tell.
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

/// The values of one moment.
#[derive(Debug)]
pub(super) struct Taken {
    figures: Vec<(&'static Figure, Value)>,
    /// Labels that say in words who computes.
    build: Vec<(&'static str, String)>,
    deaths: Vec<(&'static str, u64)>,
    pace: Pace,
}

impl Taken {
    pub(super) fn at(now: &Now<'_>) -> Self {
        let by_cause = &now.snapshot.faults.deaths_by_cause;
        let deaths = |label| (label, by_cause.get(label).copied().unwrap_or(0));
        Self {
            figures: Figure::known(FIGURES, now),
            build: build(now),
            deaths: DeathCause::labels().map(deaths).collect(),
            pace: now.snapshot.load.pace,
        }
    }
}

fn build(now: &Now<'_>) -> Vec<(&'static str, String)> {
    let child = now.snapshot.child().and_then(|it| it.build.clone());
    let mut labels = vec![("version", env!("CARGO_PKG_VERSION").to_owned())];
    labels.extend(child.map(|build| ("child", build)));
    labels.extend(now.model.map(|it| ("model", it.facts.name.clone())));
    labels.extend(now.model.map(|it| ("device", it.device.id.clone())));
    labels
}

impl Collector for Taken {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for (figure, value) in &self.figures {
            value.encode(figure.describe(value, &mut encoder)?)?;
        }
        let help = "Always 1; what runs here is in the labels.";
        let name = "worker_orcd_build_info";
        let mut info = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        ConstGauge::new(1_u64).encode(info.encode_family(&self.build)?)?;
        let help = "Children that died, by cause.";
        let name = "worker_orcd_child_deaths";
        let mut deaths = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (cause, count) in &self.deaths {
            let labels = [("cause", *cause)];
            ConstCounter::new(*count).encode(deaths.encode_family(&labels)?)?;
        }
        let help =
            "Time from one token of a stream to its next one, pauses for another child included.";
        let name = "worker_orcd_inter_token_latency";
        let seconds = &Unit::Seconds;
        let kind = MetricType::Histogram;
        let mut pace = encoder.encode_descriptor(name, help, Some(seconds), kind)?;
        let (sum, count) = (self.pace.seconds(), self.pace.count());
        pace.encode_histogram::<NoLabelSet>(sum, count, &self.pace.buckets(), None)
    }
}
