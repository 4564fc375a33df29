//! `cargo xtask fuzz`: runs every fuzz target for a while.
//!
//! `fuzz/` is a workspace of its own with libFuzzer from a crate, so neither cargo-fuzz nor a nightly compiler is
//! needed; its README describes how to read the findings. The corpus seeds also run as ordinary tests.

use crate::{paths, process};
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::Path;

#[derive(clap::Args)]
pub struct Arguments {
    /// Seconds for each target.
    #[arg(long, default_value_t = 600)]
    seconds: u32,
    /// Only targets whose name contains this.
    #[arg(long, default_value = "")]
    only: String,
}

pub fn run(arguments: &Arguments) -> Result<()> {
    let folder = paths::root().join("fuzz");
    let targets = targets(&folder)?;
    let chosen: Vec<_> = targets
        .iter()
        .filter(|name| name.contains(&arguments.only))
        .collect();
    if chosen.is_empty() {
        bail!(
            "no fuzz target has {:?} in its name; there are {targets:?}",
            arguments.only
        );
    }
    for target in chosen {
        // New inputs of libFuzzer are stored there; the committed corpus does not change.
        let found = folder.join("target/found").join(target);
        fs::create_dir_all(&found)?;
        process::run(
            process::cargo()
                .current_dir(&folder)
                .args(["run", "--release", "--bin", target, "--"])
                .arg(&found)
                .arg(folder.join("corpus").join(target))
                .arg(format!("-max_total_time={}", arguments.seconds))
                .arg("-max_len=4096"),
        )?;
    }
    Ok(())
}

fn targets(folder: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder.join("fuzz_targets")).context("no fuzz folder")? {
        let path = entry?.path();
        if let (Some(name), Some("rs")) = (
            path.file_stem(),
            path.extension().and_then(|extension| extension.to_str()),
        ) {
            names.push(name.to_string_lossy().into_owned());
        }
    }
    names.sort();
    Ok(names)
}
