//! Context of a download: the program that checks files, the receiver of progress, and the number of retries.

use super::progress::ProgressEvent;
use anyhow::{Context as _, Result, anyhow, ensure};
use nix::sys::signal::Signal::SIGKILL;
use nix::sys::signal::killpg;
use nix::unistd::Pid;
use std::io::{Read as _, Seek as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::{fmt, fs, io};
use worker_orcd_process::probe;
use worker_orcd_process::signal_mask::unblocked;
use worker_orcd_text::printable::printable;

/// One download.
pub struct Download {
    /// The child's program, which alone reads downloaded files.
    pub child: PathBuf,
    /// Receives progress.
    pub on_progress: Box<dyn Fn(ProgressEvent) + Send>,
    /// Resumptions in a row without a new byte, after a transfer broke off. `None`: no resumption; the next call
    /// continues.
    pub retries: Option<u32>,
    pub transfer: Transfer,
}

/// Bytes of a program's error output in a message.
const MAX_COMPLAINT_BYTES: u64 = 4096;

/// Program that transfers bytes, if any. Another thread can kill it.
#[derive(Debug, Clone, Default)]
pub struct Transfer(Arc<Mutex<Running>>);

#[derive(Debug, Default)]
struct Running {
    program: Option<Child>,
    /// Programs are leaders of their process groups.
    in_groups: bool,
    /// No further program may start.
    is_over: bool,
}

/// Output of an ended program.
#[derive(Debug)]
pub(super) struct Output {
    pub(super) succeeded: bool,
    pub(super) bytes: Vec<u8>,
    /// Error output.
    pub(super) said: String,
}

impl Transfer {
    /// Transfer with a new process group for each program. A program may be a wrapper that waits for another (pyenv's
    /// `python3`), so the whole group is killed. An interrupt of the terminal does not reach the group.
    #[must_use]
    pub fn in_groups() -> Self {
        let running = Running {
            in_groups: true,
            ..Running::default()
        };
        Self(Arc::new(Mutex::new(running)))
    }

    /// Kills the program and prevents further ones: a child that waits for a hub would outlive the worker.
    pub fn kill(&self) {
        let mut running = self.held();
        running.is_over = true;
        running.kill();
    }

    /// True after [`kill`](Self::kill).
    pub(super) fn is_over(&self) -> bool {
        self.held().is_over
    }

    /// Runs a program to its end and reads at most `most_bytes`: a hub may send without end.
    ///
    /// # Errors
    /// If the program cannot start, or writes more.
    pub(super) fn output(&self, command: &mut Command, most_bytes: u64) -> Result<Output> {
        let program = command.get_program().to_string_lossy().into_owned();
        // A file accepts all error output while the bytes are read.
        let mut said = tempfile::tempfile()?;
        let command = command.stdout(Stdio::piped()).stderr(said.try_clone()?);
        let mut child = self
            .spawn(command)
            .with_context(|| format!("{program} cannot be started; it is needed for this"))?;
        let written = child.stdout.take();
        self.begins(child);
        let mut bytes = Vec::new();
        let read = written.map(|it| it.take(most_bytes + 1).read_to_end(&mut bytes));
        let is_too_much = bytes.len() as u64 > most_bytes;
        if is_too_much {
            self.held().kill();
        }
        let code = self.ends()?;
        read.transpose()?;
        ensure!(
            !is_too_much,
            "{program} was given more than {most_bytes} bytes"
        );
        let mut words = Vec::new();
        said.rewind()?;
        said.take(MAX_COMPLAINT_BYTES).read_to_end(&mut words)?;
        Ok(Output {
            succeeded: code == Some(0),
            bytes,
            said: printable(String::from_utf8_lossy(&words).trim()),
        })
    }

    pub(super) fn spawn(&self, command: &mut Command) -> io::Result<Child> {
        if self.held().in_groups {
            command.process_group(0);
        }
        unblocked(|| command.spawn())
    }

    pub(super) fn begins(&self, child: Child) {
        let mut running = self.held();
        running.program = Some(child);
        if running.is_over {
            running.kill();
        }
    }

    /// Waits for the program's end. Returns its exit code.
    pub(super) fn ends(&self) -> io::Result<Option<i32>> {
        let child = self.held().program.take();
        let status = child.map(|mut child| child.wait()).transpose()?;
        Ok(status.and_then(|status| status.code()))
    }

    fn held(&self) -> MutexGuard<'_, Running> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Running {
    fn kill(&mut self) {
        let Some(program) = &mut self.program else {
            return;
        };
        // An error means that the process has ended.
        match self.in_groups {
            true => drop(killpg(Pid::from_raw(program.id().cast_signed()), SIGKILL)),
            false => drop(program.kill()),
        }
    }
}

impl fmt::Debug for Download {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Download")
            .field("child", &self.child)
            .field("retries", &self.retries)
            .field("transfer", &self.transfer)
            .finish_non_exhaustive()
    }
}

impl Download {
    pub(super) fn report(&self, event: ProgressEvent) {
        (self.on_progress)(event);
    }

    /// SHA-256 of a file, in hexadecimal digits.
    pub(super) fn digest(&self, file: &Path) -> Result<String> {
        wait_for(probe::digest(&self.child, file))
    }

    pub(super) fn check(&self, model: &Path) -> Result<()> {
        let checked = wait_for(probe::check_model(&self.child, model));
        let words = checked.with_context(|| format!("{} cannot be served", model.display()))?;
        self.report(ProgressEvent::Checked(words));
        Ok(())
    }

    /// Renames a complete model to its final name. The name never refers to a partial file.
    pub(super) fn install(&self, from: &Path, to: &Path) -> Result<()> {
        self.check(from)?;
        fs::rename(from, to).with_context(|| format!("{} cannot be written", to.display()))
    }
}

/// Waits for a report of the child's program, which may contain text of a file.
fn wait_for(answer: impl Future<Output = Result<String, String>>) -> Result<String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let answer = runtime.block_on(answer);
    answer
        .map(|words| printable(&words))
        .map_err(|why| anyhow!(printable(&why)))
}
