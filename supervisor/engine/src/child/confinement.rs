//! Permissions of a child as program arguments. The child drops all other permissions before its first order
//! (`gpu-child/src/confinement.rs`).
//!
//! They are not part of the load order, because by then the child has threads, and a thread keeps the confinement of
//! its start.

use std::ffi::OsString;
use worker_orcd_ipc::{DeviceSelector, LoadOrder};

/// Arguments for a child with this load order. `confined` is false if the operator has disabled confinement.
#[must_use]
pub(crate) fn arguments(order: &LoadOrder, confined: bool) -> Vec<OsString> {
    if !confined {
        return vec!["--unconfined".into()];
    }
    let mut arguments = vec!["--model".into(), order.model_path.clone().into()];
    if let Some(draft) = &order.draft_model {
        arguments.extend(["--draft-model".into(), draft.clone().into()]);
    }
    if let Some(trace) = &order.trace {
        arguments.extend(["--trace".into(), trace.path.clone().into()]);
    }
    if matches!(order.device, DeviceSelector::Cuda(_)) {
        arguments.push("--cuda".into());
    }
    arguments
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::testing::load_order;
    use worker_orcd_ipc::TraceOrder;

    #[test]
    fn a_child_is_allowed_what_it_will_be_ordered_to_load_and_no_more() {
        let cpu = load_order();
        let card = LoadOrder {
            device: DeviceSelector::Cuda(1),
            trace: Some(TraceOrder {
                path: "/trace".to_owned(),
                first_values: 1,
            }),
            draft_model: Some("/draft".to_owned()),
            ..load_order()
        };
        assert_eq!(arguments(&cpu, true), ["--model", "/dev/null"]);
        let all = [
            ["--model", "/dev/null"],
            ["--draft-model", "/draft"],
            ["--trace", "/trace"],
        ];
        let all = [all.as_flattened(), &["--cuda"]].concat();
        assert_eq!(arguments(&card, true), all);
        assert_eq!(arguments(&card, false), ["--unconfined"]);
    }
}
