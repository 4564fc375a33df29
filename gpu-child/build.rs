//! Puts the compiled kernels beside the code that embeds them, with a list of them: `fatbins.rs`.
//!
//! `cargo xtask kernels` writes a fatbin for each translation unit, and their architectures, into the target folder.
//! Without them, empty files take their place: everything builds, and the error of the CUDA device names the command.

use std::path::{Path, PathBuf};
use std::{env, fs};

/// The unit that only a child with fault injection loads.
const FAULTS: &str = "faults";

fn main() {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    // The target folder is the one that cargo marks as a cache.
    let target = out
        .ancestors()
        .find(|folder| folder.join("CACHEDIR.TAG").exists());
    let folder = target.unwrap_or(Path::new(&out)).join("kernels");
    // It must exist for cargo to watch it; watching a missing path would rebuild every time.
    fs::create_dir_all(&folder).expect("the target folder can be written");
    println!("cargo::rerun-if-changed={}", folder.display());
    let list = "../kernels/cuda/units.txt";
    println!("cargo::rerun-if-changed={list}");
    let units = fs::read_to_string(list).expect("the list of translation units");
    let files = units.lines().map(|unit| format!("{unit}.fatbin"));
    for name in files.chain(["architectures".to_owned()]) {
        let found = fs::read(folder.join(&name)).unwrap_or_default();
        fs::write(out.join(name), found).expect("OUT_DIR can be written");
    }
    let of_models: String = units
        .lines()
        .filter(|unit| *unit != FAULTS)
        .map(|unit| format!("fatbin!({unit:?}),\n"))
        .collect();
    fs::write(out.join("fatbins.rs"), format!("&[\n{of_models}]\n"))
        .expect("OUT_DIR can be written");
}
