//! `cargo xtask played`: the child's tests for a card, on an emulated one (`tests/played-cuda`); or a comparison of its
//! logits.
//!
//! Kernels are interpreted; some of these tests take a card a second and the interpreter many minutes. CI runs those
//! with the most coverage in little time.

use crate::side_by_side::Program;
use crate::{paths, process, python};
use anyhow::{Context, Result, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

#[derive(clap::Args)]
pub struct Arguments {
    /// Only tests whose name contains one of these.
    names: Vec<String>,
    /// Instead of tests: logits of every architecture and tensor type, against llama.cpp.
    #[arg(long, conflicts_with = "names")]
    logits: bool,
}

const LIBRARY: &str = "libplayed_cuda.so";

/// Test programs of the child for a card.
const PROGRAMS: [&str; 2] = ["gpu-child/src/lib.rs", "gpu-child/tests/cuda/main.rs"];

/// Tests that CI runs.
const IN_CI: [&str; 17] = [
    "parity::every_type_agrees_with_the_references",
    "parity::norms_behind_blocks_two_rotations_and_scales_agree",
    "parity::delta_nets_and_gated_attention_agree_with_the_references",
    "parity::short_convolutions_agree_with_the_references",
    "parity::state_spaces_agree_with_the_references",
    "parity::layers_of_one_block_agree_with_the_references",
    "gemma4::layers_of_both_kinds_agree_with_the_references",
    "exactness::a_state_keeps_the_law_from_block_to_block",
    "exactness::a_short_convolution_keeps_the_law_from_block_to_block",
    "exactness::a_state_space_keeps_the_law_from_block_to_block",
    "exactness::layers_of_one_block_keep_the_law_from_block_to_block",
    "experts::routers_by_sigmoid_and_joint_norms_agree_with_the_references",
    "experts::gpt_oss_agrees_with_the_references_past_its_window_and_splits",
    "kept_kv::adopted_pages_compute_the_same_bits_and_changed_ones_are_refused",
    "kept_kv::of_a_state_the_sealed_rows_are_adopted_and_no_others_on_a_card",
    "kept_kv::adopted_pages_of_both_kinds_of_heads_compute_the_same_bits",
    "device::cuda::mapping::tests",
];

pub fn run(arguments: &Arguments) -> Result<()> {
    match arguments.logits {
        true => logits(),
        false => process::run(&mut tests(&arguments.names)?),
    }
}

/// Selects the tests that CI runs from the built programs, with the library of the same build.
pub fn for_ci(programs: &[Program]) -> Result<Vec<Program>> {
    let of_child = |program: &&Program| PROGRAMS.contains(&program.name().as_str());
    let programs: Vec<_> = programs.iter().filter(of_child).collect();
    ensure!(
        programs.len() == PROGRAMS.len(),
        "{PROGRAMS:?} are not built"
    );
    let folder = put(&programs[0].folder().join(LIBRARY))?;
    let arguments = ["--ignored", "--test-threads", "1"]
        .into_iter()
        .chain(IN_CI);
    let played = |program: &Program| {
        let program = program.with_arguments(arguments.clone());
        program.with_variable("LD_LIBRARY_PATH", &folder)
    };
    Ok(programs.into_iter().map(played).collect())
}

fn logits() -> Result<()> {
    let folder = library()?;
    // Together with the tests: alone its dependencies would have other features.
    let beside = ["--quiet", "--test", "end_to_end", "--no-run"];
    let mut build = process::cargo();
    process::run(build.args(["test", "-p", "worker-orcd-tests"]).args(beside))?;
    process::run(
        Command::new(python::interpreter()?)
            .arg(paths::root().join("tests/oracle/architectures.py"))
            .arg(paths::target().join("debug/orcd-logits"))
            .args(["--device", "cuda:0"])
            .env("LD_LIBRARY_PATH", folder),
    )
}

/// Folder in which programs find the emulated driver.
fn library() -> Result<PathBuf> {
    process::run(process::cargo().args(["build", "--quiet", "-p", "worker-orcd-played-cuda"]))?;
    put(&paths::built("debug", LIBRARY))
}

/// Copies the emulated driver to the folder where programs find it.
fn put(built: &Path) -> Result<PathBuf> {
    let folder = paths::target().join("played-cuda");
    fs::create_dir_all(&folder)?;
    // Under the name that is looked for first, and alone in its folder. Written under another name and renamed: a
    // program that has it open keeps the old file.
    let (library, unfinished) = (folder.join("libcuda.so"), folder.join("unfinished"));
    fs::copy(built, &unfinished).context("the played driver")?;
    fs::rename(unfinished, library)?;
    Ok(folder)
}

fn tests(names: &[impl AsRef<str>]) -> Result<Command> {
    let folder = library()?;
    let mut command = process::cargo();
    command
        .args(["test", "--no-fail-fast", "-p", "worker-orcd-gpu", "--lib"])
        .args(["--test", "cuda", "--", "--ignored", "--test-threads", "1"])
        .args(names.iter().map(AsRef::as_ref))
        .env("LD_LIBRARY_PATH", folder);
    Ok(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A name without a test would select nothing, and pass.
    #[test]
    fn what_ci_runs_is_there() {
        for name in IN_CI {
            let path = name.replace("::", "/");
            let (module, test) = path.rsplit_once('/').expect("a module and a name");
            let source =
                |file: String| fs::read_to_string(paths::root().join("gpu-child").join(file));
            let is_there = match source(format!("tests/cuda/{module}.rs")) {
                Ok(text) => text.contains(&format!("fn {test}()")),
                Err(_) => source(format!("src/{module}.rs"))
                    .is_ok_and(|text| text.contains("mod tests {") && text.contains("#[ignore")),
            };
            assert!(is_there, "{name}");
        }
    }
}
