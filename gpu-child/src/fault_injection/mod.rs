//! A child that fails on command, for the tests and the chaos runner. Behind the cargo feature
//! `fault-injection`, which default builds lack, which the hello names, and which the supervisor
//! refuses unless it was told `--accept-fault-injection`.
//!
//! ```text
//! WORKER_ORCD_FAULTS ─ grammar ─ Rule ─ strike? ─┬─ deeds: in the step (dies, hangs, lies)
//!                                FaultyExecutor ─┘
//!                                                └─ wire: in the next write (FaultyWriter)
//! ```
//!
//! * [`grammar`] is the page on what can be asked for; nothing is injected without the variable.
//! * [`kind`] is the closed list of misdeeds, [`executor`] strikes before a step is computed,
//!   [`deeds`] does what happens in the engine's own thread, [`wire`] what happens to bytes on
//!   their way up, [`logits`] spoils numbers in front of the real check.
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
mod wire;

pub use grammar::{GrammarError, Rule, parse};
pub use kind::Kind;
pub(crate) use logits::spoil;
pub use wire::FaultyWriter;

use crate::serve::{Loaded, Progress};
use executor::FaultyExecutor;
use std::env::VarError;
use std::io::Write;
use std::sync::Arc;
use wire::Wire;
use worker_orcd_ipc::{DeviceSelector, Fault, Generation, LoadOrder};

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
        refuse_what_the_device_lacks(&rules, order.device)?;
        let mut loaded = loader(order, progress)?;
        let inner = loaded.executor;
        loaded.executor = Box::new(FaultyExecutor::new(inner, rules, generation, wire));
        Ok(loaded)
    };
    (writer, loader)
}

/// A fault that would never strike is refused, or a run would claim to have survived it.
fn refuse_what_the_device_lacks(rules: &[Rule], device: DeviceSelector) -> Result<(), Fault> {
    let DeviceSelector::Cuda(ordinal) = device else {
        return Ok(());
    };
    if !rules.iter().any(|rule| rule.may(Kind::NonFinite)) {
        return Ok(());
    }
    let name = Kind::NonFinite.name();
    Err(Fault::DeviceUnavailable {
        message: format!("the fault {name} cannot be injected on cuda:{ordinal}; name the others"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_that_a_device_lacks_is_refused_by_name() {
        let refused = |faults: &str, device| {
            let rules = parse(faults).unwrap();
            refuse_what_the_device_lacks(&rules, device)
                .err()
                .map(|fault| fault.to_string())
        };
        for faults in ["nan@step=3", "panic@step=1;any@chance=0.1"] {
            let message = refused(faults, DeviceSelector::Cuda(1)).expect("it is refused");
            assert!(
                message.contains("nan") && message.contains("cuda:1"),
                "{message}"
            );
            assert_eq!(refused(faults, DeviceSelector::Cpu), None);
        }
        assert_eq!(refused("panic|abort@step=3", DeviceSelector::Cuda(0)), None);
    }
}
