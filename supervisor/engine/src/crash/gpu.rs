//! GPU part of a crash report: Xids, memory and recovery action, from NVML.

use crate::crash::report::{milliseconds, milliseconds_between};
use crate::nvml::SeenXid;
use crate::nvml::reckoning::Measure;
use serde::Serialize;
use std::time::Instant;
use worker_orcd_lifecycle::RecoveryAction;
use worker_orcd_text::calendar::rfc3339;

/// Evidence of the GPU monitor. `None` is unknown, perhaps only so far.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct GpuEvidence {
    pub uuid: Option<String>,
    /// Xids since the child's start, oldest first.
    pub xids: Vec<SeenXid>,
    /// Last memory sample of the child's life.
    pub before: Option<MemoryBefore>,
    pub baseline: Option<u64>,
    pub ecc_uncorrected: Option<u64>,
    pub action: Option<RecoveryAction>,
    /// Time limit for the recovery action.
    pub action_due: Option<Instant>,
    pub measure: Option<Measure>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct MemoryBefore {
    /// Bytes of the child alone.
    pub child: Option<u64>,
    pub used: u64,
    pub total: u64,
    pub at: Instant,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct GpuFacts {
    uuid: Option<String>,
    xids: Vec<XidFacts>,
    memory_before: Option<MemoryFacts>,
    /// Bytes in use before the first child that belong to no process.
    baseline_bytes: Option<u64>,
    /// Bytes above the baseline at the last sample.
    residual_bytes: Option<u64>,
    /// Time from the reaping. `null` with a residual: the memory was not freed in time.
    freed_after_ms: Option<f64>,
    ecc_uncorrected: Option<u64>,
    recovery_action: Option<&'static str>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
struct XidFacts {
    /// Number of the Xid. `null`: NVML reported none.
    xid: Option<u32>,
    description: Option<&'static str>,
    remedy: &'static str,
    at: String,
    /// Time on the clock of the kernel's log.
    kernel_seconds: Option<f64>,
    /// Time since the death was noticed, negative before it.
    ms: f64,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
struct MemoryFacts {
    /// Bytes of the child by NVIDIA's driver. `memory` has the child's own report.
    child_bytes: Option<u64>,
    used_bytes: u64,
    total_bytes: u64,
    ms: f64,
}

impl GpuFacts {
    #[must_use]
    pub(crate) fn new(evidence: &GpuEvidence, noticed_at: Instant) -> Self {
        let measure = evidence.measure.unwrap_or_default();
        Self {
            uuid: evidence.uuid.clone(),
            xids: evidence
                .xids
                .iter()
                .map(|seen| xid_facts(seen, noticed_at))
                .collect(),
            memory_before: evidence.before.map(|before| MemoryFacts {
                child_bytes: before.child,
                used_bytes: before.used,
                total_bytes: before.total,
                ms: milliseconds_between(noticed_at, before.at),
            }),
            baseline_bytes: evidence.baseline,
            residual_bytes: measure.residual,
            freed_after_ms: measure.freed_after.map(milliseconds),
            ecc_uncorrected: evidence.ecc_uncorrected,
            recovery_action: evidence.action.map(RecoveryAction::name),
        }
    }
}

fn xid_facts(seen: &SeenXid, noticed_at: Instant) -> XidFacts {
    XidFacts {
        xid: seen.xid.0,
        description: seen.xid.description(),
        remedy: seen.xid.remedy().name(),
        at: rfc3339(seen.wall),
        kernel_seconds: seen.kernel.map(|kernel| milliseconds(kernel) / 1000.0),
        ms: milliseconds_between(noticed_at, seen.at),
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::disallowed_methods, reason = "a test begins at some moment")]

    use super::*;
    use serde_json::json;
    use std::time::{Duration, SystemTime};
    use worker_orcd_lifecycle::Xid;

    #[test]
    fn a_page_fault_reads_like_this() {
        let noticed_at = Instant::now() + Duration::from_secs(10);
        let at = |ms| noticed_at - Duration::from_millis(ms);
        let evidence = GpuEvidence {
            uuid: Some("GPU-1".to_owned()),
            xids: vec![SeenXid {
                xid: Xid(Some(31)),
                at: at(140),
                wall: SystemTime::UNIX_EPOCH + Duration::from_millis(1500),
                kernel: Some(Duration::from_millis(61_250)),
            }],
            before: Some(MemoryBefore {
                child: Some(600),
                used: 700,
                total: 1000,
                at: at(500),
            }),
            baseline: Some(4),
            ecc_uncorrected: Some(0),
            action: Some(RecoveryAction::None),
            action_due: None,
            measure: Some(Measure {
                freed_after: Some(Duration::from_micros(18_500)),
                residual: Some(0),
            }),
        };
        let facts = serde_json::to_value(GpuFacts::new(&evidence, noticed_at)).unwrap();
        let expected = json!({
            "uuid": "GPU-1",
            "xids": [{
                "xid": 31, "description": "GPU memory page fault", "remedy": "restart_child",
                "at": "1970-01-01T00:00:01.500Z", "kernel_seconds": 61.25, "ms": -140.0,
            }],
            "memory_before": {
                "child_bytes": 600, "used_bytes": 700, "total_bytes": 1000, "ms": -500.0,
            },
            "baseline_bytes": 4,
            "residual_bytes": 0,
            "freed_after_ms": 18.5,
            "ecc_uncorrected": 0,
            "recovery_action": "none",
        });
        assert_eq!(facts, expected);
    }

    #[test]
    fn what_nobody_saw_is_null() {
        let facts = GpuFacts::new(&GpuEvidence::default(), Instant::now());
        let facts = serde_json::to_value(facts).unwrap();
        for (field, value) in facts.as_object().unwrap() {
            let expected = if field == "xids" {
                json!([])
            } else {
                json!(null)
            };
            assert_eq!(*value, expected, "{field}");
        }
    }
}
