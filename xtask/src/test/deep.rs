//! `cargo xtask test --deep`: long checks that rarely find anything, after all others.

use super::{Oracles, Program, phase};
use crate::{chaos, process, schemathesis, side_by_side};
use anyhow::Result;

/// Program with ignored tests that take minutes.
const CHAOS: &str = "tests/tests/chaos.rs";

/// Programs that run again, with the variable and value that make them longer.
const LONGER: [(&str, &str, &str); 4] = [
    ("tests/tests/endurance.rs", "ENDURANCE_REQUESTS", "20000"),
    ("tests/tests/upgrade_failing.rs", "FAILING_UPGRADES", "72"),
    ("tests/tests/oracle_logits.rs", "LONG_ORACLES", "1"),
    ("tests/tests/played_card.rs", "LONG_PLAYED_CARD", "1"),
];

pub(super) fn run(programs: &[Program], oracles: &Oracles) -> Result<()> {
    let named = |name: &'static str| programs.iter().filter(move |it| it.name() == name);
    let chaos = named(CHAOS).map(|program| program.with_arguments(["--ignored"]));
    let mut long: Vec<_> = chaos.collect();
    for (name, variable, more) in LONGER {
        long.extend(named(name).map(|it| it.clone().with_variable(variable, more)));
    }
    phase("arithmetic with assertions", arithmetic_with_assertions)?;
    let settings = oracles.settings();
    phase("long tests", || side_by_side::run(&long, &settings))?;
    phase("fresh chaos", || chaos::fresh(&oracles.model))?;
    phase("schemathesis", || {
        schemathesis::run(&schemathesis::Arguments::default())
    })
}

/// Tests the packages whose debug assertions the dev profile leaves out.
fn arithmetic_with_assertions() -> Result<()> {
    let mut tests = process::cargo();
    tests.args(["test", "--quiet"]);
    for package in ["worker-orcd-kernels", "worker-orcd-sampler"] {
        tests.args(["--package", package]);
        for check in ["debug-assertions", "overflow-checks"] {
            let setting = format!("profile.dev.package.{package}.{check}=true");
            tests.args(["--config", &setting]);
        }
    }
    process::run(&mut tests)
}
