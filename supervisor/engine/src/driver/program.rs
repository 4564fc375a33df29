//! Watch on the child's program on disk. A changed program replaces the serving child, as `POST /restart` does.

use crate::engine::control::Control;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::sync::mpsc::WeakUnboundedSender;
use tracing::{info, warn};
use worker_orcd_process::probe;

/// Time between two checks.
const PAUSE: Duration = Duration::from_secs(1);

/// Watches the program while handles to the engine exist.
pub(super) async fn watch(program: PathBuf, controls: WeakUnboundedSender<Control>) {
    let mut known = Program::default();
    while controls.strong_count() > 0 {
        let path = program.clone();
        // A disk may block.
        let file = tokio::task::spawn_blocking(move || std::fs::metadata(path)).await;
        let now = file.ok().and_then(Result::ok).as_ref().and_then(identity);
        if known.glance(now) {
            order(&program, &controls).await;
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Replaces the children if the program of one differs from the program at the path.
pub(super) async fn replace(
    pids: Vec<u32>,
    program: PathBuf,
    controls: WeakUnboundedSender<Control>,
) {
    let path = program.clone();
    // A disk may block.
    let differ = tokio::task::spawn_blocking(move || {
        let of = |path: &Path| std::fs::metadata(path).ok().as_ref().and_then(identity);
        let now = of(&path);
        let is_other = |pid: &u32| {
            let running = of(Path::new(&format!("/proc/{pid}/exe")));
            running.is_some() && now.is_some() && running != now
        };
        pids.iter().any(is_other)
    });
    if matches!(differ.await, Ok(true)) {
        order(&program, &controls).await;
    }
}

/// Requests a replacement if the new program is usable.
async fn order(program: &Path, controls: &WeakUnboundedSender<Control>) {
    if is_ours(program).await
        && let Some(controls) = controls.upgrade()
    {
        info!(program = %program.display(), "child_program_changed");
        drop(controls.send(Control::Replace));
    }
}

/// True for a program of this version. The handshake would refuse any other, and a standby would be given up for it.
async fn is_ours(program: &Path) -> bool {
    let version = probe::version(program).await;
    let is_ours = version.as_deref() == Ok(env!("CARGO_PKG_VERSION"));
    if !is_ours {
        let (Ok(said) | Err(said)) = version;
        warn!(program = %program.display(), said, "child_program_of_another_version");
    }
    is_ours
}

/// Identity of a file's content: device, inode, size, and time of the last change.
type Identity = (u64, u64, u64, i64, i64);

/// Identity of a program. `None` for a file that cannot be one yet.
fn identity(file: &Metadata) -> Option<Identity> {
    let changed = (file.mtime(), file.mtime_nsec());
    let identity = (file.dev(), file.ino(), file.size(), changed.0, changed.1);
    (file.is_file() && file.size() > 0).then_some(identity)
}

/// Observed states of the program.
#[derive(Debug, Default)]
struct Program {
    /// Program of the present children.
    current: Option<Identity>,
    last: Option<Identity>,
}

impl Program {
    /// True if the program has changed and equals the last observation, so that its write is complete.
    fn glance(&mut self, now: Option<Identity>) -> bool {
        let is_settled = now.is_some() && now == self.last;
        self.last = now;
        if !is_settled || now == self.current {
            return false;
        }
        let before = std::mem::replace(&mut self.current, now);
        before.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_is_another_is_told_once_nobody_writes_it_and_once_only() {
        let file = |size| Some((1, 2, size, 3, 4));
        let mut program = Program::default();
        let mut glances = |files: &[Option<Identity>]| -> Vec<bool> {
            files.iter().map(|file| program.glance(*file)).collect()
        };
        assert_eq!(
            glances(&[file(9), file(9), file(9)]),
            [false; 3],
            "the first"
        );
        assert_eq!(glances(&[None, None]), [false; 2], "it is gone");
        assert_eq!(glances(&[file(9), file(9)]), [false; 2], "the same again");
        let written = [file(1), file(5), file(8), file(8), file(8)];
        let sent = [false, false, false, true, false];
        assert_eq!(glances(&written), sent);
    }

    #[test]
    fn an_empty_file_and_a_directory_are_no_programs() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("program");
        std::fs::write(&path, "").expect("written");
        let of = |path: &std::path::Path| identity(&path.metadata().expect("it is there"));
        assert_eq!((of(&path), of(directory.path())), (None, None));
        std::fs::write(&path, "x").expect("written");
        assert!(of(&path).is_some());
    }
}
