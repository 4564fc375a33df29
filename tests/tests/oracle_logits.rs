//! Arithmetic of the child, compared with llama.cpp through `orcd-logits`.
//!
//! The tests run one at a time: several of them compute on all cores.

use std::ffi::OsStr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use worker_orcd_gpu::model::Architecture;
use worker_orcd_gpu::model::catalogue::REFUSED;
use worker_orcd_tests::model::real_model;
use worker_orcd_tests::oracle;

/// Variable that selects as many tokens as bench/results/correctness.md reports.
const LONG_VARIABLE: &str = "LONG_ORACLES";

static MACHINE: Mutex<()> = Mutex::new(());

const ORCD_LOGITS: &str = env!("CARGO_BIN_EXE_orcd-logits");

/// Runs a comparison of the real model, with the flags `fewer` unless [`LONG_VARIABLE`] is set.
fn with_fewer(script: &str, fewer: &[&str]) {
    let model = real_model();
    let mut arguments = vec![model.as_os_str(), ORCD_LOGITS.as_ref()];
    if !is_long() {
        arguments.extend(fewer.iter().map(OsStr::new));
    }
    oracle::run(script, &arguments);
}

fn is_long() -> bool {
    std::env::var_os(LONG_VARIABLE).is_some()
}

fn alone() -> MutexGuard<'static, ()> {
    MACHINE.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn every_architecture_and_tensor_type_agrees_with_llama_cpp() {
    let _machine = alone();
    let mut arguments = vec![OsStr::new(ORCD_LOGITS)];
    if !is_long() {
        arguments.push("--fewer".as_ref());
    }
    oracle::run("architectures.py", &arguments);
}

/// A refusal names the missing feature.
#[test]
fn every_architecture_of_llama_cpp_is_served_or_refused_by_name() {
    let mut names = Architecture::ALL.map(Architecture::name).to_vec();
    names.extend(REFUSED.iter().flat_map(|kind| kind.names));
    let names: Vec<&OsStr> = names.into_iter().map(OsStr::new).collect();
    oracle::run("architecture_names.py", &names);
}

#[test]
fn models_with_random_weights_are_llama_cpps_too() {
    let _machine = alone();
    oracle::run("random_models.py", &[ORCD_LOGITS.as_ref()]);
}

#[test]
fn greedy_tokens_equal_llama_cpp() {
    let _machine = alone();
    with_fewer("greedy.py", &["--steps", "10", "--unrounded", "10"]);
}

#[test]
fn perplexity_equals_llama_cpp() {
    let _machine = alone();
    with_fewer("perplexity.py", &["--windows", "4"]);
}
