//! Confinement of this process by itself, before it reads untrusted input: the kernel then refuses whatever a model
//! file or a request could make it do beyond its task.
//!
//! ```text
//! begin    no new privileges, limits, no core         before the supervisor's sockets are connected
//! enter    Landlock: files     seccomp: system calls  afterwards, while there is one thread
//! ```
//!
//! Both are inherited by each later thread, and neither can be removed. [`limits`] is the first half, [`files`] and
//! [`calls`] are the second; `docs/internals/confinement.md` lists every rule with its reason.
//!
//! A kernel without one of the features enforces the others, and the gap is reported in the
//! [hello](worker_orcd_ipc::ChildHello). Deliberately absent: namespaces and another user, which are the responsibility
//! of the supervisor's service manager.

mod calls;
mod files;
mod limits;

use std::path::PathBuf;

/// What this process is started for, and may therefore have; everything else is refused.
#[derive(Debug, Default, clap::Args)]
pub struct Allowed {
    /// The one model that may be opened, by its file or the first of several. Without it, only what is handed over.
    #[arg(long, value_name = "FILE")]
    pub model: Option<PathBuf>,
    /// The draft model that may be opened, by its file or the first of several.
    #[arg(long, value_name = "FILE")]
    pub draft_model: Option<PathBuf>,
    /// The one file that may be written to.
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// What NVIDIA's driver needs.
    #[arg(long)]
    pub cuda: bool,
    /// Everything: no confinement.
    #[arg(long)]
    pub unconfined: bool,
    /// Directories from which rules of injected faults may remove files.
    #[arg(skip)]
    pub removable: Vec<PathBuf>,
}

/// Applies the first half. Returns a description of each gap.
#[must_use]
pub fn begin(allowed: &Allowed) -> Vec<String> {
    if allowed.unconfined {
        return vec!["it was switched off".to_owned()];
    }
    limits::set()
}

/// Applies the second half to the calling thread and its later threads. Returns a description of each gap.
#[must_use]
pub fn enter(allowed: &Allowed) -> Vec<String> {
    if allowed.unconfined {
        return Vec::new();
    }
    // Landlock first: it needs system calls of its own.
    let parts = [files::restrict(allowed), calls::restrict(allowed)];
    parts.into_iter().filter_map(Result::err).collect()
}
