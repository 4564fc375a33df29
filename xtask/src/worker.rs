//! Running worker: build, start on a free port, and end with its child.

use crate::process::Group;
use crate::{paths, process};
use anyhow::{Result, bail};
use nix::sys::signal::Signal;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use worker_orcd_harness::launch::AT_A_FREE_PORT;
use worker_orcd_harness::log::Watch;
use worker_orcd_harness::{Client, Launched, Log};

/// 15 s: a drain waits 5 s for streams by default; the rest is for the child's end.
const DRAIN_PATIENCE: Duration = Duration::from_secs(15);

/// 2 min: longer than any pause of a healthy worker.
const SILENCE_LIMIT: Duration = Duration::from_secs(120);

pub struct Worker {
    launched: Launched,
    group: Group,
    pub client: Client,
}

pub fn build() -> Result<()> {
    process::run(process::cargo().args([
        "build",
        "--release",
        "-p",
        "worker-orcd",
        "-p",
        "worker-orcd-gpu",
    ]))
}

impl Worker {
    /// Starts a worker that [`build`] built and returns once it serves.
    pub fn start(model: &Path, flags: &[String], watch: Watch) -> Result<Self> {
        let mut command = Command::new(paths::built("release", "worker-orcd"));
        command
            .args(AT_A_FREE_PORT)
            .args(["--device", "cpu", "--model"])
            .arg(model)
            .args(flags)
            .process_group(0);
        if process::interrupted() {
            bail!("interrupted");
        }
        let launched = Launched::start(&mut command, Log::watched(watch))?;
        let group = Group::of(launched.pid());
        // A large model may take long, and the user can interrupt.
        let client = patient(launched.listening(Duration::MAX)?);
        launched.ready(&client, Duration::MAX)?;
        Ok(Self {
            launched,
            group,
            client,
        })
    }

    pub fn pid(&self) -> u32 {
        self.launched.pid()
    }

    /// Drains the worker, and returns an error unless it ends cleanly.
    pub fn stop(self) -> Result<()> {
        self.group.signal_leader(Signal::SIGTERM);
        let status = self.launched.exit_within(DRAIN_PATIENCE)?;
        if !status.success() {
            bail!("worker-orcd ended with {status}");
        }
        Ok(())
    }

    /// Waits until it ends.
    pub fn wait(self) -> Result<()> {
        let status = self.launched.exit_within(Duration::MAX)?;
        if !status.success() && !process::interrupted() {
            bail!(
                "worker-orcd ended with {status}:\n{}",
                self.launched.log.text()
            );
        }
        Ok(())
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // The id is unambiguous only while the leader is not reaped.
        if self.launched.ended().is_none() {
            self.group.signal(Signal::SIGKILL);
        }
    }
}

/// Client that waits for slow responses.
pub fn patient(client: Client) -> Client {
    Client {
        patience: SILENCE_LIMIT,
        ..client
    }
}
