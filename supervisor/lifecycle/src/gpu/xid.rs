//! Table of Xids and their remedies.
//!
//! An Xid is the number of an error that NVIDIA's driver reports. [`CATALOG`] follows the column "immediate action" of
//! NVIDIA's catalog (docs.nvidia.com/deploy/xid-errors, state of October 2025, columns of A100 to GB200). It differs for
//! three Xids. Xids 43 and 45 (catalog: ignore, or look at other errors) also occur when a child's process is torn down,
//! so they are attributed to the child. Xid 109 (catalog: reset) is an application error in NVIDIA's Kubernetes device
//! plugin; if it is more severe, the driver's recovery action requests a reset.

use std::fmt;
use std::ops::RangeInclusive;

/// Number of an error of NVIDIA's driver. `None`: NVML reported an error without a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Xid(pub Option<u32>);

/// Remedy of an Xid, by ascending severity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum Remedy {
    /// No action: the Xid concerns neither this child nor the next one.
    Nothing,
    /// The error belongs to, or is contained in, the process. Another child may start immediately.
    RestartChild,
    /// The catalog requests a reset, but the device may work. Takes effect at the next death, unless the recovery action
    /// requests no reset.
    ResetUnlessCleared,
    /// Results of the device are not trustworthy until a reset.
    ResetGpu,
    /// A reset is not sufficient; the node needs a reboot.
    RebootNode,
}

/// Numbers, remedy, and the catalog's description; ascending, without overlaps. Other numbers have [`Remedy::Nothing`].
pub const CATALOG: [(RangeInclusive<u32>, Remedy, &str); 51] = [
    (8..=8, Remedy::RestartChild, "GPU stopped processing"),
    (11..=11, Remedy::RestartChild, "invalid push buffer stream"),
    (13..=13, Remedy::RestartChild, "graphics engine exception"),
    (25..=25, Remedy::RestartChild, "illegal push buffer stream"),
    (31..=31, Remedy::RestartChild, "GPU memory page fault"),
    (
        32..=32,
        Remedy::RestartChild,
        "corrupted push buffer stream",
    ),
    (37..=38, Remedy::Nothing, "driver firmware error"),
    (39..=41, Remedy::RestartChild, "copy engine exception"),
    (43..=43, Remedy::RestartChild, "GPU stopped processing"),
    (44..=44, Remedy::Nothing, "fault during a context switch"),
    (45..=45, Remedy::RestartChild, "preemptive cleanup"),
    (46..=46, Remedy::ResetGpu, "GPU stopped processing"),
    (48..=48, Remedy::ResetUnlessCleared, "double bit ECC error"),
    (60..=60, Remedy::RestartChild, "video processor exception"),
    (62..=62, Remedy::ResetGpu, "internal micro-controller halt"),
    (63..=63, Remedy::Nothing, "GPU memory row remapped"),
    (
        64..=64,
        Remedy::ResetUnlessCleared,
        "GPU memory remapping failure",
    ),
    (66..=67, Remedy::Nothing, "illegal access by the driver"),
    (68..=68, Remedy::RestartChild, "video decoder exception"),
    (69..=69, Remedy::RestartChild, "graphics engine class error"),
    (70..=72, Remedy::RestartChild, "copy engine error"),
    (74..=74, Remedy::ResetUnlessCleared, "NVLink error"),
    (75..=77, Remedy::RestartChild, "copy engine error"),
    (79..=79, Remedy::RebootNode, "GPU has fallen off the bus"),
    (
        80..=80,
        Remedy::RestartChild,
        "corrupted data sent to the GPU",
    ),
    (82..=86, Remedy::RestartChild, "media or copy engine error"),
    (88..=89, Remedy::RestartChild, "video decoder error"),
    (92..=92, Remedy::Nothing, "high single-bit ECC error rate"),
    (94..=94, Remedy::RestartChild, "contained memory error"),
    (95..=95, Remedy::ResetGpu, "uncontained memory error"),
    (96..=105, Remedy::RestartChild, "media engine error"),
    (109..=109, Remedy::RestartChild, "context switch timeout"),
    (110..=110, Remedy::ResetGpu, "security fault"),
    (119..=119, Remedy::ResetGpu, "GSP RPC timeout"),
    (120..=120, Remedy::ResetGpu, "GSP error"),
    (121..=121, Remedy::Nothing, "C2C error"),
    (126..=135, Remedy::RestartChild, "copy engine error"),
    (
        136..=136,
        Remedy::ResetUnlessCleared,
        "link training failed",
    ),
    (137..=137, Remedy::Nothing, "NVLink privilege error"),
    (139..=139, Remedy::RestartChild, "optical flow error"),
    (140..=140, Remedy::ResetGpu, "unrecovered ECC error"),
    (141..=141, Remedy::Nothing, "CUDA fast path error"),
    (
        143..=143,
        Remedy::ResetUnlessCleared,
        "GPU initialization error",
    ),
    (144..=150, Remedy::ResetUnlessCleared, "NVLink error"),
    (151..=151, Remedy::RebootNode, "key rotation error"),
    (154..=154, Remedy::Nothing, "GPU recovery action changed"),
    (155..=155, Remedy::ResetUnlessCleared, "NVLink error"),
    (156..=156, Remedy::ResetUnlessCleared, "resource retired"),
    (157..=157, Remedy::Nothing, "resource retirement failure"),
    (158..=158, Remedy::ResetGpu, "GPU fatal timeout"),
    (
        171..=172,
        Remedy::Nothing,
        "details of a double bit ECC error",
    ),
];

impl Xid {
    /// Remedy in [`CATALOG`]; [`Remedy::Nothing`] for an unlisted number.
    #[must_use]
    pub fn remedy(self) -> Remedy {
        self.entry()
            .map_or(Remedy::Nothing, |(_, remedy, _)| *remedy)
    }

    /// Description in [`CATALOG`].
    #[must_use]
    pub fn description(self) -> Option<&'static str> {
        self.entry().map(|(_, _, description)| *description)
    }

    fn entry(self) -> Option<&'static (RangeInclusive<u32>, Remedy, &'static str)> {
        let number = self.0?;
        CATALOG.iter().find(|(range, _, _)| range.contains(&number))
    }
}

impl fmt::Display for Xid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(number) => write!(f, "Xid {number}")?,
            None => f.write_str("an unknown Xid")?,
        }
        match self.description() {
            Some(description) => write!(f, " ({description})"),
            None => Ok(()),
        }
    }
}

impl Remedy {
    /// Stable name for crash reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn xid(number: u32) -> Xid {
        Xid(Some(number))
    }

    #[test]
    fn the_catalog_ascends_so_no_number_has_two_remedies() {
        for pair in CATALOG.windows(2) {
            let (before, next) = (&pair[0].0, &pair[1].0);
            assert!(before.start() <= before.end(), "{before:?}");
            assert!(before.end() < next.start(), "{before:?} and {next:?}");
        }
    }

    #[test]
    fn numbers_have_the_remedies_of_nvidia_s_catalog() {
        let with = |remedy| -> Vec<u32> {
            let all = 0..=300;
            all.filter(|number| xid(*number).remedy() == remedy)
                .collect()
        };
        assert_eq!(with(Remedy::RebootNode), [79, 151]);
        assert_eq!(
            with(Remedy::ResetGpu),
            [46, 62, 95, 110, 119, 120, 140, 158]
        );
        assert_eq!(
            with(Remedy::ResetUnlessCleared),
            [
                48, 64, 74, 136, 143, 144, 145, 146, 147, 148, 149, 150, 155, 156
            ]
        );
        for number in [13, 31, 43, 45, 68, 69, 94, 109] {
            assert_eq!(xid(number).remedy(), Remedy::RestartChild, "{number}");
        }
        for number in [0, 1, 63, 92, 154, 173, 999, u32::MAX] {
            assert_eq!(xid(number).remedy(), Remedy::Nothing, "{number}");
        }
        assert_eq!(Xid(None).remedy(), Remedy::Nothing);
    }
}
