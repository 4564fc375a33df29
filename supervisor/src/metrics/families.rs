//! Metrics with labels or buckets: build, status, deaths by cause, memory by purpose, and waits of streams.
//!
//! The values of every label are a closed set: neither clients nor children can add lines.

use super::figure::{Figure, Labels, Now, by, figures};
use strum::VariantArray as _;
use worker_orcd_engine::Status;
use worker_orcd_lifecycle::DeathCause;

pub(super) const FIGURES: &[Figure] = figures! { now:
    Gauge "worker_orcd_build_info": Lines(vec![(build(now), 1)]),
        "Always 1; what runs here is in the labels.";
    Gauge "worker_orcd_status": Lines({
        let status = now.snapshot.status(now.at);
        let is_it = |it: &Status| (it.as_str(), u64::from(*it == status));
        by("status", Status::VARIANTS.iter().map(is_it))
    }),
        "1 for the status that /health says, 0 for the others.";
    Counter "worker_orcd_child_deaths": Lines({
        let by_cause = &now.snapshot.faults.deaths_by_cause;
        let deaths = |cause| (cause, by_cause.get(cause).copied().unwrap_or(0));
        by("cause", DeathCause::labels().map(deaths))
    }),
        "Children that died, by cause.";
    Gauge "worker_orcd_device_memory" in Bytes: Lines(purposes(now)),
        "Memory of the first device that serves that its child takes, by purpose.";
    Histogram "worker_orcd_inter_token_latency" in Seconds: Waits(now.snapshot.load.gaps),
        "Time from one token of a stream to its next one, pauses for another child included.";
    Histogram "worker_orcd_stream_pause" in Seconds: Waits(now.snapshot.faults.pauses),
        "Time from the last token that a stream had of a child to its first one of the next child.";
};

/// Labels of the build: versions, model and devices.
fn build(now: &Now<'_>) -> Labels {
    let child = now.snapshot.child().and_then(|it| it.build.clone());
    let mut labels = vec![("version", env!("CARGO_PKG_VERSION").to_owned())];
    labels.extend(child.map(|build| ("child", build)));
    labels.extend(now.model.map(|it| ("model", it.facts.name.clone())));
    let ids = now.snapshot.devices.iter().map(|it| it.id.as_str());
    let devices = now.model.map(|_| ids.collect::<Vec<_>>().join(","));
    labels.extend(devices.map(|ids| ("device", ids)));
    labels
}

/// Memory of the child by purpose; the sum is its total. The KV cache counts in full, whatever its use.
pub(super) fn purposes(now: &Now<'_>) -> Vec<(Labels, u64)> {
    let Some(memory) = now.memory_there() else {
        return Vec::new();
    };
    let context = now.snapshot.context_bytes(now.device, memory, now.at);
    let purposes = [
        ("weights", Some(memory.weights_bytes)),
        ("kv", Some(memory.kv_capacity_bytes)),
        ("scratch", Some(memory.scratch_bytes)),
        ("graphs", Some(memory.graphs_bytes)),
        ("draft", Some(memory.draft_bytes)),
        ("context", context),
    ];
    let known = purposes.into_iter();
    by(
        "purpose",
        known.filter_map(|(purpose, bytes)| Some((purpose, bytes?))),
    )
}
