//! Dead process that its parent cannot reap.
//!
//! The kernel reports the death of a traced process to its tracer first, and to its parent only when the tracer has
//! waited for it or detached (ptrace(2)). Until then it looks to the parent like a process that is stuck in the kernel:
//! killed, and not reapable.

use nix::sys::ptrace;
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

/// Tracer that prevents the reaping of a process until it is dropped. It is a thread.
#[derive(Debug)]
pub struct Unreapable {
    release: Option<Sender<()>>,
    tracer: Option<JoinHandle<()>>,
}

impl Unreapable {
    /// # Panics
    /// The kernel forbids tracing a descendant.
    #[must_use]
    pub fn hold(pid: u32) -> Self {
        let pid = Pid::from_raw(pid.cast_signed());
        let (release, released) = channel();
        let (held, is_held) = channel();
        let tracer = std::thread::spawn(move || trace(pid, &held, &released));
        is_held
            .recv()
            .expect("the tracer says whether it holds")
            .expect("a descendant can be traced");
        Self {
            release: Some(release),
            tracer: Some(tracer),
        }
    }
}

impl Drop for Unreapable {
    fn drop(&mut self) {
        drop(self.release.take());
        if let Some(tracer) = self.tracer.take() {
            let _ = tracer.join();
        }
    }
}

fn trace(pid: Pid, held: &Sender<nix::Result<()>>, released: &Receiver<()>) {
    let seized = ptrace::seize(pid, ptrace::Options::empty());
    let holds = seized.is_ok();
    let _ = held.send(seized);
    if holds {
        // Returns when the other half is dropped.
        let _ = released.recv();
        // It is dead by now, or the test failed before; the end of this thread detaches it anyway.
        let _ = waitpid(pid, Some(WaitPidFlag::WNOHANG | WaitPidFlag::__WALL));
    }
}
