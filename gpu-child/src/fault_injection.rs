//! A child that fails on command, for the tests and the chaos runner. Behind the cargo feature `fault-injection`, which
//! released binaries lack. Inactive unless the program begins with [`run_with_faults`](crate::entry::run_with_faults):
//! the `Hello` of such a child names the feature, and the supervisor refuses it unless started with
//! `--accept-fault-injection`.
//!
//! ```text
//! WORKER_ORCD_FAULTS ─ grammar ─ Rule ─ strike? ─┬─ engine_faults: in the step (dies, hangs, lies)
//!                                FaultyExecutor ─┘
//!                                                ├─ device::injected_fault: on the device, before the step
//!                                                └─ wire: in the next write (FaultyWriter)
//! ```
//!
//! * [`grammar`] documents the rules; without the variable nothing is injected.
//! * [`kind`] is the closed list of faults. [`executor`] applies the rules before a step is computed. [`engine_faults`] are
//!   faults of the engine thread, [`escapes`] actions that the kernel refuses, [`wire`] changes of outgoing bytes.
//!   Faults of a device are [its own](crate::device::injected_fault).
//!
//! Every fault is logged on stderr before it is injected, so that a log shows it beside the supervisor's detection.
//! Deliberately absent: faults outside this process (the chaos runner sends signals), and wrong but plausible tokens,
//! which are undetectable.

mod engine_faults;
mod escapes;
mod executor;
mod grammar;
mod kind;
mod wire;

pub use grammar::{GrammarError, Rule, parse};
pub use kind::Kind;
pub use wire::FaultyWriter;

use crate::device::Executor;
use crate::device::cuda::CudaExecutor;
use crate::device::injected_fault::{FaultInjector, order_flip};
use crate::serve::{Loaded, LoadedDraft, Progress};
use executor::FaultyExecutor;
use std::any::Any;
use std::env::VarError;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use wire::Wire;
use worker_orcd_ipc::{Fault, Generation, LoadOrder};

/// The name of the feature in a `Hello`.
pub const FEATURE: &str = "fault-injection";

/// Environment variable with the rules of this child; unset means none.
pub const VARIABLE: &str = "WORKER_ORCD_FAULTS";

/// The rules of this process.
///
/// # Errors
/// If the variable violates the [`grammar`].
pub fn rules() -> Result<Vec<Rule>, GrammarError> {
    match std::env::var(VARIABLE) {
        Ok(text) => parse(&text),
        Err(VarError::NotPresent) => Ok(Vec::new()),
        Err(VarError::NotUnicode(text)) => Err(GrammarError::UnknownKind(
            text.to_string_lossy().into_owned(),
        )),
    }
}

/// Directories in which the rules remove files.
pub fn directories(rules: &[Rule]) -> impl Iterator<Item = PathBuf> {
    rules.iter().filter_map(Rule::directory)
}

/// Wraps a writer and a loader with the faults of `rules`.
pub fn arm<W, L>(
    rules: Vec<Rule>,
    generation: Generation,
    writer: W,
    loader: L,
) -> (
    FaultyWriter<W>,
    impl FnOnce(&LoadOrder, Progress<'_>) -> Result<Loaded, Fault>,
)
where
    W: Write,
    L: FnOnce(&LoadOrder, Progress<'_>) -> Result<Loaded, Fault>,
{
    let wire = Arc::new(Wire::default());
    let writer = FaultyWriter::new(writer, generation, Arc::clone(&wire));
    let loader = move |order: &LoadOrder, progress: Progress<'_>| {
        if rules.iter().any(|rule| rule.flips_a_bit(generation)) {
            eprintln!(
                "worker-orcd-gpu: injected fault {} in the weights",
                Kind::FlippedBit.name()
            );
            order_flip();
        }
        let mut loaded = loader(order, progress)?;
        let device = loaded.executor.facts().id;
        let shares_kv = loaded.executor.kv_transfer().is_some();
        let fault_injector = fault_injector(&mut *loaded.executor);
        make_ready(&rules, &device, shares_kv, fault_injector)?;
        // A step is that of one of both executors.
        let armed = |draft: LoadedDraft| {
            let (inner, rules) = (draft.executor, rules.clone());
            let wire = Arc::clone(&wire);
            let executor = Box::new(FaultyExecutor::new(inner, rules, generation, wire));
            LoadedDraft { executor, ..draft }
        };
        loaded.draft = loaded.draft.map(|draft| draft.map(armed));
        let inner = loaded.executor;
        loaded.executor = Box::new(FaultyExecutor::new(inner, rules, generation, wire));
        Ok(loaded)
    };
    (writer, loader)
}

/// The device, if it has faults of its own.
fn fault_injector<'a>(
    device: &'a mut (dyn Executor + 'static),
) -> Option<&'a mut dyn FaultInjector> {
    let device: &mut dyn Any = device;
    let device = device.downcast_mut::<CudaExecutor>()?;
    Some(device)
}

/// Prepares the device. A rule with an impossible fault is refused: a run would otherwise claim to have survived it.
fn make_ready(
    rules: &[Rule],
    device: &str,
    shares_kv: bool,
    fault_injector: Option<&mut dyn FaultInjector>,
) -> Result<(), Fault> {
    let may_come = |kind: &Kind| rules.iter().any(|rule| rule.may(*kind));
    let refused = |kind: Kind, place: &str| Fault::DeviceUnavailable {
        message: format!(
            "the fault {} cannot be injected on {place}; name others",
            kind.name()
        ),
    };
    if may_come(&Kind::FlippedPage) && !shares_kv {
        let place = format!("{device}, whose KV cache is not shared");
        return Err(refused(Kind::FlippedPage, &place));
    }
    let mut of_device = Kind::ALL
        .into_iter()
        .filter(|kind| kind.of_device().is_some());
    let first = of_device.find(may_come);
    if let Some(fault_injector) = fault_injector {
        // The device produces a NaN itself if there is a device.
        return match first.is_some() || may_come(&Kind::NonFinite) {
            true => fault_injector.prepare(),
            false => Ok(()),
        };
    }
    first.map_or(Ok(()), |kind| Err(refused(kind, device)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::injected_fault::DeviceFault;

    /// A device with faults of its own, which counts its preparations.
    #[derive(Default)]
    struct Device {
        ready: u32,
    }

    impl FaultInjector for Device {
        fn prepare(&mut self) -> Result<(), Fault> {
            self.ready += 1;
            Ok(())
        }

        fn commit(&mut self, _: DeviceFault) -> Result<(), Fault> {
            unreachable!("nothing is computed here")
        }
    }

    #[test]
    fn a_fault_that_a_device_lacks_is_refused_by_name() {
        let refused = |faults: &str| {
            let rules = parse(faults).unwrap();
            let refused = make_ready(&rules, "cpu", false, None).err();
            refused.map(|fault| fault.to_string())
        };
        for kind in Kind::ALL {
            let name = kind.name();
            let message = refused(&format!("panic@step=1;{name}@step=3"));
            assert_eq!(message.is_some(), kind.of_device().is_some(), "{name}");
            let names_both = |it: &String| it.contains(name) && it.contains("cpu");
            assert!(message.as_ref().is_none_or(names_both), "{message:?}");
        }
        assert_eq!(refused("any@chance=0.1"), None);
        assert!(refused("any|device@chance=0.1").is_some());
    }

    #[test]
    fn a_page_flips_only_where_the_kv_cache_is_shared() {
        let rules = parse("any|flipped-page@chance=0.1").unwrap();
        for of_device in [false, true] {
            let make_ready = |shares_kv| {
                let mut device = Device::default();
                let fault_injector = of_device.then_some(&mut device as &mut dyn FaultInjector);
                make_ready(&rules, "it", shares_kv, fault_injector)
            };
            assert!(make_ready(true).is_ok());
            let refused = make_ready(false).unwrap_err().to_string();
            assert!(refused.contains("flipped-page"), "{refused}");
        }
    }

    #[test]
    fn a_device_is_made_ready_for_what_it_will_have_to_do() {
        let ready = |faults: &str| {
            let mut device = Device::default();
            let rules = parse(faults).unwrap();
            make_ready(&rules, "cuda:0", false, Some(&mut device)).unwrap();
            device.ready
        };
        assert_eq!(ready("panic|kill@step=3"), 0);
        assert_eq!(ready("nan@step=3"), 1);
        assert_eq!(ready("trap@step=3;misaligned@step=4"), 1);
    }
}
