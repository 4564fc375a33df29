//! Determinism class of a device.

use std::sync::Arc;
use worker_orcd_ipc::DeviceFacts;

/// Determinism class: two children compute the same bits for a request if and only if their classes are equal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeterminismClass(Arc<Likeness>);

#[derive(Debug, PartialEq, Eq)]
struct Likeness {
    /// Backend: `cpu` or `cuda`.
    kind: String,
    /// Name of the device. Cards of one architecture but of another name may differ in the number of multiprocessors,
    /// hence in kernel plans.
    name: String,
    compute_capability: Option<(u32, u32)>,
    /// Instruction sets of the CPU. Each has its own loops.
    features: Vec<String>,
}

impl DeterminismClass {
    #[must_use]
    pub fn of(device: &DeviceFacts) -> Self {
        let kind = device.id.split(':').next().unwrap_or_default();
        Self(Arc::new(Likeness {
            kind: kind.to_owned(),
            name: device.name.clone(),
            compute_capability: device.compute_capability,
            features: device.features.clone(),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn card() -> DeviceFacts {
        DeviceFacts {
            id: "cuda:0".to_owned(),
            name: "NVIDIA H200".to_owned(),
            uuid: Some("GPU-1".to_owned()),
            driver: Some("580.1".to_owned()),
            compute_capability: Some((9, 0)),
            features: vec![],
            threads: None,
        }
    }

    #[test]
    fn cards_of_one_kind_are_kin_whatever_their_numbers() {
        let other = DeviceFacts {
            id: "cuda:7".to_owned(),
            uuid: Some("GPU-2".to_owned()),
            ..card()
        };
        assert_eq!(DeterminismClass::of(&card()), DeterminismClass::of(&other));
    }

    #[test]
    fn another_kind_name_architecture_or_instruction_set_is_another_class() {
        let others = [
            DeviceFacts {
                id: "cpu".to_owned(),
                ..card()
            },
            DeviceFacts {
                name: "NVIDIA H100 PCIe".to_owned(),
                ..card()
            },
            DeviceFacts {
                compute_capability: Some((10, 0)),
                ..card()
            },
            DeviceFacts {
                features: vec!["avx2".to_owned()],
                ..card()
            },
        ];
        for other in others {
            assert_ne!(
                DeterminismClass::of(&card()),
                DeterminismClass::of(&other),
                "{other:?}"
            );
        }
    }
}
