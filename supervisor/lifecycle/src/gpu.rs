//! Error reports of NVIDIA's driver about a device, and their consequences.
//!
//! [`xid`] maps error numbers to remedies. Newer drivers also return a recovery action (NVML field
//! `NVML_FI_DEV_GET_GPU_RECOVERY_ACTION`). It is queried after each death, and it decides wherever the table allows more
//! than one consequence.
//!
//! Deliberately absent: NVML calls. A [`GpuVerdict`] comes from the driver module of the supervisor. Without one the
//! state of the device is unknown, and an unknown state never takes a device out of service.

pub mod xid;

pub use xid::{Remedy, Xid};

use serde::{Deserialize, Serialize};
use std::fmt;
use strum::{IntoStaticStr, VariantArray};

/// Double-bit ECC error. Xid 94 beside it means that the error was contained in one process.
const DOUBLE_BIT: Xid = Xid(Some(48));
const CONTAINED: Xid = Xid(Some(94));

/// Recovery action that NVIDIA's driver requests for a device (`NVML_GPU_RECOVERY_ACTION_*` of nvml.h).
#[derive(Debug, Clone, Copy, PartialEq, Eq, IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum RecoveryAction {
    None,
    GpuReset,
    NodeReboot,
    /// Peer-to-peer traffic must end first. Children have none.
    #[strum(serialize = "drain_p2p")]
    DrainPeers,
    /// The device works with reduced resources until a reset.
    DrainAndReset,
    /// Number that is not in this table.
    Unlisted(u32),
}

impl RecoveryAction {
    /// Maps a value of `NVML_GPU_RECOVERY_ACTION_*`.
    #[must_use]
    pub fn of_number(number: u32) -> Self {
        match number {
            0 => Self::None,
            1 => Self::GpuReset,
            2 => Self::NodeReboot,
            3 => Self::DrainPeers,
            4 => Self::DrainAndReset,
            other => Self::Unlisted(other),
        }
    }

    /// Stable name for `/health` and metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// Report of NVIDIA's driver about a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GpuVerdict {
    /// The driver reported this error just now, with or without a running child.
    Reported(Xid),
    /// Errors around a child's death, and the recovery action after it. `action` is `None` if the driver did not answer
    /// in time.
    AfterDeath {
        xids: Vec<Xid>,
        action: Option<RecoveryAction>,
    },
}

/// Decision that a device cannot serve until it is repaired.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Condemnation {
    pub need: Need,
    /// Source of the decision, for the operator.
    pub because: String,
}

/// Repair that a device needs. The names are death labels.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, IntoStaticStr, VariantArray, Serialize, Deserialize,
)]
pub enum Need {
    #[strum(serialize = "gpu_needs_reset")]
    GpuReset,
    #[strum(serialize = "node_needs_reboot")]
    NodeReboot,
}

impl GpuVerdict {
    /// Decision from this report. `None`: children may continue and restart on the device.
    #[must_use]
    pub fn condemns(&self) -> Option<Condemnation> {
        match self {
            Self::Reported(xid) => condemned_by(&[*xid], Remedy::ResetGpu),
            Self::AfterDeath { xids, action } => match action {
                Some(RecoveryAction::NodeReboot) => Some(requested(Need::NodeReboot, xids)),
                Some(RecoveryAction::GpuReset) => Some(requested(Need::GpuReset, xids)),
                Some(
                    RecoveryAction::None
                    | RecoveryAction::DrainPeers
                    | RecoveryAction::DrainAndReset,
                ) => condemned_by(xids, Remedy::ResetGpu),
                Some(RecoveryAction::Unlisted(_)) | None => {
                    condemned_by(xids, Remedy::ResetUnlessCleared)
                }
            },
        }
    }
}

/// Decision by the most severe Xid, if its remedy is at least `threshold`.
fn condemned_by(xids: &[Xid], threshold: Remedy) -> Option<Condemnation> {
    let contained = xids.contains(&CONTAINED);
    let worst = xids
        .iter()
        .filter(|xid| !(contained && **xid == DOUBLE_BIT))
        .max_by_key(|xid| xid.remedy())?;
    let remedy = worst.remedy();
    let need = match remedy {
        Remedy::Nothing | Remedy::RestartChild => return None,
        Remedy::ResetUnlessCleared | Remedy::ResetGpu => Need::GpuReset,
        Remedy::RebootNode => Need::NodeReboot,
    };
    let because = format!("the driver reported {worst}");
    (remedy >= threshold).then_some(Condemnation { need, because })
}

/// Decision by the driver's recovery action.
fn requested(need: Need, xids: &[Xid]) -> Condemnation {
    let because = match xids.iter().max_by_key(|xid| xid.remedy()) {
        Some(worst) => format!("the driver requires it, after {worst}"),
        None => "the driver requires it".to_owned(),
    };
    Condemnation { need, because }
}

impl fmt::Display for Condemnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let need = match self.need {
            Need::GpuReset => "the GPU needs a reset before it can serve again",
            Need::NodeReboot => "the node needs a reboot before its GPU can serve again",
        };
        write!(f, "{need}: {}", self.because)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn xid(number: u32) -> Xid {
        Xid(Some(number))
    }

    fn after(xids: &[u32], action: Option<RecoveryAction>) -> Option<Need> {
        let xids = xids.iter().copied().map(xid).collect();
        let gpu_verdict = GpuVerdict::AfterDeath { xids, action };
        gpu_verdict.condemns().map(|condemnation| condemnation.need)
    }

    #[test]
    fn only_an_xid_that_requires_a_reset_or_reboot_condemns_a_running_child() {
        let need = |number| {
            GpuVerdict::Reported(xid(number))
                .condemns()
                .map(|it| it.need)
        };
        assert_eq!(need(95), Some(Need::GpuReset));
        assert_eq!(need(79), Some(Need::NodeReboot));
        for number in [13, 31, 48, 63, 64, 74, 94, 154, 500] {
            assert_eq!(need(number), None, "{number}");
        }
    }

    #[test]
    fn after_a_death_the_recovery_action_decides_where_the_table_allows_both() {
        assert_eq!(
            after(&[74], None),
            Some(Need::GpuReset),
            "no recovery action"
        );
        let unlisted = Some(RecoveryAction::of_number(9));
        assert_eq!(after(&[74], unlisted), Some(Need::GpuReset));
        for number in [0, 3, 4] {
            let cleared = Some(RecoveryAction::of_number(number));
            assert_eq!(after(&[74], cleared), None, "action {number}");
            assert_eq!(after(&[95], cleared), Some(Need::GpuReset));
        }
        let (reset, reboot) = (
            Some(RecoveryAction::of_number(1)),
            Some(RecoveryAction::of_number(2)),
        );
        assert_eq!(after(&[], reset), Some(Need::GpuReset));
        assert_eq!(after(&[31], reset), Some(Need::GpuReset));
        assert_eq!(after(&[95], reboot), Some(Need::NodeReboot));
        assert_eq!(after(&[31, 45], None), None);
        assert_eq!(after(&[], None), None, "unknown condemns nothing");
    }

    #[test]
    fn a_contained_double_bit_error_ends_only_its_child() {
        assert_eq!(after(&[48], None), Some(Need::GpuReset));
        assert_eq!(after(&[48, 63, 94], None), None);
        assert_eq!(after(&[48, 94, 95], None), Some(Need::GpuReset));
        assert_eq!(after(&[48, 64, 94], None), Some(Need::GpuReset));
    }

    #[test]
    fn a_condemnation_is_a_sentence() {
        let text = |gpu_verdict: GpuVerdict| gpu_verdict.condemns().unwrap().to_string();
        assert_eq!(
            text(GpuVerdict::Reported(xid(79))),
            "the node needs a reboot before its GPU can serve again: the driver reported Xid 79 \
             (GPU has fallen off the bus)"
        );
        let gpu_verdict = GpuVerdict::AfterDeath {
            xids: vec![xid(31), xid(154)],
            action: Some(RecoveryAction::GpuReset),
        };
        assert_eq!(
            text(gpu_verdict),
            "the GPU needs a reset before it can serve again: the driver requires it, after Xid \
             31 (GPU memory page fault)"
        );
    }
}
