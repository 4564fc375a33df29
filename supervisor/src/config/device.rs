//! Which device is meant, and what `auto` comes to on this machine.

use std::fmt;
use std::path::Path;
use worker_orcd_ipc::DeviceSelector;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceChoice {
    Auto,
    Cpu,
    /// Ordinal in the CUDA driver's enumeration.
    Cuda(u32),
}

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

    /// Decides, once. The supervisor does not touch CUDA, so it goes by what the driver leaves
    /// in the file system; this release's child has no CUDA code, so `auto` is the CPU either
    /// way and says so.
    #[must_use]
    pub fn decide(self) -> DecidedDevice {
        let (selector, reason) = match self {
            Self::Cpu => (DeviceSelector::Cpu, "it was asked for"),
            Self::Cuda(ordinal) => (DeviceSelector::Cuda(ordinal), "it was asked for"),
            Self::Auto if driver_is_loaded() => (
                DeviceSelector::Cpu,
                "there is an NVIDIA driver, but this build has no CUDA device",
            ),
            Self::Auto => (DeviceSelector::Cpu, "there is no NVIDIA driver"),
        };
        DecidedDevice {
            selector,
            reason: reason.to_owned(),
        }
    }
}

/// The kernel module says so itself.
#[must_use]
pub fn driver_is_loaded() -> bool {
    Path::new("/proc/driver/nvidia/version").exists()
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
