//! The child's program on disk: when it has become another, a child of it is put in the place of the one
//! that serves, as by `POST /restart`.

use crate::child::probe;
use crate::engine::control::Control;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::sync::mpsc::WeakUnboundedSender;
use tracing::{info, warn};

/// Time between two glances.
const PAUSE: Duration = Duration::from_secs(1);

/// Watches for as long as somebody listens.
pub(super) async fn watch(program: PathBuf, controls: WeakUnboundedSender<Control>) {
    let mut known = Program::default();
    while controls.strong_count() > 0 {
        let path = program.clone();
        // A disk may not answer.
        let file = tokio::task::spawn_blocking(move || std::fs::metadata(path)).await;
        let now = file.ok().and_then(Result::ok).as_ref().and_then(identity);
        if known.glance(now) {
            order(&program, &controls).await;
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Has children replaced of which one is of another program than the path leads to now.
pub(super) async fn replace(
    pids: Vec<u32>,
    program: PathBuf,
    controls: WeakUnboundedSender<Control>,
) {
    let path = program.clone();
    // A disk may not answer.
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

/// Orders a child of a program that is another than before, unless that cannot serve.
async fn order(program: &Path, controls: &WeakUnboundedSender<Control>) {
    if is_ours(program).await
        && let Some(controls) = controls.upgrade()
    {
        info!(program = %program.display(), "child_program_changed");
        drop(controls.send(Control::Replace));
    }
}

/// A child of another version would be refused, and one that stands by given up for it.
async fn is_ours(program: &Path) -> bool {
    let version = probe::version(program).await;
    let is_ours = version.as_deref() == Ok(env!("CARGO_PKG_VERSION"));
    if !is_ours {
        let (Ok(said) | Err(said)) = version;
        warn!(program = %program.display(), said, "child_program_of_another_version");
    }
    is_ours
}

/// Tells a file from what it was before: device, inode, size, and the moment of its last change.
type Identity = (u64, u64, u64, i64, i64);

/// `None` for what cannot be a program yet.
fn identity(file: &Metadata) -> Option<Identity> {
    let changed = (file.mtime(), file.mtime_nsec());
    let identity = (file.dev(), file.ino(), file.size(), changed.0, changed.1);
    (file.is_file() && file.size() > 0).then_some(identity)
}

/// The program as it was seen.
#[derive(Debug, Default)]
struct Program {
    /// The one that children are of.
    current: Option<Identity>,
    last: Option<Identity>,
}

impl Program {
    /// True when it is another than before, and was so at the last glance too: nobody writes it any more.
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
        let told = [false, false, false, true, false];
        assert_eq!(glances(&written), told);
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
