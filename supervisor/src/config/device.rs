//! Which device is meant, and what `auto` comes to.
//!
//! `auto` is decided once, before the first child, and is from then on as if the device had been
//! named: a device that is lost later is a fault, never a reason to compute elsewhere. The
//! supervisor does not touch CUDA, so it asks the program that can
//! ([`probe`](crate::child::probe)).

use std::fmt;
use worker_orcd_ipc::DeviceSelector;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceChoice {
    Auto,
    Cpu,
    /// Ordinal in the CUDA driver's enumeration.
    Cuda(u32),
}

/// The CUDA device that `auto` asks for.
pub const AUTO_ORDINAL: u32 = 0;

/// A choice that will not change while the worker lives, and why it was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DecidedDevice {
    pub selector: DeviceSelector,
    pub reason: String,
}

impl DeviceChoice {
    /// # Errors
    /// When the text names no device.
    pub fn parse(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "cpu" => Ok(Self::Cpu),
            _ => text
                .strip_prefix("cuda:")
                .and_then(|ordinal| ordinal.parse().ok())
                .map(Self::Cuda)
                .ok_or_else(|| format!("{text:?} is none of cuda:N, cpu, auto")),
        }
    }

    /// `None` for `auto`, which somebody has to look for.
    #[must_use]
    pub fn named(self) -> Option<DecidedDevice> {
        let selector = match self {
            Self::Auto => return None,
            Self::Cpu => DeviceSelector::Cpu,
            Self::Cuda(ordinal) => DeviceSelector::Cuda(ordinal),
        };
        Some(DecidedDevice {
            selector,
            reason: "it was asked for".to_owned(),
        })
    }
}

impl DecidedDevice {
    /// The device of the supervisor before this one.
    #[must_use]
    pub fn as_before(selector: DeviceSelector) -> Self {
        Self {
            selector,
            reason: "it was decided before the upgrade".to_owned(),
        }
    }

    /// The device that `auto` means, given what the child's program says of the first CUDA device.
    #[must_use]
    pub fn auto(outlook: Result<String, String>) -> Self {
        match outlook {
            Ok(device) => Self {
                selector: DeviceSelector::Cuda(AUTO_ORDINAL),
                reason: format!("auto: {device} can be used"),
            },
            Err(why) => Self {
                selector: DeviceSelector::Cpu,
                reason: format!("auto: {why}"),
            },
        }
    }
}

/// The device as it is written on the command line.
impl fmt::Display for DecidedDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.selector {
            DeviceSelector::Cpu => DeviceChoice::Cpu.fmt(f),
            DeviceSelector::Cuda(ordinal) => DeviceChoice::Cuda(ordinal).fmt(f),
        }
    }
}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(ordinal) => write!(f, "cuda:{ordinal}"),
        }
    }
}
