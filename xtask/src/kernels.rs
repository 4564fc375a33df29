//! `cargo xtask kernels`: `kernels/cuda` becomes `target/kernels/*.fatbin`, which the child embeds
//! when it is built the next time.
//!
//! No GPU is needed, and no CUDA installation: a compiler in `CUDA_HOME` or `PATH` is taken, and
//! where there is none, NVIDIA's wheels are installed into `target/nvcc`. A hash of sources,
//! compiler and flags lies beside the result, so an unchanged tree compiles nothing.

use crate::{paths, process, python};
use anyhow::{Context, Result, ensure};
use sha2::{Digest, Sha256};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// All five pinned together: nvcc's wheel asks for no version of the other four, and newer ones
/// do not fit it.
const WHEELS: [&str; 5] = [
    "nvidia-cuda-nvcc==13.0.88",
    "nvidia-nvvm==13.0.88",
    "nvidia-cuda-crt==13.0.88",
    "nvidia-cuda-runtime==13.0.96",
    "nvidia-cuda-cccl==13.0.85",
];

/// Ampere, Ada, Hopper, Blackwell; and text that the driver compiles for anything else.
const ARCHITECTURES: [(&str, &str); 5] = [
    ("compute_80", "sm_80"),
    ("compute_89", "sm_89"),
    ("compute_90a", "sm_90a"),
    ("compute_100a", "sm_100a"),
    ("compute_80", "compute_80"),
];

/// Translation units; the other files are included by them.
const UNITS: [&str; 3] = ["kernels", "decode_step", "faults"];

#[derive(clap::Args)]
pub struct Arguments {
    /// Only one architecture, such as sm_90a: faster while developing.
    #[arg(long)]
    only: Option<String>,
}

pub fn run(arguments: &Arguments) -> Result<()> {
    let flags = flags(arguments.only.as_deref())?;
    let nvcc = compiler()?;
    let folder = paths::target().join("kernels");
    fs::create_dir_all(&folder)?;
    let hash = hash(&nvcc, &flags)?;
    for unit in UNITS {
        compile(&nvcc, &flags, &hash, &folder.join(unit))?;
    }
    println!("now build the child again");
    Ok(())
}

/// Leaves `stem.fatbin`, made by this compiler from these sources.
fn compile(nvcc: &Path, flags: &[String], hash: &str, stem: &Path) -> Result<()> {
    let (fatbin, stamp) = (stem.with_extension("fatbin"), stem.with_extension("sha256"));
    if fatbin.exists() && fs::read_to_string(&stamp).is_ok_and(|known| known == hash) {
        println!("{} is up to date", fatbin.display());
        return Ok(());
    }
    println!("compiling {} with {}", fatbin.display(), nvcc.display());
    let source = sources().join(stem.file_name().unwrap_or_default());
    // Beside the result, and renamed when it is whole.
    let unfinished = stem.with_extension("unfinished");
    process::run(
        Command::new(nvcc)
            .args(flags)
            .arg("-o")
            .arg(&unfinished)
            .arg(source.with_extension("cu")),
    )
    .context("the kernels do not compile")?;
    fs::rename(&unfinished, &fatbin)?;
    Ok(fs::write(stamp, hash)?)
}

fn sources() -> PathBuf {
    paths::root().join("kernels/cuda")
}

fn flags(only: Option<&str>) -> Result<Vec<String>> {
    let fixed = "-ccbin g++ -std=c++17 -O3 -fatbin --threads 2 --compress-mode=size";
    let mut flags: Vec<String> = fixed.split(' ').map(str::to_owned).collect();
    for (arch, code) in ARCHITECTURES {
        if only.is_none_or(|only| only == code) {
            flags.push(format!("-gencode=arch={arch},code={code}"));
        }
    }
    let known = ARCHITECTURES.map(|(_, code)| code).join(", ");
    ensure!(
        flags.iter().any(|flag| flag.starts_with("-gencode")),
        "{} is none of {known}",
        only.unwrap_or_default()
    );
    Ok(flags)
}

fn compiler() -> Result<PathBuf> {
    let home = std::env::var_os("CUDA_HOME").map(|home| PathBuf::from(home).join("bin/nvcc"));
    if let Some(nvcc) = home.filter(|nvcc| nvcc.exists()) {
        return Ok(nvcc);
    }
    let works = |nvcc: &Path| {
        let version = Command::new(nvcc).arg("--version").output();
        version.is_ok_and(|output| output.status.success())
    };
    let in_path = PathBuf::from("nvcc");
    if works(&in_path) {
        return Ok(in_path);
    }
    let folder = paths::target().join("nvcc");
    if let Some(nvcc) = installed(&folder).filter(|nvcc| works(nvcc)) {
        return Ok(nvcc);
    }
    println!("installing nvcc from PyPI into {}", folder.display());
    fs::create_dir_all(&folder)?;
    python::create(&folder)?;
    process::run(python::pip_install(&folder.join("bin/python")).args(WHEELS))
        .context("nvcc cannot be installed")?;
    installed(&folder).context("the wheels hold no nvcc")
}

/// Somewhere under `lib/python3.X/site-packages`.
fn installed(folder: &Path) -> Option<PathBuf> {
    fs::read_dir(folder.join("lib"))
        .ok()?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .map(|python| python.join("site-packages/nvidia/cu13/bin/nvcc"))
        .find(|nvcc| nvcc.exists())
}

fn hash(nvcc: &Path, flags: &[String]) -> Result<String> {
    let mut hasher = Sha256::new();
    let version = process::output(Command::new(nvcc).arg("--version"))?;
    hasher.update(version);
    hasher.update(flags.join(" "));
    let mut files: Vec<PathBuf> = fs::read_dir(sources())?
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<_>>()?;
    files.sort();
    for file in files {
        hasher.update(file.file_name().unwrap_or_default().as_encoded_bytes());
        hasher.update(fs::read(&file)?);
    }
    let digest = hasher.finalize();
    Ok(digest.iter().map(|byte| format!("{byte:02x}")).collect())
}
