//! The confinement of this process, which it puts on itself before anything foreign is read: what a model
//! file or a request could make it do, the kernel refuses.
//!
//! ```text
//! begin    no new privileges, limits, no core        before the supervisor's sockets are connected to
//! enter    Landlock: files     seccomp: system calls  behind that, while there is one thread
//! ```
//!
//! Both are inherited by each later thread, and neither can be taken off. [`limits`] is the first half,
//! [`files`] and [`calls`] are the second; `docs/internals/confinement.md` has all of it row by row, with reasons.
//!
//! A kernel that lacks a part has the rest enforced, and what is missing is told in the
//! [hello](worker_orcd_ipc::ChildHello). Deliberately absent: namespaces and another user, which are for
//! whoever starts the supervisor to give.

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
    /// The one file that may be written to.
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// What NVIDIA's driver needs.
    #[arg(long)]
    pub cuda: bool,
    /// Everything: no confinement.
    #[arg(long)]
    pub unconfined: bool,
    /// Directories from which files may be removed, as rules of injected faults do.
    #[arg(skip)]
    pub removable: Vec<PathBuf>,
}

/// The first half. Gives what could not be had, in words.
#[must_use]
pub fn begin(allowed: &Allowed) -> Vec<String> {
    if allowed.unconfined {
        return vec!["it was switched off".to_owned()];
    }
    limits::set()
}

/// The second half, for the calling thread and those that it starts. Gives what could not be had, in words.
#[must_use]
pub fn enter(allowed: &Allowed) -> Vec<String> {
    if allowed.unconfined {
        return Vec::new();
    }
    // Landlock first: it needs system calls of its own.
    let parts = [files::restrict(allowed), calls::restrict(allowed)];
    parts.into_iter().filter_map(Result::err).collect()
}
