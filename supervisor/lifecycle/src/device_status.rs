//! Status of one device of a worker: in use, or out of service with a reason.

use crate::gpu::Condemnation;
use crate::restart_policy::WorkerFailure;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;

/// Status of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeviceStatus {
    InUse,
    /// The device gets no further child, but has a process left.
    Leaving {
        since: Duration,
        reason: OutOfServiceReason,
    },
    /// The device has no process left.
    Out {
        since: Duration,
        reason: OutOfServiceReason,
    },
}

/// Reason for which a device is out of service. It is part of the handoff state of an upgrade.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum OutOfServiceReason {
    /// Children died without progress, a cause of death was permanent, or a process survived SIGKILL.
    Failed(WorkerFailure),
    /// NVIDIA's driver requires a reset or a reboot.
    Condemned(Condemnation),
    /// The operator has drained it.
    Withdrawn,
}

impl DeviceStatus {
    /// All values of [`DeviceStatus::name`].
    pub const NAMES: [&'static str; 5] = ["in_use", "draining", "drained", "failed", "condemned"];

    /// Stable name for `/health`, metrics and logs.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match (self, self.reason()) {
            (_, None) => "in_use",
            (Self::Leaving { .. }, Some(OutOfServiceReason::Withdrawn)) => "draining",
            (_, Some(reason)) => reason.name(),
        }
    }

    #[must_use]
    pub fn reason(&self) -> Option<&OutOfServiceReason> {
        match self {
            Self::InUse => None,
            Self::Leaving { reason, .. } | Self::Out { reason, .. } => Some(reason),
        }
    }

    /// Time at which the device entered this status. `None` while it is in use.
    #[must_use]
    pub fn since(&self) -> Option<Duration> {
        match self {
            Self::InUse => None,
            Self::Leaving { since, .. } | Self::Out { since, .. } => Some(*since),
        }
    }

    #[must_use]
    pub fn is_in_use(&self) -> bool {
        *self == Self::InUse
    }

    #[must_use]
    pub fn is_out(&self) -> bool {
        matches!(self, Self::Out { .. })
    }

    pub(crate) fn is_condemned(&self) -> bool {
        matches!(self.reason(), Some(OutOfServiceReason::Condemned(_)))
    }
}

impl OutOfServiceReason {
    /// Stable name for `/health`, metrics and logs.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Failed(_) => "failed",
            Self::Condemned(_) => "condemned",
            Self::Withdrawn => "drained",
        }
    }

    /// Failure of the worker if no other device is in use. `None` for a withdrawn device.
    #[must_use]
    pub fn failure(&self) -> Option<WorkerFailure> {
        match self {
            Self::Failed(failure) => Some(failure.clone()),
            Self::Condemned(condemnation) => Some(condemnation.clone().into()),
            Self::Withdrawn => None,
        }
    }
}

impl fmt::Display for OutOfServiceReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(failure) => f.write_str(&failure.reason),
            Self::Condemned(condemnation) => condemnation.fmt(f),
            Self::Withdrawn => f.write_str("the operator has drained it"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::Need;
    use std::collections::BTreeSet;

    #[test]
    fn the_names_are_a_closed_set() {
        let because = String::new();
        let need = Need::GpuReset;
        let condemnation = Condemnation { need, because };
        let failure = WorkerFailure::from(condemnation.clone());
        let since = Duration::ZERO;
        let reasons = [
            OutOfServiceReason::Failed(failure),
            OutOfServiceReason::Condemned(condemnation),
            OutOfServiceReason::Withdrawn,
        ];
        let each = reasons.into_iter().flat_map(|reason| {
            let leaving = reason.clone();
            let leaving = DeviceStatus::Leaving {
                since,
                reason: leaving,
            };
            [leaving, DeviceStatus::Out { since, reason }]
        });
        let names: BTreeSet<_> = each
            .chain([DeviceStatus::InUse])
            .map(|it| it.name())
            .collect();
        assert_eq!(names, BTreeSet::from(DeviceStatus::NAMES));
    }
}
