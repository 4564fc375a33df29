//! A child that fails on command, for the tests and the chaos runner. Behind the cargo feature
//! `fault-injection`, which default builds lack, which the hello names, and which the supervisor
//! refuses unless it was told `--accept-fault-injection`.
//!
//! ```text
//! WORKER_ORCD_FAULTS ─ grammar ─ Rule ─ strike? ─┬─ deeds: in the step (dies, hangs, lies)
//!                                FaultyExecutor ─┘
//!                                                ├─ saboteur: on the device, in front of it
//!                                                └─ wire: in the next write (FaultyWriter)
//! ```
//!
//! * [`grammar`] is the page on what can be asked for; nothing is injected without the variable.
//! * [`kind`] is the closed list of misdeeds, [`executor`] strikes before a step is computed,
//!   [`deeds`] does what happens in the engine's own thread, [`saboteur`] is what a device has to
//!   do for those that are its own, [`wire`] what happens to bytes on their way up, [`logits`]
//!   spoils numbers in front of the real check where no device does.
//!
//! Every fault is announced on stderr before it is committed, so that a log says what was
//! injected beside what the supervisor noticed. Deliberately absent: faults outside this process
//! (a signal from elsewhere is the chaos runner's), and tokens that are wrong but possible, which
//! nobody can notice.

mod deeds;
mod executor;
mod grammar;
mod kind;
mod logits;
mod saboteur;
mod wire;

pub use grammar::{GrammarError, Rule, parse};
pub use kind::Kind;
pub(crate) use logits::spoil;
pub use saboteur::{DeviceMisdeed, Saboteur};
pub use wire::FaultyWriter;

use crate::device::Executor;
use crate::serve::{Loaded, Progress};
use executor::FaultyExecutor;
use std::env::VarError;
use std::io::Write;
use std::sync::Arc;
use wire::Wire;
use worker_orcd_ipc::{Fault, Generation, LoadOrder};

/// The rules of this child; unset means none.
pub const VARIABLE: &str = "WORKER_ORCD_FAULTS";

/// What this process was told.
///
/// # Errors
/// When the variable does not follow the [`grammar`].
pub fn rules() -> Result<Vec<Rule>, GrammarError> {
    match std::env::var(VARIABLE) {
        Ok(text) => parse(&text),
        Err(VarError::NotPresent) => Ok(Vec::new()),
        Err(VarError::NotUnicode(text)) => Err(GrammarError::UnknownKind(
            text.to_string_lossy().into_owned(),
        )),
    }
}

/// Puts the faults that `rules` ask for around a writer and a loader.
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
        let mut loaded = loader(order, progress)?;
        make_ready(&rules, &mut *loaded.executor)?;
        let inner = loaded.executor;
        loaded.executor = Box::new(FaultyExecutor::new(inner, rules, generation, wire));
        Ok(loaded)
    };
    (writer, loader)
}

/// A fault that would never strike is refused, or a run would claim to have survived it.
fn make_ready(rules: &[Rule], device: &mut dyn Executor) -> Result<(), Fault> {
    let may_come = |kind: &Kind| rules.iter().any(|rule| rule.may(*kind));
    let mut of_device = Kind::ALL
        .into_iter()
        .filter(|kind| kind.of_device().is_some());
    let first = of_device.find(may_come);
    if let Some(saboteur) = device.saboteur() {
        // A NaN is the device's own where there is a device to make it.
        return match first.is_some() || may_come(&Kind::NonFinite) {
            true => saboteur.prepare(),
            false => Ok(()),
        };
    }
    let Some(kind) = first else {
        return Ok(());
    };
    let (device, name) = (device.facts().id, kind.name());
    Err(Fault::DeviceUnavailable {
        message: format!("the fault {name} cannot be injected on {device}; name others"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{Batch, KvGeometry, Tap};
    use worker_orcd_ipc::{DeviceFacts, Drawn, MemoryReport};

    /// A device that never fails by itself, or one that does and counts how often it was made
    /// ready.
    struct Device {
        ready: Option<u32>,
    }

    impl Saboteur for Device {
        fn prepare(&mut self) -> Result<(), Fault> {
            self.ready = self.ready.map(|times| times + 1);
            Ok(())
        }

        fn commit(&mut self, _: DeviceMisdeed) -> Result<(), Fault> {
            unreachable!("nothing is computed here")
        }
    }

    impl Executor for Device {
        fn facts(&self) -> DeviceFacts {
            DeviceFacts {
                id: "cpu".to_owned(),
                name: String::new(),
                uuid: None,
                driver: None,
                compute_capability: None,
                features: vec![],
                threads: None,
            }
        }

        fn memory(&self) -> MemoryReport {
            MemoryReport::default()
        }

        fn kv_geometry(&self) -> KvGeometry {
            unreachable!("nothing is computed here")
        }

        fn max_batch_tokens(&self) -> u32 {
            0
        }

        fn step(&mut self, _: &Batch<'_>, _: &mut dyn Tap) -> Result<Vec<Drawn>, Fault> {
            unreachable!("nothing is computed here")
        }

        fn saboteur(&mut self) -> Option<&mut dyn Saboteur> {
            self.ready.is_some().then_some(self)
        }
    }

    #[test]
    fn a_fault_that_a_device_lacks_is_refused_by_name() {
        let refused = |faults: &str| {
            let rules = parse(faults).unwrap();
            make_ready(&rules, &mut Device { ready: None })
                .err()
                .map(|fault| fault.to_string())
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
    fn a_device_is_made_ready_for_what_it_will_have_to_do() {
        let ready = |faults: &str| {
            let mut device = Device { ready: Some(0) };
            make_ready(&parse(faults).unwrap(), &mut device).unwrap();
            device.ready
        };
        assert_eq!(ready("panic|kill@step=3"), Some(0));
        assert_eq!(ready("nan@step=3"), Some(1));
        assert_eq!(ready("trap@step=3;misaligned@step=4"), Some(1));
    }
}
