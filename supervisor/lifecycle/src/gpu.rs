//! Words of NVIDIA's driver about the device, and what follows from them.
//!
//! [`xid`] is the table of errors that it reports. Newer drivers keep a recovery action of their
//! own as well. It is asked for after each death, and is believed more than the table wherever the
//! table leaves room.
//!
//! Deliberately absent: asking that driver. [`Testimony`] comes from outside, or never: no word
//! means unknown, and what is unknown condemns nothing.

pub mod xid;

pub use xid::{Remedy, Xid};

use serde::{Deserialize, Serialize};
use std::fmt;
use strum::{IntoStaticStr, VariantArray};

/// A double bit error, and the word that it harmed one process only.
const DOUBLE_BIT: Xid = Xid(Some(48));
const CONTAINED: Xid = Xid(Some(94));

/// The need of the device, in the word of NVIDIA's driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecoveryAction {
    None,
    GpuReset,
    NodeReboot,
    /// Traffic between devices must end first. A child of ours has none.
    DrainPeers,
    /// The device computes on with less than it had; a reset gives the rest back.
    DrainAndReset,
    /// A number that this release does not know.
    Unlisted(u32),
}

impl RecoveryAction {
    /// `NVML_GPU_RECOVERY_ACTION_*`.
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

    /// A stable word for /health and metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::GpuReset => "gpu_reset",
            Self::NodeReboot => "node_reboot",
            Self::DrainPeers => "drain_p2p",
            Self::DrainAndReset => "drain_and_reset",
            Self::Unlisted(_) => "unlisted",
        }
    }
}

/// The word of a witness of the device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Testimony {
    /// NVIDIA's driver has just reported this, whether or not a child lives.
    Reported(Xid),
    /// The word after a death: what NVIDIA's driver reported around it, and what it asks for since
    /// then. `None` when it did not answer in time.
    AfterDeath {
        xids: Vec<Xid>,
        action: Option<RecoveryAction>,
    },
}

/// Nothing more can be served on this device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Condemnation {
    pub need: Need,
    /// The reason in words: who says so.
    pub because: String,
}

/// The mend that the device needs; the words are the labels of a death.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, IntoStaticStr, VariantArray, Serialize, Deserialize,
)]
pub enum Need {
    #[strum(serialize = "gpu_needs_reset")]
    GpuReset,
    #[strum(serialize = "node_needs_reboot")]
    NodeReboot,
}

impl Testimony {
    /// `None` when a child may go on, or the next one be tried.
    #[must_use]
    pub fn condemns(&self) -> Option<Condemnation> {
        match self {
            Self::Reported(xid) => condemned_by(&[*xid], Remedy::ResetGpu),
            Self::AfterDeath { xids, action } => match action {
                Some(RecoveryAction::NodeReboot) => Some(asked(Need::NodeReboot, xids)),
                Some(RecoveryAction::GpuReset) => Some(asked(Need::GpuReset, xids)),
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

/// The sentence by the worst Xid, if it is at least as bad as `threshold`.
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

fn asked(need: Need, xids: &[Xid]) -> Condemnation {
    let because = match xids.iter().max_by_key(|xid| xid.remedy()) {
        Some(worst) => format!("the driver asks for it, after {worst}"),
        None => "the driver asks for it".to_owned(),
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
        let testimony = Testimony::AfterDeath { xids, action };
        testimony.condemns().map(|condemnation| condemnation.need)
    }

    #[test]
    fn only_what_nobody_can_compute_with_condemns_the_living() {
        let need = |number| {
            Testimony::Reported(xid(number))
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
    fn after_a_death_the_driver_s_own_word_decides_what_the_table_leaves_open() {
        assert_eq!(after(&[74], None), Some(Need::GpuReset), "no word");
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
    fn a_double_bit_error_that_was_contained_costs_one_child() {
        assert_eq!(after(&[48], None), Some(Need::GpuReset));
        assert_eq!(after(&[48, 63, 94], None), None);
        assert_eq!(after(&[48, 94, 95], None), Some(Need::GpuReset));
        assert_eq!(after(&[48, 64, 94], None), Some(Need::GpuReset));
    }

    #[test]
    fn a_condemnation_reads_like_a_sentence() {
        let said = |testimony: Testimony| testimony.condemns().unwrap().to_string();
        assert_eq!(
            said(Testimony::Reported(xid(79))),
            "the node needs a reboot before its GPU can serve again: the driver reported Xid 79 \
             (GPU has fallen off the bus)"
        );
        let testimony = Testimony::AfterDeath {
            xids: vec![xid(31), xid(154)],
            action: Some(RecoveryAction::GpuReset),
        };
        assert_eq!(
            said(testimony),
            "the GPU needs a reset before it can serve again: the driver asks for it, after Xid \
             31 (GPU memory page fault)"
        );
    }
}
