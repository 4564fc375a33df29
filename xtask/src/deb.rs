//! `cargo xtask deb`: Debian package of the files of `cargo xtask install`, made by cargo-deb.
//!
//! The package's metadata is in `supervisor/Cargo.toml`.

use crate::{install, paths, process};
use anyhow::{Context, Result};
use std::fs;
use std::path::PathBuf;

#[derive(clap::Args)]
pub struct Arguments {
    /// Folder or file for the package [default: target/debian].
    #[arg(long)]
    output: Option<PathBuf>,
    #[command(flatten)]
    source: install::Source,
}

pub fn run(arguments: &Arguments) -> Result<()> {
    // Before anything is built.
    process::output(process::cargo().args(["deb", "--version"]))
        .context("cargo-deb is needed: cargo install cargo-deb --locked")?;
    // cargo-deb looks here: it maps this name to the target folder, wherever that is.
    let staged = paths::target().join("release/package");
    if staged.exists() {
        fs::remove_dir_all(&staged)?;
    }
    install::below(&staged, install::PREFIX, &arguments.source)?;
    let mut command = process::cargo();
    command.args([
        "deb",
        "--package",
        "worker-orcd",
        "--no-build",
        "--no-strip",
    ]);
    if let Some(output) = &arguments.output {
        command.arg("--output").arg(output);
    }
    process::run(&mut command)
}
