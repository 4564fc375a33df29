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

use events::Events;
use exposition::Format;
use figure::{Labels, Now, Taken};
use process::Process;
use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::registry::Registry;
use std::fmt;
use std::time::Instant;
use worker_orcd_engine::{EngineSnapshot, LoadedModel};

#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    pub(crate) events: Events,
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
        let whole = [(Labels::new(), now)];
        for (table, each) in [
            (gpu::FIGURES, gpu::each(&now).as_slice()),
            (gpu::SUMS, &whole),
            (figures::FIGURES, &whole),
            (families::FIGURES, &whole),
            (devices::FIGURES, &devices::each(&now)),
        ] {
            taken.register_collector(Box::new(Taken::of(table, each)));
        }
        let mut text = String::new();
        encode_registry(&mut text, &self.registry)?;
        encode_registry(&mut text, &taken)?;
        encode_eof(&mut text)?;
        Ok(text)
    }
}

#[cfg(test)]
mod tests;
