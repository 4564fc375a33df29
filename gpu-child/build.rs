//! Puts the compiled kernels beside the code that embeds them.
//!
//! `cargo xtask kernels` writes `kernels/*.fatbin` into the target folder, and what they were
//! compiled for. Where it has not been
//! run, empty files take their place: everything builds, and the CUDA device says which command is
//! missing.

use std::path::{Path, PathBuf};
use std::{env, fs};

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
    for name in [
        "kernels.fatbin",
        "delta_net.fatbin",
        "matmul_few.fatbin",
        "matmul_many.fatbin",
        "matmul_wide.fatbin",
        "attention.fatbin",
        "attention_wgmma.fatbin",
        "decode_step.fatbin",
        "decode_step_any.fatbin",
        "decode_step_large.fatbin",
        "decode_step_experts.fatbin",
        "experts.fatbin",
        "experts_wide.fatbin",
        "faults.fatbin",
        "architectures",
    ] {
        let found = fs::read(folder.join(name)).unwrap_or_default();
        fs::write(out.join(name), found).expect("OUT_DIR can be written");
    }
}
