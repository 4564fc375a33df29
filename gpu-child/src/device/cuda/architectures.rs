//! Devices that the embedded kernels support.

use std::fmt;

/// Compute capability of a device, such as 9.0.
#[derive(Debug, Clone, Copy)]
pub struct ComputeCapability {
    pub major: u32,
    pub minor: u32,
}

impl fmt::Display for ComputeCapability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// Targets of `cargo xtask kernels`, such as `sm_90a compute_80`.
const ARCHITECTURES: &str = include_str!(concat!(env!("OUT_DIR"), "/architectures"));

/// # Errors
/// Targets of the build, if none supports a device of this compute capability.
pub fn check(capability: ComputeCapability) -> Result<(), String> {
    if covers(ARCHITECTURES, capability) {
        return Ok(());
    }
    Err(format!(
        "its compute capability is {capability}, and this build has kernels for {}",
        ARCHITECTURES.trim()
    ))
}

/// Machine code runs on its own major version from its own minor version on, with an `a` on that
/// version alone; PTX (`compute_`) is compiled by NVIDIA's driver for its own version and all later.
fn covers(architectures: &str, ComputeCapability { major, minor }: ComputeCapability) -> bool {
    let version = 10 * major + minor;
    architectures.split_whitespace().any(|architecture| {
        let (text, rest) = match architecture.strip_prefix("compute_") {
            Some(rest) => (true, rest),
            None => (false, architecture.trim_start_matches("sm_")),
        };
        match (rest.strip_suffix('a').map(str::parse), rest.parse::<u32>()) {
            (Some(exactly), _) => exactly == Ok(version),
            (None, Ok(from)) => from <= version && (text || from / 10 == major),
            (None, Err(_)) => false,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_runs_what_was_compiled_for_it() {
        let covers = |architectures, (major, minor)| {
            covers(architectures, ComputeCapability { major, minor })
        };
        let shipped = "sm_80 sm_89 sm_90a sm_100a compute_80";
        for good in [(8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0)] {
            assert!(covers(shipped, good), "{good:?}");
        }
        assert!(!covers(shipped, (7, 5)));
        for (only, good, bad) in [
            ("sm_90a", (9, 0), (10, 0)),
            ("sm_80", (8, 6), (9, 0)),
            ("sm_89", (8, 9), (8, 6)),
            ("sm_100a", (10, 0), (10, 3)),
            ("compute_90", (12, 1), (8, 9)),
        ] {
            assert!(covers(only, good) && !covers(only, bad), "{only}");
        }
        assert!(!covers("", (9, 0)));
    }
}
