//! `GET /metrics`: Prometheus text, in either format.
//!
//! * [`events`]: counters of HTTP events. Every outcome and code starts at zero, so that the first increment is
//!   visible.
//! * [`figures`]: table of the engine's snapshot. [`gpu`]: table of NVIDIA's driver. Both are read at each scrape.
//!   [`figure`]: a row. [`devices`]: one line for each device. [`families`]: other labels and buckets. [`process`]: the
//!   kernel's figures of both processes.
//! * [`exposition`]: output format that the client accepts.
//!
//! An unknown figure has no line: zero would be a measurement. Beside the worker's own names there are the three gauges
//! that the Kubernetes Gateway API inference extension expects of model servers, under vLLM's names, its default.

#![expect(
    clippy::disallowed_methods,
    reason = "gauges are those at the time of the request"
)]

mod devices;
mod events;
pub(crate) mod exposition;
mod families;
mod figure;
mod figures;
mod gpu;
mod process;

use devices::TakenOfDevices;
use events::Events;
use exposition::Format;
use families::Taken;
use figure::Now;
use gpu::TakenOfGpu;
use process::Process;
use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::registry::Registry;
use std::fmt;
use std::time::{Duration, Instant};
use worker_orcd_engine::{EngineSnapshot, LoadedModel};
use worker_orcd_requests::Completion;

#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    events: Events,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::default();
        let own = registry.sub_registry_with_prefix("worker_orcd");
        let events = Events::register(own);
        Self { registry, events }
    }
}

impl Metrics {
    /// Counts an admitted request.
    pub fn request_started(&self) {
        self.events.started();
    }

    pub fn request_finished(&self, completion: &Completion, took: Duration) {
        self.events.finished(completion, took);
    }

    /// Counts a completed embedding request.
    pub fn request_embedded(&self, tokens_in: u32, queued_for: Option<Duration>, took: Duration) {
        self.events.embedded(tokens_in, queued_for, took);
    }

    /// Counts an admitted request that failed.
    pub fn request_failed(&self, code: &'static str) {
        self.events.failed(code);
    }

    /// Counts a refused request.
    pub fn request_refused(&self, code: &'static str) {
        self.events.refused(code);
    }

    /// Text of all metrics.
    #[must_use]
    pub fn render(
        &self,
        snapshot: &EngineSnapshot,
        live: usize,
        model: Option<&LoadedModel>,
        format: Format,
    ) -> String {
        // Writing to a string does not fail.
        let text = self.openmetrics(snapshot, live, model).unwrap_or_default();
        match format {
            Format::OpenMetrics => text,
            Format::Classic => exposition::classic(&text),
        }
    }

    fn openmetrics(
        &self,
        snapshot: &EngineSnapshot,
        live: usize,
        model: Option<&LoadedModel>,
    ) -> Result<String, fmt::Error> {
        let at = Instant::now();
        let now = Now {
            snapshot,
            device: snapshot.device(),
            live,
            model,
            at,
            supervisor: Process::own(),
            child: snapshot.child().and_then(|it| Process::of(it.pid)),
        };
        let mut taken = Registry::default();
        taken.register_collector(Box::new(TakenOfGpu::at(&now)));
        taken.register_collector(Box::new(Taken::at(&now)));
        taken.register_collector(Box::new(TakenOfDevices::at(&now)));
        let mut text = String::new();
        encode_registry(&mut text, &self.registry)?;
        encode_registry(&mut text, &taken)?;
        encode_eof(&mut text)?;
        Ok(text)
    }
}

#[cfg(test)]
mod tests;
