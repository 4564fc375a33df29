//! Queries to this program without a child ([`worker_orcd_ipc::probe`]), each answered by a process of its own.
//!
//! An untrusted file is read by a process that may read no other. A device is probed without confinement: no file is
//! read for it, and if device nodes are missing, NVIDIA's driver creates them with a program that a confined child
//! could not start.

use crate::confinement::{self, Allowed};
use crate::device::cuda;
use crate::exit;
use crate::loader;
use sha2::{Digest as _, Sha256};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use worker_orcd_ipc::{ExitCode, Fault};

#[derive(Debug, clap::Args)]
pub struct Questions {
    /// Only say whether this program can compute on that CUDA device.
    #[arg(long, value_name = "ORDINAL", exclusive = true)]
    probe: Option<u32>,
    /// Only say how many CUDA devices there are.
    #[arg(long, exclusive = true)]
    count_devices: bool,
    /// Only say whether this program could serve that file, as far as its header says.
    #[arg(long, value_name = "FILE", exclusive = true)]
    check_model: Option<PathBuf>,
    /// Only say the SHA-256 of that file.
    #[arg(long, value_name = "FILE", exclusive = true)]
    digest: Option<PathBuf>,
    /// Only say whether this program can be confined here.
    #[arg(long, exclusive = true)]
    check_confinement: bool,
}

impl Questions {
    /// Answers the given query and exits; returns if there is none.
    pub fn answer(self) {
        if let Some(ordinal) = self.probe {
            end_with(cuda::outlook(ordinal));
        }
        if self.count_devices {
            end_with(cuda::count_devices().map(|count| count.to_string()));
        }
        if let Some(path) = self.check_model {
            drop(confine_to(&path));
            end_with(loader::check(&path));
        }
        if let Some(path) = self.digest {
            drop(confine_to(&path));
            end_with(digest(&path));
        }
        if self.check_confinement {
            end_with(check_confinement());
        }
    }
}

/// Applies the confinement, and returns its gaps. Callers ignore them: `--check-confinement` reports them.
fn confine_to(path: &Path) -> Vec<String> {
    let allowed = Allowed {
        model: Some(path.to_owned()),
        ..Allowed::default()
    };
    confine(&allowed)
}

fn confine(allowed: &Allowed) -> Vec<String> {
    let mut gaps = confinement::begin(allowed);
    gaps.extend(confinement::enter(allowed));
    gaps
}

fn check_confinement() -> Result<String, Fault> {
    let gaps = confine(&Allowed::default());
    if gaps.is_empty() {
        return Ok("Landlock, seccomp and limits are in force".to_owned());
    }
    Err(Fault::Io {
        message: gaps.join("; "),
    })
}

fn digest(path: &Path) -> Result<String, Fault> {
    let mut hasher = Sha256::new();
    let read = File::open(path).and_then(|mut file| io::copy(&mut file, &mut hasher));
    read.map_err(|error| Fault::Io {
        message: format!("{}: {error}", path.display()),
    })?;
    let digits = hasher.finalize().into_iter();
    Ok(digits.map(|byte| format!("{byte:02x}")).collect())
}

fn end_with(found: Result<String, Fault>) -> ! {
    let (line, code) = match found {
        Ok(words) => (words, ExitCode::Clean),
        Err(fault) => {
            let code = fault.exit_code();
            match fault {
                Fault::DeviceUnavailable { message }
                | Fault::ModelLoad { message }
                | Fault::Io { message } => (message, code),
                other => (other.to_string(), code),
            }
        }
    };
    println!("{line}");
    exit::end_now(code);
}
