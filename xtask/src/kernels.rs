//! `cargo xtask kernels`: compiles `kernels/cuda` to `target/kernels/*.fatbin`, which the next build of the child
//! embeds.
//!
//! Needs neither a GPU nor a CUDA installation: see [`toolkit`]. A hash of sources, compiler and flags is stored beside
//! each result, so unchanged units are not compiled again. [`instructions`] checks the machine code.

mod instructions;
mod toolkit;

use crate::{lanes, paths, process};
use anyhow::{Context, Result, ensure};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use toolkit::{Found, Toolkit};

/// Ampere, Ada, Hopper, Blackwell; and PTX that the driver compiles for any other.
const ARCHITECTURES: [(&str, &str); 5] = [
    ("compute_80", "sm_80"),
    ("compute_89", "sm_89"),
    ("compute_90a", "sm_90a"),
    ("compute_100a", "sm_100a"),
    ("compute_80", "compute_80"),
];

/// PTX for Ampere, which the tests interpret: `cargo xtask test` compiles it.
const INTERPRETED: &str = "compute_80";

/// Machine code for Hopper with mma.sync and wgmma: `cargo xtask test` compiles it if [`CHECKED`] does not have these
/// sources. Machine code for the others comes from the same sources, and is compiled with `--deep`.
const HOPPER: &str = "sm_90a";

/// Committed file with a hash for each unit that has the required instructions for Hopper. A hash covers sources,
/// compiler, flags and rules. `cargo xtask kernels --check` writes it.
const CHECKED: &str = "kernels/checked.sha256";

/// File below `target/kernels` with the compiled architectures.
const BUILT: &str = "architectures";

/// Translation units; the other files are included by them. A change recompiles only its own family of kernels. The
/// slowest ones come first, so that none of them is compiled alone at the end.
fn units() -> Vec<&'static str> {
    include_str!("../../kernels/cuda/units.txt")
        .lines()
        .collect()
}

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
    let codes = codes(arguments.only.as_deref())?;
    compile(&toolkit, &codes)?;
    if arguments.check {
        match toolkit::disassembler(&toolkit)? {
            Found::Here(disassembler) => {
                check(&disassembler, &codes)?;
                if codes.contains(&HOPPER) {
                    write_if_new(&paths::root().join(CHECKED), &checked(&toolkit)?)?;
                }
            }
            Found::Unreachable(why) => anyhow::bail!("cuobjdump cannot be installed: {why}"),
        }
    }
    println!("now build the child again");
    Ok(())
}

/// Builds all kernels for the architectures of a check, or for `all`, and checks their instructions. Returns the reason
/// if they were left out, which only happens if PyPI is unreachable and `required` is false.
pub fn for_ci(required: bool, all: bool) -> Result<Option<String>> {
    let leave_out = |why: String| {
        ensure!(!required, "the kernels cannot be compiled: {why}");
        println!("the kernels are left out, for PyPI cannot be reached: {why}");
        Ok(Some(why))
    };
    let toolkit = match toolkit::compiler()? {
        Found::Here(toolkit) => toolkit,
        Found::Unreachable(why) => return leave_out(why),
    };
    let committed = fs::read_to_string(paths::root().join(CHECKED)).unwrap_or_default();
    let is_checked = committed == checked(&toolkit)?;
    // Results of these sources are kept: the next build of the child embeds them.
    let built = built();
    let stays = !built.is_empty() && is_current(&toolkit, &built)?;
    let is_wanted = |code: &&str| match *code {
        INTERPRETED => true,
        HOPPER if !is_checked => true,
        code => all || stays && built.contains(&code),
    };
    let codes: Vec<_> = codes(None)?.into_iter().filter(is_wanted).collect();
    compile(&toolkit, &codes)?;
    if codes == [INTERPRETED] {
        println!("machine code of these kernels was checked before ({CHECKED})");
        return Ok(None);
    }
    match toolkit::disassembler(&toolkit)? {
        Found::Here(disassembler) => check(&disassembler, &codes).map(|()| None),
        Found::Unreachable(why) => leave_out(why),
    }
}

/// Architectures of the kernels in `target/kernels`.
fn built() -> Vec<&'static str> {
    let file = folder().join(BUILT);
    let text = fs::read_to_string(file).unwrap_or_default();
    let all = ARCHITECTURES.into_iter().map(|(_, code)| code);
    all.filter(|code| text.split_whitespace().any(|it| it == *code))
        .collect()
}

/// Builds the kernels for the cards of this machine, if any. Without an available compiler it prints that the worker
/// will compute on the CPU.
pub fn for_this_machine() -> Result<()> {
    let Some(only) = code_for(&compute_capabilities()) else {
        return Ok(());
    };
    match toolkit::compiler()? {
        Found::Here(toolkit) if is_current(&toolkit, &codes(None)?)? => Ok(()),
        Found::Here(toolkit) => compile(&toolkit, &codes(only)?),
        Found::Unreachable(why) => {
            println!("no kernels for the GPU, for nvcc cannot be installed: {why}");
            Ok(())
        }
    }
}

/// One line a card; empty without a driver.
fn compute_capabilities() -> String {
    let listed = Command::new("nvidia-smi")
        .args(["--query-gpu=compute_cap", "--format=csv,noheader"])
        .output();
    listed.map_or_else(
        |_| String::new(),
        |output| String::from_utf8_lossy(&output.stdout).into_owned(),
    )
}

/// Architecture for all these cards, or `Some(None)` if there are several; `None` without cards that there are kernels
/// for.
fn code_for(capabilities: &str) -> Option<Option<&'static str>> {
    let code = |line: &str| {
        let (major, minor) = line.trim().split_once('.')?;
        let capability = (major.parse::<u32>().ok()?, minor.parse::<u32>().ok()?);
        match capability {
            (8, 0) => Some("sm_80"),
            (8, 9) => Some("sm_89"),
            (9, 0) => Some("sm_90a"),
            (10, 0) => Some("sm_100a"),
            (8.., _) => Some("compute_80"),
            _ => None,
        }
    };
    let codes: BTreeSet<_> = capabilities.lines().filter_map(code).collect();
    match codes.len() {
        0 => None,
        1 => Some(codes.first().copied()),
        _ => Some(None),
    }
}

fn is_current(toolkit: &Toolkit, codes: &[&str]) -> Result<bool> {
    for unit in units() {
        let stem = folder().join(unit);
        let hash = hash(
            &toolkit.version,
            &flags(codes),
            &sources().join(unit).with_extension("cu"),
        )?;
        let known = fs::read_to_string(stem.with_extension("sha256"));
        if !stem.with_extension("fatbin").exists() || !known.is_ok_and(|known| known == hash) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Compiles `target/kernels/*.fatbin`, and writes their architectures.
fn compile(toolkit: &Toolkit, codes: &[&str]) -> Result<()> {
    let folder = folder();
    fs::create_dir_all(&folder)?;
    let processors = thread::available_parallelism().map_or(1, usize::from);
    lanes::run(&units(), processors, |unit| {
        compile_unit(toolkit, codes, &folder.join(unit))
    })?;
    // The child reads it, and refuses a device without kernels before it creates a context there.
    write_if_new(&folder.join(BUILT), &codes.join(" "))
}

/// Compiles `stem.fatbin` with this compiler from these sources.
fn compile_unit(toolkit: &Toolkit, codes: &[&str], stem: &Path) -> Result<()> {
    let name = stem.file_name().unwrap_or_default();
    let source = sources().join(name).with_extension("cu");
    let flags = flags(codes);
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
    // Written under another name, and renamed when complete.
    let unfinished = stem.with_extension("unfinished");
    process::run(
        Command::new(&toolkit.nvcc)
            .args(&flags)
            .arg("-o")
            .arg(&unfinished)
            .arg(source),
    )
    .context("the kernels do not compile")?;
    fs::rename(&unfinished, &fatbin)?;
    Ok(fs::write(stamp, hash)?)
}

/// Checks the instructions of every fatbin.
fn check(disassembler: &Path, codes: &[&str]) -> Result<()> {
    for unit in units() {
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
        let kernels = instructions::check(disassembler, unit, &fatbin, codes)?;
        println!("{unit}: {kernels} kernels use the instructions that they are meant to use");
        fs::write(stamp, hash)?;
    }
    Ok(())
}

/// Text of [`CHECKED`] for the present sources.
fn checked(toolkit: &Toolkit) -> Result<String> {
    let line = |unit: &str| {
        let source = sources().join(unit).with_extension("cu");
        let mut hasher = Sha256::new();
        hasher.update(hash(&toolkit.version, &flags(&[HOPPER]), &source)?);
        hasher.update(instructions::THIS_FILE);
        Ok(format!("{}  {unit}\n", hex(hasher)))
    };
    units().into_iter().map(line).collect()
}

fn folder() -> PathBuf {
    paths::target().join("kernels")
}

fn sources() -> PathBuf {
    paths::root().join("kernels/cuda")
}

/// Writes a changed file only: a new time stamp would rebuild the child.
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

/// Flags of the compiler, all of which affect the result.
fn flags(codes: &[&str]) -> Vec<String> {
    let fixed = "-ccbin g++ -std=c++17 -O3 -fatbin --compress-mode=size";
    let mut flags: Vec<String> = fixed.split(' ').map(str::to_owned).collect();
    for (arch, code) in ARCHITECTURES {
        if codes.contains(&code) {
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

/// Adds a project file and the project files that it includes.
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
    fn a_machine_gets_the_kernels_of_its_cards() {
        assert_eq!(code_for(""), None);
        assert_eq!(code_for("[N/A]\n6.1\n"), None);
        assert_eq!(code_for("9.0\n9.0\n"), Some(Some("sm_90a")));
        assert_eq!(code_for("12.0\n"), Some(Some("compute_80")));
        assert_eq!(code_for("8.0\n8.9\n"), Some(None));
    }

    #[test]
    fn a_unit_is_made_of_everything_that_it_includes() {
        for (unit, deep) in [
            ("kernels", "common.cuh"),
            ("decode_step_large", "common.cuh"),
            ("faults", "faults.cu"),
        ] {
            assert!(units().contains(&unit));
            let mut files = BTreeMap::new();
            let source = sources().join(unit).with_extension("cu");
            add_with_includes(&source, &mut files).expect("our own files");
            assert!(files.contains_key(deep), "{unit}: {:?}", files.keys());
        }
    }

    #[test]
    fn what_was_checked_names_every_unit_and_the_compiler() {
        let by = |version: &str| {
            let version = version.to_owned();
            let nvcc = PathBuf::new();
            checked(&Toolkit { nvcc, version }).expect("our own files")
        };
        let text = by("13.0");
        let lines: Vec<_> = text.lines().filter_map(|it| it.split_once("  ")).collect();
        assert_eq!(
            lines.iter().map(|(_, unit)| *unit).collect::<Vec<_>>(),
            units()
        );
        let hashes: BTreeSet<_> = lines.iter().map(|(hash, _)| *hash).collect();
        assert_eq!(hashes.len(), units().len());
        let other = by("13.1");
        assert!(hashes.iter().all(|hash| !other.contains(hash)));
    }

    #[test]
    fn an_architecture_that_nobody_knows_is_refused() {
        assert_eq!(codes(None).expect("all").len(), ARCHITECTURES.len());
        assert_eq!(codes(Some("sm_90a")).expect("one"), ["sm_90a"]);
        let refused = codes(Some("sm_1")).expect_err("none").to_string();
        assert!(refused.contains("sm_90a"), "{refused}");
    }
}
