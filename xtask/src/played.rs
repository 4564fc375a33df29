//! `cargo xtask played`: the child's tests for a card, on one that is played (`tests/played-cuda`).
//!
//! Kernels are interpreted, and some of these tests were written for a card that takes a second for what the
//! interpreter takes many minutes for. CI runs those that say most in little time.

use crate::{paths, process};
use anyhow::{Context, Result};
use std::fs;
use std::process::Command;

#[derive(clap::Args)]
pub struct Arguments {
    /// Only tests whose name contains one of these.
    names: Vec<String>,
}

/// What CI runs.
const IN_CI: [&str; 5] = [
    "parity::every_type_agrees_with_the_references",
    "parity::norms_behind_blocks_two_rotations_and_scales_agree",
    "experts::gpt_oss_agrees_with_the_references_past_its_window_and_splits",
    "kept_kv::adopted_pages_compute_the_same_bits_and_changed_ones_are_refused",
    "device::cuda::mapping::tests",
];

pub fn run(arguments: &Arguments) -> Result<()> {
    process::run(&mut tests(&arguments.names)?)
}

pub fn for_ci() -> Result<()> {
    process::run(process::cargo().args(["test", "-p", "worker-orcd-played-cuda"]))?;
    process::run(&mut tests(&IN_CI)?)
}

fn tests(names: &[impl AsRef<str>]) -> Result<Command> {
    process::run(process::cargo().args(["build", "--quiet", "-p", "worker-orcd-played-cuda"]))?;
    let folder = paths::target().join("played-cuda");
    fs::create_dir_all(&folder)?;
    // Under the name that is looked for first, and alone in its folder. Written anew beside it: a program
    // that has it open keeps what it has.
    let (library, unfinished) = (folder.join("libcuda.so"), folder.join("unfinished"));
    fs::copy(paths::target().join("debug/libplayed_cuda.so"), &unfinished)
        .context("the played driver")?;
    fs::rename(unfinished, library)?;
    let mut command = process::cargo();
    command
        .args(["test", "--no-fail-fast", "-p", "worker-orcd-gpu", "--lib"])
        .args(["--test", "cuda", "--", "--ignored", "--test-threads", "1"])
        .args(names.iter().map(AsRef::as_ref))
        .env("LD_LIBRARY_PATH", folder);
    Ok(command)
}
