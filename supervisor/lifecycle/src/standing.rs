//! The standing of one device among those of a worker: in use, or out of use and why.

use crate::gpu::Condemnation;
use crate::restart_policy::WorkerFailure;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;

/// Whether a device is in use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    InUse,
    /// The device gets no further child, and the last one is not gone yet.
    Leaving {
        since: Duration,
        absence: Absence,
    },
    /// No child is left.
    Out {
        since: Duration,
        absence: Absence,
    },
}

/// Why a device is not in use. Told to a supervisor that goes on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Absence {
    /// Children could not be kept alive on it.
    Failed(WorkerFailure),
    /// NVIDIA's driver calls it unfit.
    Condemned(Condemnation),
    /// The operator has it drained.
    Withdrawn,
}

impl Standing {
    /// Every word that [`Standing::name`] has.
    pub const NAMES: [&'static str; 5] = ["in_use", "draining", "drained", "failed", "condemned"];

    /// A stable word for /health, metrics and logs.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match (self, self.absence()) {
            (_, None) => "in_use",
            (Self::Leaving { .. }, Some(Absence::Withdrawn)) => "draining",
            (_, Some(absence)) => absence.name(),
        }
    }

    #[must_use]
    pub fn absence(&self) -> Option<&Absence> {
        match self {
            Self::InUse => None,
            Self::Leaving { absence, .. } | Self::Out { absence, .. } => Some(absence),
        }
    }

    /// Since when it is not in use any more, or out.
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
        matches!(self.absence(), Some(Absence::Condemned(_)))
    }
}

impl Absence {
    /// A stable word for /health, metrics and logs.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Failed(_) => "failed",
            Self::Condemned(_) => "condemned",
            Self::Withdrawn => "drained",
        }
    }

    /// The worker's failure, where no other device is left.
    #[must_use]
    pub fn failure(&self) -> Option<WorkerFailure> {
        match self {
            Self::Failed(failure) => Some(failure.clone()),
            Self::Condemned(condemnation) => Some(condemnation.clone().into()),
            Self::Withdrawn => None,
        }
    }
}

impl fmt::Display for Absence {
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
    fn the_words_are_a_closed_set() {
        let because = String::new();
        let need = Need::GpuReset;
        let condemnation = Condemnation { need, because };
        let failure = WorkerFailure::from(condemnation.clone());
        let since = Duration::ZERO;
        let absences = [
            Absence::Failed(failure),
            Absence::Condemned(condemnation),
            Absence::Withdrawn,
        ];
        let each = absences.into_iter().flat_map(|absence| {
            let leaving = absence.clone();
            let leaving = Standing::Leaving {
                since,
                absence: leaving,
            };
            [leaving, Standing::Out { since, absence }]
        });
        let said: BTreeSet<_> = each.chain([Standing::InUse]).map(|it| it.name()).collect();
        assert_eq!(said, BTreeSet::from(Standing::NAMES));
    }
}
