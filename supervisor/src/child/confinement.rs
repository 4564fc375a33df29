//! What a child may have, as arguments of its program: the child takes everything else away from itself
//! before it hears its first order (`gpu-child/src/confinement.rs`).
//!
//! It is told here and not in the order to load, for by then the child has threads, and a thread is confined
//! by what it had when it began.

use std::ffi::OsString;
use worker_orcd_ipc::{DeviceSelector, LoadOrder};

/// For a child that is to load this. `confined` is false where the operator has switched confinement off.
#[must_use]
pub(crate) fn arguments(order: &LoadOrder, confined: bool) -> Vec<OsString> {
    if !confined {
        return vec!["--unconfined".into()];
    }
    let mut arguments = vec!["--model".into(), order.model_path.clone().into()];
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
            ..load_order()
        };
        assert_eq!(arguments(&cpu, true), ["--model", "/dev/null"]);
        let all = ["--model", "/dev/null", "--trace", "/trace", "--cuda"];
        assert_eq!(arguments(&card, true), all);
        assert_eq!(arguments(&card, false), ["--unconfined"]);
    }
}
