//! Kinds of injected faults, and the cause of death that the supervisor must report: one table for every test of
//! faults.

/// Kind of fault by its name in the grammar, and its expected death.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Expected {
    pub kind: &'static str,
    /// Cause in `/health` and crash reports. `None`: no death.
    pub label: Option<&'static str>,
    /// Error name of the driver, in the text of the cause.
    pub named: Option<&'static str>,
    /// Xid on an H200.
    pub xid: Option<u64>,
}

const fn process(kind: &'static str, label: &'static str) -> Expected {
    Expected {
        kind,
        label: Some(label),
        named: None,
        xid: None,
    }
}

const fn device(kind: &'static str, name: &'static str, xid: u64) -> Expected {
    Expected {
        kind,
        label: Some("device"),
        named: Some(name),
        xid: Some(xid),
    }
}

/// Faults of every device: `any` of the grammar.
pub const ANYWHERE: [Expected; 14] = [
    process("panic", "panic"),
    process("abort", "signalled"),
    process("segfault", "signalled"),
    process("exit-zero", "exited_silently"),
    process("hang", "step_deadline"),
    process("stall", "heartbeat_lost"),
    process("flood", "protocol_violation"),
    process("garbage", "protocol_violation"),
    process("drip", "heartbeat_lost"),
    process("nan", "non_finite_logits"),
    process("wrong-token", "protocol_violation"),
    process("out-of-memory", "out_of_memory"),
    process("stop", "heartbeat_lost"),
    process("kill", "signalled"),
];

/// Faults that need a shared KV cache.
pub const WITH_STANDBY: [Expected; 1] = [process("flipped-page", "signalled")];

/// Faults of a GPU only: `device` of the grammar.
pub const ON_A_GPU: [Expected; 6] = [
    device("illegal-address", "CUDA_ERROR_ILLEGAL_ADDRESS", 31),
    device("misaligned", "CUDA_ERROR_MISALIGNED_ADDRESS", 13),
    device("trap", "CUDA_ERROR_LAUNCH_FAILED", 43),
    process("endless-kernel", "step_deadline"),
    process("device-out-of-memory", "out_of_memory"),
    Expected {
        kind: "device-full",
        label: None,
        named: None,
        xid: None,
    },
];

#[must_use]
pub fn expected(kind: &str) -> Option<&'static Expected> {
    let mut all = ANYWHERE.iter().chain(&WITH_STANDBY).chain(&ON_A_GPU);
    all.find(|expected| expected.kind == kind)
}

impl Expected {
    /// Whether the kind explains a death of this label and text.
    #[must_use]
    pub fn fits(&self, label: &str, words: &str) -> bool {
        self.label == Some(label) && self.named.is_none_or(|name| words.contains(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_death_fits_its_kind_by_label_and_by_the_drivers_name() {
        let row = expected("illegal-address").unwrap();
        let words = "device error CUDA_ERROR_ILLEGAL_ADDRESS: copying from the device";
        assert!(row.fits("device", words));
        assert!(!row.fits("device", "device error CUDA_ERROR_LAUNCH_FAILED: a step"));
        assert!(!row.fits("signalled", words));
        assert!(!expected("device-full").unwrap().fits("device", words));
        assert_eq!(expected("boom"), None);
    }
}
