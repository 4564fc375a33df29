//! `cargo xtask bench gpu`: a bundle for a GPU machine without Rust and without internet. Runs it, where there is a
//! GPU.
//!
//! ```text
//! target/gpu-bundle/   run.py and its modules, read.ptx, COMMIT
//!     bin/             bench-gpu, chaos, the two released programs, and a child with fault injection
//! ```
//!
//! Models are not included: `run.py` makes those with random weights on the GPU machine, and SmolLM2's file is passed
//! to it.

use super::report;
use crate::{fetch_model, paths, process};
use anyhow::{Context, Result, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

#[derive(clap::Args)]
pub struct Arguments {
    /// Lay the bundle out, and do not run it even if there is a GPU.
    #[arg(long)]
    only_bundle: bool,
    /// Flags for `run.py speed`, after `--`.
    #[arg(last = true)]
    flags: Vec<String>,
}

/// Limit of a bundle, which is copied in one go.
const MAX_BYTES: u64 = 60 << 20;

const PROGRAMS: [&str; 5] = [
    "bench-gpu",
    "chaos",
    "tested-worker-orcd",
    "tested-worker-orcd-gpu",
    "faulty-worker-orcd-gpu",
];

pub fn run(arguments: &Arguments) -> Result<()> {
    // The same command as by hand: the child embeds its results when it is built.
    process::run(Command::new(std::env::current_exe()?).arg("kernels"))?;
    let bundle = bundle();
    if bundle.exists() {
        fs::remove_dir_all(&bundle)?;
    }
    build()?;
    copy_to(&bundle.join("bin"))?;
    lay_out(&bundle, &report::commit()?)?;
    let bytes = size(&bundle)?;
    ensure!(
        bytes <= MAX_BYTES,
        "the bundle has {bytes} bytes, more than {MAX_BYTES}"
    );
    println!(
        "{}: {:.1} MiB",
        bundle.display(),
        bytes as f64 / f64::from(1 << 20)
    );
    if arguments.only_bundle || !has_gpu() {
        explain(&bundle);
        return Ok(());
    }
    measure_here(&bundle, &arguments.flags)
}

/// Folder of the bundle, in the package's own target folder, whatever cargo's settings are.
fn bundle() -> PathBuf {
    paths::target().join("gpu-bundle")
}

fn build() -> Result<()> {
    let mut command = process::cargo();
    command.args(["build", "--release", "--package", "worker-orcd-tests"]);
    for name in PROGRAMS {
        command.args(["--bin", name]);
    }
    process::run(&mut command)
}

/// Copies the programs without symbols, which are most of their size.
fn copy_to(folder: &Path) -> Result<()> {
    fs::create_dir_all(folder)?;
    for name in PROGRAMS {
        process::run(
            Command::new("strip")
                .arg("-o")
                .arg(folder.join(name))
                .arg(paths::built("release", name)),
        )
        .context("strip, of binutils, is needed")?;
    }
    Ok(())
}

/// Copies everything that is not compiled.
fn lay_out(bundle: &Path, commit: &str) -> Result<()> {
    fs::create_dir_all(bundle)?;
    for entry in fs::read_dir(paths::root().join("bench/gpu"))? {
        let path = entry?.path();
        let is_tests = path
            .file_name()
            .is_some_and(|name| name == "test_bundle.py");
        if path.is_file() && !is_tests {
            fs::copy(
                &path,
                bundle.join(path.file_name().context("a file has a name")?),
            )?;
        }
    }
    fs::write(bundle.join("COMMIT"), format!("{commit}\n"))?;
    Ok(())
}

fn size(folder: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let found = entry.metadata()?;
        bytes += if found.is_dir() {
            size(&entry.path())?
        } else {
            found.len()
        };
    }
    Ok(bytes)
}

fn has_gpu() -> bool {
    let listed = Command::new("nvidia-smi").arg("-L").output();
    listed.is_ok_and(|output| output.status.success() && !output.stdout.is_empty())
}

fn explain(bundle: &Path) {
    println!(
        "\nThere is no GPU to measure here. On a GPU machine (Linux, x86-64, Python 3.9, a driver \
         for CUDA 13):\n\n\
         1. copy {bundle} there, and {model} into it\n   \
            (or in parts: split -b 48M {name} {name}. and copy those)\n\
         2. python3 gpu-bundle/run.py speed --out results     one table, in nine minutes at most\n\
         3. python3 gpu-bundle/run.py faults --out results    100 faults, in nine minutes at most\n\
         4. bring results/gpu.md and results/gpu-faults.md back into bench/results/\n",
        bundle = bundle.display(),
        model = fetch_model::path().display(),
        name = fetch_model::path()
            .file_name()
            .unwrap_or_default()
            .to_string_lossy(),
    );
}

fn measure_here(bundle: &Path, flags: &[String]) -> Result<()> {
    let model = fetch_model::run()?;
    let results = bundle.join("results");
    process::run(
        Command::new("python3")
            .arg(bundle.join("run.py"))
            .args(["speed", "--out"])
            .arg(&results)
            .arg("--smollm2")
            .arg(model)
            .args(flags),
    )?;
    fs::create_dir_all(paths::bench_results())?;
    fs::copy(
        results.join("gpu.md"),
        paths::bench_results().join("gpu.md"),
    )?;
    println!("written to bench/results/gpu.md");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bundle_has_the_script_and_all_it_imports() {
        let folder = tempfile::tempdir().unwrap();
        lay_out(folder.path(), "abc").unwrap();
        let names: Vec<_> = fs::read_dir(folder.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        for needed in ["run.py", "read.ptx", "COMMIT"] {
            assert!(names.iter().any(|name| name == needed), "{names:?}");
        }
        assert!(names.iter().all(|name| !name.starts_with("test_")));
        // It starts without other files, and prints its commands.
        let output = Command::new("python3")
            .arg("-B")
            .arg(folder.path().join("run.py"))
            .arg("--help")
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{output:?}");
        assert!(text.contains("speed,devices,faults"), "{text}");
        assert!(size(folder.path()).unwrap() < 200 << 10);
    }
}
