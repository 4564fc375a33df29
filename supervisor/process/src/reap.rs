//! A started process: a pidfd signals its death, a kill covers its group, and it is waited for exactly once.

use crate::oom::OomWatch;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, WaitIdStatus, kill_process_group, pidfd_open,
    waitid,
};
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::process::Child as StdChild;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tracing::{debug, error};
use worker_orcd_ipc::Exit;

/// Spawned process that leads its own group. A drop before its observed death kills the group.
#[derive(Debug)]
pub struct Process {
    pid: Pid,
    pidfd: AsyncFd<OwnedFd>,
    reaped: bool,
    oom: OomWatch,
}

impl Process {
    /// Takes over a newly spawned child, the leader of its own process group.
    ///
    /// # Errors
    /// If there is no pidfd (a kernel before 5.10, no free descriptor). The process is killed.
    pub fn new(mut child: StdChild) -> io::Result<Self> {
        let process = Self::of(Pid::from_child(&child));
        if process.is_err() {
            child.kill()?;
            child.wait()?;
        }
        process
    }

    /// Takes over a child of this process that was created before an exec.
    ///
    /// # Errors
    /// As [`new`](Self::new), but the process is not killed.
    pub fn resume(pid: u32) -> io::Result<Self> {
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
        Self::of(pid.ok_or(io::ErrorKind::InvalidData)?)
    }

    fn of(pid: Pid) -> io::Result<Self> {
        let oom = OomWatch::start();
        // The process id cannot be reused: the process is our child and not waited for yet.
        let pidfd = pidfd_open(pid, PidfdFlags::NONBLOCK)?;
        Ok(Self {
            pid,
            pidfd: watch(pidfd)?,
            reaped: false,
            oom,
        })
    }

    /// Leaves the process alive, for [`resume`](Self::resume).
    pub fn hand_over(mut self) {
        self.reaped = true;
    }

    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid.as_raw_nonzero().get().cast_unsigned()
    }

    /// Waits for the end. Pending forever afterwards. Cancel-safe.
    pub async fn exited(&mut self) -> Exit {
        while !self.reaped {
            match self.pidfd.readable().await {
                Ok(mut readiness) => readiness.clear_ready(),
                Err(error) => {
                    error!(%error, "pidfd_not_polled");
                    break;
                }
            }
            if let Some(exit) = self.reap() {
                return exit;
            }
        }
        std::future::pending().await
    }

    /// Sends SIGTERM to the whole group.
    pub fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    /// Sends SIGKILL to the whole group, so that no descendant survives.
    pub fn kill(&self) {
        self.signal(Signal::KILL);
    }

    fn signal(&self, signal: Signal) {
        // Once waited for, the process id may be reused.
        if self.reaped {
            return;
        }
        if let Err(error) = kill_process_group(self.pid, signal) {
            debug!(%error, pid = self.pid(), "group_not_signalled");
        }
    }

    /// True if SIGSTOP or a debugger has stopped the process. False if unknown.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid()));
        // The preceding name may contain any character, including a parenthesis.
        let state = stat.ok().and_then(|stat| {
            let (_, behind) = stat.rsplit_once(") ")?;
            behind.chars().next()
        });
        !self.reaped && matches!(state, Some('T' | 't'))
    }

    fn reap(&mut self) -> Option<Exit> {
        let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        if let Ok(None) = waitid(WaitId::PidFd(self.pidfd.get_ref().as_fd()), look) {
            return None;
        }
        // Descendants are killed first, while the unreaped leader still reserves the group's id.
        self.kill();
        let end = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
        match waitid(WaitId::PidFd(self.pidfd.get_ref().as_fd()), end) {
            Ok(Some(status)) => {
                self.reaped = true;
                Some(exit_of(&status, &self.oom))
            }
            Ok(None) => None,
            Err(error) => {
                error!(%error, pid = self.pid(), "child_wait_failed");
                self.reaped = true;
                Some(Exit::Code(-1))
            }
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if !self.reaped {
            self.kill();
            // Best effort: a process in uninterruptible sleep stays a zombie until this process exits.
            let end = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
            let _ = waitid(WaitId::PidFd(self.pidfd.get_ref().as_fd()), end);
        }
    }
}

// The replacement is `unsafe`, because a type may misreport its descriptor. An `OwnedFd` owns exactly the descriptor
// that it reports, until it is dropped.
#[expect(
    deprecated,
    reason = "the supervisor has no unsafe code, and needs none here"
)]
fn watch(pidfd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::with_interest(pidfd, Interest::READABLE)
}

fn exit_of(status: &WaitIdStatus, oom: &OomWatch) -> Exit {
    match (status.exit_status(), status.terminating_signal()) {
        (None, Some(9)) if oom.has_struck() => Exit::OomKilled,
        (Some(code), _) => Exit::Code(code),
        (None, Some(signal)) => Exit::Signal(signal),
        // The wait covers no other states.
        (None, None) => Exit::Code(-1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::CommandExt as _;
    use std::process::{Command, Stdio};
    use std::time::Duration;
    use tokio::io::AsyncReadExt as _;

    fn shell(script: &str) -> (Process, tokio::net::unix::pipe::Receiver) {
        let mut child = Command::new("/bin/sh")
            .args(["-c", script])
            .process_group(0)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdout = OwnedFd::from(child.stdout.take().unwrap());
        let stdout = tokio::net::unix::pipe::Receiver::from_owned_fd(stdout).unwrap();
        (Process::new(child).unwrap(), stdout)
    }

    #[tokio::test]
    async fn codes_and_signals_are_told_apart() {
        let (mut process, _) = shell("exit 72");
        assert_eq!(process.exited().await, Exit::Code(72));
        let (mut process, _) = shell("kill -SEGV $$");
        assert_eq!(process.exited().await, Exit::Signal(11));
    }

    #[tokio::test]
    async fn grandchildren_die_with_the_child_and_release_its_pipes() {
        let (mut process, mut stdout) = shell("sleep 600 & exit 3");
        assert_eq!(process.exited().await, Exit::Code(3));
        let mut text = String::new();
        let end = tokio::time::timeout(Duration::from_secs(5), stdout.read_to_string(&mut text));
        end.await
            .expect("the grandchild still holds the pipe")
            .unwrap();
    }

    #[tokio::test]
    async fn one_that_was_left_alive_goes_on_and_is_waited_for_by_who_goes_on_with_it() {
        let (process, _stdout) = shell("sleep 600; exit 3");
        let pid = process.pid();
        process.hand_over();
        let mut again = Process::resume(pid).unwrap();
        let patience = Duration::from_millis(50);
        let too_soon = tokio::time::timeout(patience, again.exited()).await;
        assert!(too_soon.is_err(), "it lives");
        again.kill();
        assert_eq!(again.exited().await, Exit::Signal(9));
        assert!(Process::resume(pid).is_err(), "it is gone");
    }

    #[tokio::test]
    async fn a_child_that_ignores_sigterm_dies_of_sigkill() {
        let (mut process, mut stdout) = shell("trap '' TERM; echo armed; sleep 600; sleep 600");
        let mut armed = [0; 6];
        stdout.read_exact(&mut armed).await.unwrap();
        process.terminate();
        let patience = Duration::from_millis(100);
        assert!(
            tokio::time::timeout(patience, process.exited())
                .await
                .is_err()
        );
        process.kill();
        assert_eq!(process.exited().await, Exit::Signal(9));
    }
}
