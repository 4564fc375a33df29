//! Memory control group of a test, and a worker with its child in it.

use crate::model::real_model;
use crate::worker::{Worker, WorkerBuilder, binary, unique};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;
use tempfile::TempDir;

/// Control group, removed on drop. The child joins it before it executes its program.
#[derive(Debug)]
pub struct ControlGroup {
    folder: PathBuf,
    wrapper: TempDir,
}

impl ControlGroup {
    /// Creates a group; prints a notice and returns `None` where that is not permitted.
    #[must_use]
    pub fn limited_to(bytes: u64) -> Option<Self> {
        let name = format!("worker-orcd-test-{}-{}", std::process::id(), unique());
        let versions = [
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
            ("/sys/fs/cgroup", "memory.max"),
        ];
        let made = versions.into_iter().find_map(|(mount, limit)| {
            let folder = Path::new(mount).join(&name);
            fs::create_dir(&folder).ok()?;
            match fs::write(folder.join(limit), bytes.to_string()) {
                Ok(()) => Some(folder),
                Err(_) => {
                    let _ = fs::remove_dir(&folder);
                    None
                }
            }
        });
        let Some(folder) = made else {
            eprintln!("SKIPPED: no memory control group can be made here");
            return None;
        };
        let wrapper = TempDir::new().expect("a temporary directory");
        Some(Self { folder, wrapper })
    }

    /// Command that joins the group before it executes this program.
    #[must_use]
    pub fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("/bin/sh");
        let join = format!(
            "echo $$ > '{}/cgroup.procs' && exec \"$0\" \"$@\"",
            self.folder.display()
        );
        command.arg("-c").arg(join).arg(program);
        command
    }

    /// Has the kernel kill the whole group or nothing. False if the kernel does not support it.
    #[must_use]
    pub fn dies_as_a_whole(&self) -> bool {
        fs::write(self.folder.join("memory.oom.group"), "1").is_ok()
    }

    /// Worker with the real model.
    #[must_use]
    pub fn worker(&self) -> WorkerBuilder {
        let path = self.wrapper.path().join("child");
        let text = format!(
            "#!/bin/sh\necho $$ > '{}/cgroup.procs' && exec '{}' \"$@\"\n",
            self.folder.display(),
            binary("tested-worker-orcd-gpu").display()
        );
        fs::write(&path, text).expect("the directory is ours");
        let mode = fs::Permissions::from_mode(0o755);
        fs::set_permissions(&path, mode).expect("the file is ours");
        Worker::with_child_program(path).model(real_model())
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        // The kernel removes processes from a group with a delay.
        let gone = (0..100).any(|_| {
            thread::sleep(Duration::from_millis(20));
            fs::remove_dir(&self.folder).is_ok()
        });
        let folder = self.folder.display();
        assert!(gone || thread::panicking(), "{folder} stays");
    }
}
