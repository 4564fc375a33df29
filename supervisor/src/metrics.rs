//! `GET /metrics`: Prometheus text.
//!
//! Requests are counted as they happen; gauges are set from the engine's snapshot when somebody
//! looks. Beside our own names there are the three gauges that the Kubernetes Gateway API
//! inference extension asks of model servers, under vLLM's names, which are its default.

mod gpu;

use crate::engine::{Completion, EngineSnapshot, LoadedModel, Status};
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

type Label = [(&'static str, &'static str); 1];
type Ratio = Gauge<f64, AtomicU64>;

#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    events: Events,
    gauges: Gauges,
}

/// What HTTP counts.
#[derive(Debug)]
struct Events {
    started: Counter,
    /// By stop reason or error code: a closed set.
    ended: Family<Label, Counter>,
    prompt_tokens: Counter,
    first_token_seconds: Histogram,
    request_seconds: Histogram,
}

/// What the snapshot knows.
#[derive(Debug, Default)]
struct Gauges {
    up: Gauge,
    live: Gauge,
    running: Gauge,
    waiting: Gauge,
    kv_used_ratio: Ratio,
    tokens_per_second: Ratio,
    tokens: Counter,
    prefix_hit_tokens: Gauge,
    restarts: Counter,
    recoveries: Counter,
    on_probation: Gauge,
    probations: Counter,
    quarantined: Counter,
    quarantined_now: Gauge,
    crash_reports: Counter,
    deaths: Family<Label, Counter>,
    gateway_running: Gauge,
    gateway_waiting: Gauge,
    gateway_kv_used: Ratio,
    gpu: gpu::GpuGauges,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::default();
        let events = Events::register(registry.sub_registry_with_prefix("worker_orcd"));
        let gauges = Gauges::register(&mut registry);
        Self {
            registry,
            events,
            gauges,
        }
    }
}

impl Metrics {
    pub fn request_started(&self) {
        self.events.started.inc();
    }

    pub fn request_finished(&self, completion: &Completion, took: Duration) {
        let outcome = crate::http::job::stop_reason(completion.stop_reason);
        self.events
            .ended
            .get_or_create(&[("outcome", outcome)])
            .inc();
        self.events
            .prompt_tokens
            .inc_by(u64::from(completion.tokens_in));
        self.events
            .first_token_seconds
            .observe(completion.first_token_after.as_secs_f64());
        self.events.request_seconds.observe(took.as_secs_f64());
    }

    pub fn request_failed(&self, code: &'static str) {
        self.events.ended.get_or_create(&[("outcome", code)]).inc();
    }

    /// The text of everything, as of now.
    #[must_use]
    pub fn render(&self, snapshot: &EngineSnapshot, model: Option<&LoadedModel>) -> String {
        self.gauges.set(snapshot, model);
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = encode(&mut text, &self.registry);
        text
    }
}

impl Events {
    fn register(registry: &mut Registry) -> Self {
        let events = Self {
            started: Counter::default(),
            ended: Family::default(),
            prompt_tokens: Counter::default(),
            first_token_seconds: Histogram::new(exponential_buckets(0.001, 2.0, 16)),
            request_seconds: Histogram::new(exponential_buckets(0.01, 2.0, 16)),
        };
        registry.register(
            "requests_started",
            "Requests accepted",
            events.started.clone(),
        );
        registry.register(
            "requests_ended",
            "By stop reason or error code",
            events.ended.clone(),
        );
        registry.register(
            "prompt_tokens",
            "Of finished requests",
            events.prompt_tokens.clone(),
        );
        registry.register_with_unit(
            "time_to_first_token",
            "From acceptance to the first token",
            Unit::Seconds,
            events.first_token_seconds.clone(),
        );
        registry.register_with_unit(
            "request_duration",
            "From acceptance to the end",
            Unit::Seconds,
            events.request_seconds.clone(),
        );
        events
    }
}

impl Gauges {
    fn register(registry: &mut Registry) -> Self {
        let gauges = Self::default();
        let own = registry.sub_registry_with_prefix("worker_orcd");
        own.register("up", "1 while requests are answered", gauges.up.clone());
        own.register(
            "requests_live",
            "Accepted and not ended",
            gauges.live.clone(),
        );
        own.register(
            "requests_running",
            "In the child's batch",
            gauges.running.clone(),
        );
        own.register(
            "requests_waiting",
            "Accepted, not in the batch",
            gauges.waiting.clone(),
        );
        own.register(
            "kv_used_ratio",
            "Of the KV cache",
            gauges.kv_used_ratio.clone(),
        );
        own.register(
            "tokens_per_second",
            "Lately",
            gauges.tokens_per_second.clone(),
        );
        own.register(
            "generated_tokens",
            "Accepted from children",
            gauges.tokens.clone(),
        );
        own.register(
            "prefix_hit_tokens",
            "Prompt tokens this child did not have to compute",
            gauges.prefix_hit_tokens.clone(),
        );
        own.register(
            "child_restarts",
            "Children after the first",
            gauges.restarts.clone(),
        );
        own.register(
            "recoveries",
            "Requests that went on elsewhere",
            gauges.recoveries.clone(),
        );
        own.register(
            "crash_reports",
            "Deaths that were reported",
            gauges.crash_reports.clone(),
        );
        own.register(
            "requests_on_probation",
            "Requests that must run alone now",
            gauges.on_probation.clone(),
        );
        own.register(
            "probations",
            "Requests that were in flight at two deaths at one step",
            gauges.probations.clone(),
        );
        own.register(
            "requests_quarantined",
            "Requests that ended as queries of death",
            gauges.quarantined.clone(),
        );
        own.register(
            "quarantined_fingerprints",
            "Refused now",
            gauges.quarantined_now.clone(),
        );
        own.register("child_deaths", "By cause", gauges.deaths.clone());
        gauges.gpu.register(own);
        let gateway = [
            ("vllm:num_requests_running", gauges.gateway_running.clone()),
            ("vllm:num_requests_waiting", gauges.gateway_waiting.clone()),
        ];
        for (name, gauge) in gateway {
            registry.register(name, "For the Gateway API inference extension", gauge);
        }
        registry.register(
            "vllm:kv_cache_usage_perc",
            "0 to 1, for the Gateway API inference extension",
            gauges.gateway_kv_used.clone(),
        );
        gauges
    }

    fn set(&self, snapshot: &EngineSnapshot, model: Option<&LoadedModel>) {
        let load = &snapshot.load;
        let (running, waiting, kv_used, prefix_hits) = match load.child {
            Some((gauges, _)) => (
                i64::from(gauges.running),
                i64::from(gauges.waiting),
                gauges.kv_used_tokens,
                gauges.prefix_hit_tokens,
            ),
            None => (0, 0, 0, 0),
        };
        let waiting = waiting + load.unassigned as i64;
        let capacity = model.map_or(0, |model| model.kv_capacity_tokens);
        let ratio = if capacity > 0 {
            kv_used as f64 / capacity as f64
        } else {
            0.0
        };
        self.up.set(i64::from(
            snapshot.status(Instant::now()) == Status::Healthy,
        ));
        self.live.set(load.live as i64);
        self.running.set(running);
        self.gateway_running.set(running);
        self.waiting.set(waiting);
        self.gateway_waiting.set(waiting);
        self.kv_used_ratio.set(ratio);
        self.gateway_kv_used.set(ratio);
        self.tokens_per_second.set(load.tokens_per_second);
        self.prefix_hit_tokens
            .set(i64::try_from(prefix_hits).unwrap_or(i64::MAX));
        self.tokens
            .inner()
            .store(load.tokens_total, Ordering::Relaxed);
        self.restarts
            .inner()
            .store(snapshot.faults.restarts, Ordering::Relaxed);
        self.recoveries
            .inner()
            .store(snapshot.faults.recoveries, Ordering::Relaxed);
        self.crash_reports
            .inner()
            .store(snapshot.faults.crash_reports, Ordering::Relaxed);
        let faults = &snapshot.faults;
        self.on_probation.set(faults.on_probation as i64);
        self.quarantined_now.set(faults.quarantined.len() as i64);
        self.probations
            .inner()
            .store(faults.probations, Ordering::Relaxed);
        self.quarantined
            .inner()
            .store(faults.quarantined_total, Ordering::Relaxed);
        self.gpu.set(snapshot, Instant::now());
        for (cause, count) in &snapshot.faults.deaths_by_cause {
            let deaths = self.deaths.get_or_create(&[("cause", *cause)]);
            deaths.inner().store(*count, Ordering::Relaxed);
        }
    }
}
