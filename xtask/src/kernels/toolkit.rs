//! CUDA compiler and disassembler: from `CUDA_HOME` or `PATH`, otherwise NVIDIA's wheels from PyPI in `target/nvcc`.

use crate::{paths, process, python};
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Wheels of the compiler, all five pinned together: nvcc's wheel does not constrain the versions of the other four,
/// and newer ones do not fit it.
const COMPILER: [&str; 5] = [
    "nvidia-cuda-nvcc==13.0.88",
    "nvidia-nvvm==13.0.88",
    "nvidia-cuda-crt==13.0.88",
    "nvidia-cuda-runtime==13.0.96",
    "nvidia-cuda-cccl==13.0.85",
];

/// Wheels of the disassembler. PyPI has none as old as the compiler; newer ones read all its output.
const DISASSEMBLER: [&str; 2] = [
    "nvidia-cuda-cuobjdump==13.2.78",
    "nvidia-cuda-nvdisasm==13.2.78",
];

/// Compiler that was tested to run.
#[derive(Debug)]
pub struct Toolkit {
    pub nvcc: PathBuf,
    /// Version in the compiler's own words.
    pub version: String,
}

/// Tool, or the reason why PyPI is unreachable.
pub enum Found<T> {
    Here(T),
    Unreachable(String),
}

pub fn compiler() -> Result<Found<Toolkit>> {
    let at = |nvcc: PathBuf| {
        let version = process::output(Command::new(&nvcc).arg("--version")).ok()?;
        Some(Toolkit { nvcc, version })
    };
    let home = std::env::var_os("CUDA_HOME").map(|home| PathBuf::from(home).join("bin/nvcc"));
    let here = home.into_iter().chain([PathBuf::from("nvcc")]);
    if let Some(toolkit) = here.chain(installed("nvcc")).find_map(at) {
        return Ok(Found::Here(toolkit));
    }
    if let Err(why) = install(&COMPILER)? {
        return Ok(Found::Unreachable(why));
    }
    let nvcc = installed("nvcc").and_then(at);
    nvcc.map(Found::Here)
        .context("the wheels hold no nvcc that works")
}

/// `cuobjdump`: beside the compiler, or from the wheels.
pub fn disassembler(toolkit: &Toolkit) -> Result<Found<PathBuf>> {
    let works = |program: &PathBuf| process::output(Command::new(program).arg("--version")).is_ok();
    let beside = toolkit.nvcc.with_file_name("cuobjdump");
    if let Some(program) = [beside]
        .into_iter()
        .chain(installed("cuobjdump"))
        .find(works)
    {
        return Ok(Found::Here(program));
    }
    if let Err(why) = install(&DISASSEMBLER)? {
        return Ok(Found::Unreachable(why));
    }
    let program = installed("cuobjdump").filter(works);
    program
        .map(Found::Here)
        .context("the wheels hold no cuobjdump that works")
}

fn environment() -> PathBuf {
    paths::target().join("nvcc")
}

/// Path of a program under `lib/python3.X/site-packages`.
fn installed(program: &str) -> Option<PathBuf> {
    fs::read_dir(environment().join("lib"))
        .ok()?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .map(|python| python.join("site-packages/nvidia/cu13/bin").join(program))
        .find(|program| program.exists())
}

/// Installs wheels. The inner error is a missing network; any other failure is a defect of this code.
fn install(wheels: &[&str]) -> Result<Result<(), String>> {
    let folder = environment();
    let python = folder.join("bin/python");
    println!("installing {} into {}", wheels.join(" "), folder.display());
    if !python.exists() {
        fs::create_dir_all(&folder)?;
        python::create(&folder)?;
    }
    let output = python::pip_install(&python)
        .args(wheels)
        .output()
        .context("python3 with pip is needed")?;
    if output.status.success() {
        return Ok(Ok(()));
    }
    let complaint = String::from_utf8_lossy(&output.stderr);
    match complaint.lines().find(|line| is_no_network(line)) {
        Some(line) => Ok(Err(line.trim().to_owned())),
        None => bail!("pip cannot install them:\n{complaint}"),
    }
}

/// Whether a line of pip's log reports a missing network. pip ends such an attempt with "no matching distribution", as
/// for a version that does not exist; earlier lines distinguish them.
fn is_no_network(line: &str) -> bool {
    [
        "NewConnectionError",
        "ConnectTimeoutError",
        "ReadTimeoutError",
        "ProxyError",
        "NameResolutionError",
        "Failed to establish a new connection",
        "Network is unreachable",
        "Temporary failure in name resolution",
    ]
    .iter()
    .any(|words| line.contains(words))
}

/// `PATH` for programs that look for their siblings in it.
pub fn path_with(program: &Path) -> std::ffi::OsString {
    let own = program.parent().map(Path::to_path_buf);
    let inherited = std::env::var_os("PATH").unwrap_or_default();
    let all = own.into_iter().chain(std::env::split_paths(&inherited));
    std::env::join_paths(all).unwrap_or(inherited)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_network_is_told_from_a_missing_version() {
        let no_network = "WARNING: Retrying (Retry(total=4, connect=None)) after connection broken \
                          by 'NewConnectionError('<pip>: Failed to establish a new connection')'";
        assert!(is_no_network(no_network));
        let no_version = "ERROR: No matching distribution found for nvidia-cuda-nvcc==99";
        assert!(!is_no_network(no_version));
    }
}
