//! `cargo xtask kernels`: `kernels/cuda` becomes `target/kernels/*.fatbin`, which the child embeds
//! when it is built the next time.
//!
//! No GPU is needed, and no CUDA installation: [`toolkit`] says what is taken instead. A hash of
//! sources, compiler and flags lies beside each result, so what has not changed is not compiled
//! again. [`instructions`] looks into the machine code, and whether it is what was meant.

mod instructions;
mod toolkit;

use crate::{paths, process};
use anyhow::{Context, Result, ensure};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use toolkit::{Found, Toolkit};

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
    /// Also disassemble them, and insist on the instructions that each kernel is meant to use.
    #[arg(long)]
    check: bool,
}

pub fn run(arguments: &Arguments) -> Result<()> {
    let toolkit = match toolkit::compiler()? {
        Found::Here(toolkit) => toolkit,
        Found::Unreachable(why) => anyhow::bail!("nvcc cannot be installed: {why}"),
    };
    compile(&toolkit, arguments.only.as_deref())?;
    if arguments.check {
        match toolkit::disassembler(&toolkit)? {
            Found::Here(disassembler) => check(&disassembler, arguments.only.as_deref())?,
            Found::Unreachable(why) => anyhow::bail!("cuobjdump cannot be installed: {why}"),
        }
    }
    println!("now build the child again");
    Ok(())
}

/// All kernels for all architectures, and their instructions. `Some` says why it was left out,
/// which only happens where PyPI cannot be reached and `required` is false.
pub fn for_ci(required: bool) -> Result<Option<String>> {
    let leave_out = |why: String| {
        ensure!(!required, "the kernels cannot be compiled: {why}");
        println!("the kernels are left out, for PyPI cannot be reached: {why}");
        Ok(Some(why))
    };
    let toolkit = match toolkit::compiler()? {
        Found::Here(toolkit) => toolkit,
        Found::Unreachable(why) => return leave_out(why),
    };
    compile(&toolkit, None)?;
    match toolkit::disassembler(&toolkit)? {
        Found::Here(disassembler) => check(&disassembler, None).map(|()| None),
        Found::Unreachable(why) => leave_out(why),
    }
}

/// Leaves `target/kernels/*.fatbin`, and what they were compiled for.
fn compile(toolkit: &Toolkit, only: Option<&str>) -> Result<()> {
    let codes = codes(only)?;
    let folder = folder();
    fs::create_dir_all(&folder)?;
    thread::scope(|scope| {
        let units: Vec<_> = UNITS
            .map(|unit| folder.join(unit))
            .into_iter()
            .map(|stem| scope.spawn(move || compile_unit(toolkit, only, &stem)))
            .collect();
        units
            .into_iter()
            .try_for_each(|unit| unit.join().expect("no compilation panics"))
    })?;
    // For the child, which tells a device that it has nothing for before it makes a context there.
    write_if_new(&folder.join("architectures"), &codes.join(" "))
}

/// Leaves `stem.fatbin`, made by this compiler from these sources.
fn compile_unit(toolkit: &Toolkit, only: Option<&str>, stem: &Path) -> Result<()> {
    let name = stem.file_name().unwrap_or_default();
    let source = sources().join(name).with_extension("cu");
    let flags = flags(only);
    let hash = hash(&toolkit.version, &flags, &source)?;
    let (fatbin, stamp) = (stem.with_extension("fatbin"), stem.with_extension("sha256"));
    if fatbin.exists() && fs::read_to_string(&stamp).is_ok_and(|known| known == hash) {
        println!("{} is up to date", fatbin.display());
        return Ok(());
    }
    println!(
        "compiling {} with {}",
        fatbin.display(),
        toolkit.nvcc.display()
    );
    // Beside the result, and renamed when it is whole.
    let unfinished = stem.with_extension("unfinished");
    let threads = thread::available_parallelism().map_or(1, usize::from);
    process::run(
        Command::new(&toolkit.nvcc)
            .args(&flags)
            .args(["--threads", &threads.to_string()])
            .arg("-o")
            .arg(&unfinished)
            .arg(source),
    )
    .context("the kernels do not compile")?;
    fs::rename(&unfinished, &fatbin)?;
    Ok(fs::write(stamp, hash)?)
}

/// Looks into every fatbin once.
fn check(disassembler: &Path, only: Option<&str>) -> Result<()> {
    let codes = codes(only)?;
    for unit in UNITS {
        let stem = folder().join(unit);
        let mut hasher = Sha256::new();
        hasher.update(fs::read(stem.with_extension("fatbin"))?);
        hasher.update(instructions::THIS_FILE);
        let (hash, stamp) = (hex(hasher), stem.with_extension("checked"));
        if fs::read_to_string(&stamp).is_ok_and(|known| known == hash) {
            println!("{unit}: the instructions are known to be right");
            continue;
        }
        let fatbin = stem.with_extension("fatbin");
        let kernels = instructions::check(disassembler, unit, &fatbin, &codes)?;
        println!("{unit}: {kernels} kernels use the instructions that they are meant to use");
        fs::write(stamp, hash)?;
    }
    Ok(())
}

fn folder() -> PathBuf {
    paths::target().join("kernels")
}

fn sources() -> PathBuf {
    paths::root().join("kernels/cuda")
}

/// A new time stamp would have the child built again.
fn write_if_new(file: &Path, text: &str) -> Result<()> {
    if fs::read_to_string(file).is_ok_and(|known| known == text) {
        return Ok(());
    }
    Ok(fs::write(file, text)?)
}

fn codes(only: Option<&str>) -> Result<Vec<&'static str>> {
    let all = ARCHITECTURES.map(|(_, code)| code);
    let codes: Vec<&str> = all
        .into_iter()
        .filter(|code| only.is_none_or(|only| only == *code))
        .collect();
    ensure!(
        !codes.is_empty(),
        "{} is none of {}",
        only.unwrap_or_default(),
        all.join(", ")
    );
    Ok(codes)
}

/// Everything that decides what comes out.
fn flags(only: Option<&str>) -> Vec<String> {
    let fixed = "-ccbin g++ -std=c++17 -O3 -fatbin --compress-mode=size";
    let mut flags: Vec<String> = fixed.split(' ').map(str::to_owned).collect();
    for (arch, code) in ARCHITECTURES {
        if only.is_none_or(|only| only == code) {
            flags.push(format!("-gencode=arch={arch},code={code}"));
        }
    }
    flags
}

fn hash(version: &str, flags: &[String], source: &Path) -> Result<String> {
    let mut hasher = Sha256::new();
    hasher.update(version);
    hasher.update(flags.join(" "));
    let mut files = BTreeMap::new();
    add_with_includes(source, &mut files)?;
    for (name, text) in files {
        hasher.update(name);
        hasher.update(text);
    }
    Ok(hex(hasher))
}

/// A file of ours and those of ours that it includes.
fn add_with_includes(file: &Path, files: &mut BTreeMap<String, String>) -> Result<()> {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    if files.contains_key(&*name) {
        return Ok(());
    }
    let text = fs::read_to_string(file).with_context(|| file.display().to_string())?;
    let included: Vec<String> = text
        .lines()
        .filter_map(|line| line.trim().strip_prefix("#include \""))
        .filter_map(|rest| Some(rest.split_once('"')?.0.to_owned()))
        .collect();
    files.insert(name.into_owned(), text);
    for other in included {
        add_with_includes(&file.with_file_name(other), files)?;
    }
    Ok(())
}

fn hex(hasher: Sha256) -> String {
    let digest = hasher.finalize();
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_is_made_of_everything_that_it_includes() {
        for unit in UNITS {
            let mut files = BTreeMap::new();
            let source = sources().join(unit).with_extension("cu");
            add_with_includes(&source, &mut files).expect("our own files");
            assert!(
                files.contains_key("common.cuh"),
                "{unit}: {:?}",
                files.keys()
            );
        }
    }

    #[test]
    fn an_architecture_that_nobody_knows_is_refused() {
        assert_eq!(codes(None).expect("all").len(), ARCHITECTURES.len());
        assert_eq!(codes(Some("sm_90a")).expect("one"), ["sm_90a"]);
        let refused = codes(Some("sm_1")).expect_err("none").to_string();
        assert!(refused.contains("sm_90a"), "{refused}");
    }
}
