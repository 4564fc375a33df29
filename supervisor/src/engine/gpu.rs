//! Observations of the GPU's witness, for /health and /metrics.

use crate::nvml::SILENT_AFTER;
use crate::nvml::SeenXid;
use crate::nvml::library::{Gauges, Identity};
use crate::nvml::reckoning::Measure;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use worker_orcd_lifecycle::Xid;

#[derive(Debug, Clone, Default)]
pub struct GpuSnapshot {
    pub nvml: Nvml,
    pub identity: Option<Identity>,
    /// The last figures, and when they were taken. Ask [`Self::gauges`].
    pub taken: Option<(Gauges, Instant)>,
    /// Why Xids cannot be heard.
    pub deaf: Option<String>,
    pub last_xid: Option<SeenXid>,
    pub xids: BTreeMap<Xid, u64>,
    /// Memory of no process, before the first child.
    pub baseline: Option<u64>,
    /// Memory after the last death that was measured.
    pub last_measure: Option<Measure>,
}

/// State of NVIDIA's library.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Nvml {
    /// The device is none of NVIDIA's, so nobody looked.
    #[default]
    Off,
    Opening {
        since: Instant,
    },
    Watching,
    Absent {
        reason: String,
    },
}

impl GpuSnapshot {
    /// Figures that are not too old to be called known.
    #[must_use]
    pub fn gauges(&self, now: Instant) -> Option<(&Gauges, Instant)> {
        let (gauges, taken_at) = self.taken.as_ref()?;
        let is_watching = self.nvml == Nvml::Watching;
        (is_watching && age(now, *taken_at) < SILENT_AFTER).then_some((gauges, *taken_at))
    }

    /// A stable word for /health, and why, where there is a reason.
    #[must_use]
    pub fn state(&self, now: Instant) -> (&'static str, Option<String>) {
        let silent = |since: Instant| {
            let silence = age(now, since);
            let reason = format!(
                "NVML has not answered for {} s: the device or its driver may be wedged",
                silence.as_secs()
            );
            (silence >= SILENT_AFTER).then_some(("silent", Some(reason)))
        };
        match &self.nvml {
            Nvml::Off => ("off", None),
            Nvml::Opening { since } => silent(*since).unwrap_or(("opening", None)),
            Nvml::Watching => {
                let taken = self.taken.as_ref().map(|(_, taken_at)| *taken_at);
                let deaf = self
                    .deaf
                    .as_ref()
                    .map(|reason| format!("Xids cannot be heard: {reason}"));
                taken.and_then(silent).unwrap_or(("watching", deaf))
            }
            Nvml::Absent { reason } => ("absent", Some(reason.clone())),
        }
    }
}

fn age(now: Instant, moment: Instant) -> Duration {
    now.saturating_duration_since(moment)
}

#[cfg(test)]
mod tests {
    #![expect(clippy::disallowed_methods, reason = "a test begins at some moment")]

    use super::*;

    #[test]
    fn what_was_not_seen_lately_is_unknown_and_that_is_said() {
        let start = Instant::now();
        let mut gpu = GpuSnapshot::default();
        assert_eq!(gpu.state(start), ("off", None));
        gpu.nvml = Nvml::Opening { since: start };
        assert_eq!(gpu.state(start), ("opening", None));
        assert_eq!(gpu.state(start + SILENT_AFTER).0, "silent");
        gpu.nvml = Nvml::Watching;
        gpu.taken = Some((Gauges::default(), start));
        assert_eq!(gpu.state(start), ("watching", None));
        assert!(gpu.gauges(start).is_some());
        assert!(gpu.gauges(start + SILENT_AFTER).is_none());
        let (state, reason) = gpu.state(start + SILENT_AFTER);
        assert_eq!(state, "silent");
        assert!(reason.unwrap().contains("not answered for 5 s"));
        gpu.nvml = Nvml::Absent {
            reason: "no library".to_owned(),
        };
        let absent = ("absent", Some("no library".to_owned()));
        assert_eq!(gpu.state(start), absent);
        assert!(gpu.gauges(start).is_none());
    }
}
