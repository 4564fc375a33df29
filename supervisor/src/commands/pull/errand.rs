//! For whom a model is got: the program that looks into what has come, who is told, and how long it is tried.

use super::news::News;
use crate::child::probe;
use crate::logging::printable;
use crate::signals::unblocked;
use anyhow::{Context as _, Result, anyhow, ensure};
use nix::sys::signal::Signal::SIGKILL;
use nix::sys::signal::killpg;
use nix::unistd::Pid;
use std::io::{Read as _, Seek as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::{fs, io};

pub(crate) struct Errand {
    /// The child's program: no other reads what has come.
    pub(crate) child: PathBuf,
    pub(crate) tell: Box<dyn Fn(News) + Send>,
    /// How often in a row the rest of a file may be asked for without a byte, after a transfer broke off; `None`:
    /// that is left to who comes next.
    pub(crate) retries: Option<u32>,
    pub(crate) transfer: Transfer,
}

/// Of what a program complains of, as much as a line can hold.
const MAX_COMPLAINT_BYTES: u64 = 4096;

/// The program that gets bytes, while there is one, for whoever has to end it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Transfer(Arc<Mutex<Running>>);

#[derive(Debug, Default)]
struct Running {
    program: Option<Child>,
    /// Programs are leaders of their groups.
    in_groups: bool,
    /// No other program may follow.
    is_over: bool,
}

/// What a program that has ended has written.
#[derive(Debug)]
pub(super) struct Output {
    pub(super) succeeded: bool,
    pub(super) bytes: Vec<u8>,
    /// What it complained of.
    pub(super) said: String,
}

impl Transfer {
    /// Of somebody who may have to end it. A program that is found by name may be a wrapper that waits for another
    /// (pyenv's `python3`), so it is ended with all that it has started. A terminal's interrupt does not reach it.
    pub(crate) fn in_groups() -> Self {
        let running = Running {
            in_groups: true,
            ..Running::default()
        };
        Self(Arc::new(Mutex::new(running)))
    }

    /// For good: a child that waits for a hub would outlive who is told to end.
    pub(crate) fn kill(&self) {
        let mut running = self.held();
        running.is_over = true;
        running.kill();
    }

    /// True once it was killed.
    pub(super) fn is_over(&self) -> bool {
        self.held().is_over
    }

    /// Runs a program to its end and takes `most_bytes` of it at most: a hub may answer without one.
    ///
    /// # Errors
    /// When it cannot be started, or writes more.
    pub(super) fn output(&self, command: &mut Command, most_bytes: u64) -> Result<Output> {
        let program = command.get_program().to_string_lossy().into_owned();
        // A file takes all that is said while the bytes are read.
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

    /// Waits for its end.
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
        // Where this fails it has ended.
        match self.in_groups {
            true => drop(killpg(Pid::from_raw(program.id().cast_signed()), SIGKILL)),
            false => drop(program.kill()),
        }
    }
}

impl Errand {
    pub(super) fn tell(&self, news: News) {
        (self.tell)(news);
    }

    /// The SHA-256 of a file, in hexadecimal digits.
    pub(super) fn digest(&self, file: &Path) -> Result<String> {
        wait_for(probe::digest(&self.child, file))
    }

    pub(super) fn check(&self, model: &Path) -> Result<()> {
        let checked = wait_for(probe::check_model(&self.child, model));
        let words = checked.with_context(|| format!("{} cannot be served", model.display()))?;
        self.tell(News::Checked(words));
        Ok(())
    }

    /// Moves a whole model into place, so that no name ever belongs to half of one, or to none.
    pub(super) fn install(&self, from: &Path, to: &Path) -> Result<()> {
        self.check(from)?;
        fs::rename(from, to).with_context(|| format!("{} cannot be written", to.display()))
    }
}

/// An answer, which may be the words of a file.
fn wait_for(answer: impl Future<Output = Result<String, String>>) -> Result<String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let answer = runtime.block_on(answer);
    answer
        .map(|words| printable(&words))
        .map_err(|why| anyhow!(printable(&why)))
}
