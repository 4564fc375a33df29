//! What the child can be told to do to itself, and what the supervisor must call it: one table for
//! every test that injects faults.

/// A kind of fault by the name it is asked for, and the death that it must bring about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Expected {
    pub kind: &'static str,
    /// As `/health` and crash reports say. `None`: nobody dies of it.
    pub label: Option<&'static str>,
    /// The driver's own name, in the words of the cause.
    pub named: Option<&'static str>,
    /// What the kernel's driver reports of it, on an H200.
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

/// What every device can be made to do: `any` of the grammar.
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

/// What needs a KV cache that is shared.
pub const WITH_STANDBY: [Expected; 1] = [process("flipped-page", "signalled")];

/// What only a GPU can do: `device` of the grammar.
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
    /// A death of this label, in these words, is what the kind brings about.
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
