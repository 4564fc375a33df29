//! `GET /metrics`: Prometheus text, in either of its forms.
//!
//! * [`events`] are counted by HTTP as they happen; every outcome and code is there from the
//!   start, at zero, so that its first rise is a rise.
//! * [`figures`] is the table of what the engine's snapshot knows, and [`gpu`] the table of what
//!   NVIDIA's driver says, both read when somebody looks; a row is a [`figure`]. [`devices`] has a line for
//!   each device, [`families`] what has other labels or buckets. [`process`] is what the kernel says of both processes.
//! * [`exposition`] turns the text into what the reader asked for.
//!
//! What is unknown has no line: a zero would be taken for a measurement. Beside our own names there
//! are the three gauges that the Kubernetes Gateway API inference extension asks of model servers,
//! under vLLM's names, which are its default.

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

use crate::engine::{Completion, EngineSnapshot, LoadedModel};
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
    /// Counts a request that was let in.
    pub fn request_started(&self) {
        self.events.started();
    }

    pub fn request_finished(&self, completion: &Completion, took: Duration) {
        self.events.finished(completion, took);
    }

    /// Counts a request whose tokens became a vector.
    pub fn request_embedded(&self, tokens_in: u32, queued_for: Option<Duration>, took: Duration) {
        self.events.embedded(tokens_in, queued_for, took);
    }

    /// Counts a request that was let in and ended without an answer.
    pub fn request_failed(&self, code: &'static str) {
        self.events.failed(code);
    }

    /// Counts a request that was not let in.
    pub fn request_refused(&self, code: &'static str) {
        self.events.refused(code);
    }

    /// The text of everything, as of now.
    #[must_use]
    pub fn render(
        &self,
        snapshot: &EngineSnapshot,
        live: usize,
        model: Option<&LoadedModel>,
        format: Format,
    ) -> String {
        // Of a string, to which writing does not fail.
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
