//! Rollback of an upgrade: returns to the previous program if this one cannot serve.
//!
//! ```text
//! exec ─→ receive ─→ settings, log, sockets, engine ─→ first turn of the driver ─→ release
//!            └─ armed: a panic, an exit, or two seconds without a first turn ──→ exec the previous program
//! ```
//!
//! Before the driver's first turn the handoff state is unused: the children received no message, and connections are
//! kept here. So the previous program is executed from its open file, with the same document and the same descriptors.
//!
//! The kernel ends children with the thread that created them ([`spawn`](worker_orcd_engine::child::spawn)), so the
//! main thread calls `exec` if it responds. If it hangs, another thread does, and the children are replaced as after a
//! death.

use super::upgrade::without_descriptors_of_systemd;
use crate::logging;
use parking_lot::Mutex;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::thread::{self, ThreadId};
use std::time::Duration;
use worker_orcd_engine::child::spawn::Spawner;
use worker_orcd_engine::handoff::passage::{self, Label, Passage};
use worker_orcd_process::signal_mask::blocked;

/// Time from `exec` to the first turn of the driver.
const PATIENCE: Duration = Duration::from_secs(2);

/// Time to write the last lines of the log.
const LAST_LINES: Duration = Duration::from_millis(100);

/// Pause between two checks of a rollback on another thread.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

static LIFELINE: Mutex<Lifeline> = Mutex::new(Lifeline {
    state: State::Slack,
    main: None,
    spawner: None,
    because: None,
});

#[derive(Debug)]
struct Lifeline {
    state: State,
    main: Option<ThreadId>,
    /// Runs work on the main thread; set once that accepts work.
    spawner: Option<Spawner>,
    /// Reason for the end of the program, if noted.
    because: Option<String>,
}

#[derive(Debug)]
enum State {
    /// No state was received, or it is in use.
    Slack,
    Armed(Box<Held>),
    /// A thread is executing the previous program.
    Pulled,
}

/// Received state.
#[derive(Debug)]
struct Held {
    /// `None`: this is the previous program, which has no rollback.
    program: Option<OwnedFd>,
    label: Label,
    document: Vec<u8>,
    /// Descriptors except those of connections.
    descriptors: Vec<OwnedFd>,
    connections: Vec<OwnedFd>,
}

/// Handoff state before its use.
#[derive(Debug)]
pub struct Received {
    pub(super) document: Vec<u8>,
    /// Duplicates of all descriptors except those of connections.
    pub(super) descriptors: Vec<OwnedFd>,
    /// Reason for the rollback of an upgrade to this program.
    pub(super) undone: Option<String>,
}

/// Receives the state of an upgrade from descriptor 0. Must be the first action of the program, on the main thread.
///
/// # Errors
/// If it is unreadable.
pub fn receive() -> io::Result<Option<Received>> {
    let memory = File::from(io::stdin().as_fd().try_clone_to_owned()?);
    let Some(passage) = passage::unpack(&memory)? else {
        return Ok(None);
    };
    rustix::stdio::dup2_stdin(&File::open("/dev/null")?)?;
    let Passage {
        label,
        document,
        mut descriptors,
    } = passage;
    let program = label.has_program && !descriptors.is_empty();
    let program = program.then(|| descriptors.remove(0));
    let few = descriptors.len().checked_sub(label.connections);
    let connections = descriptors.split_off(few.ok_or(io::ErrorKind::UnexpectedEof)?);
    let duplicates: io::Result<_> = descriptors.iter().map(OwnedFd::try_clone).collect();
    let has_program = program.is_some();
    let undone = label.undone.clone();
    let held = Held {
        program,
        label,
        document: document.clone(),
        descriptors,
        connections,
    };
    {
        let mut lifeline = LIFELINE.lock();
        lifeline.state = State::Armed(Box::new(held));
        lifeline.main = Some(thread::current().id());
    }
    if has_program {
        guard_against_panics();
        let watch = || {
            thread::sleep(PATIENCE);
            pull(&format!("it did not serve within {} s", PATIENCE.as_secs()));
        };
        thread::Builder::new()
            .name("lifeline".to_owned())
            .spawn(watch)?;
    }
    Ok(Some(Received {
        document,
        descriptors: duplicates?,
        undone,
    }))
}

/// Installs a panic hook that rolls back. Must be called again after another hook is installed.
pub(super) fn guard_against_panics() {
    let next = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        next(panic);
        pull(&format!("it panicked: {panic}"));
    }));
}

/// Sets the spawner that reaches the main thread.
pub(super) fn reach_main_by(spawner: &Spawner) {
    LIFELINE.lock().spawner = Some(spawner.clone());
}

/// Notes why the program is about to end.
pub(in crate::commands) fn note(reason: &str) {
    LIFELINE.lock().because = Some(reason.to_owned());
}

/// Rolls back at the end of the program, if this program has not served yet. Returns if it has, or if there is no
/// previous program.
pub fn end(otherwise: &str) {
    let because = LIFELINE.lock().because.clone();
    pull(because.as_deref().unwrap_or(otherwise));
}

/// Disables the rollback. Must follow the driver's first turn. Returns the connections.
pub(super) fn release() -> Vec<OwnedFd> {
    loop {
        let mut lifeline = LIFELINE.lock();
        match std::mem::replace(&mut lifeline.state, State::Slack) {
            State::Slack => return Vec::new(),
            State::Armed(held) => return held.connections,
            State::Pulled => lifeline.state = State::Pulled,
        }
        drop(lifeline);
        thread::sleep(LOOK_AGAIN);
    }
}

/// Executes the previous program. Returns if there is none, or if it cannot be executed.
fn pull(reason: &str) {
    let (held, spawner) = {
        let mut lifeline = LIFELINE.lock();
        let is_armed = matches!(&lifeline.state, State::Armed(held) if held.program.is_some());
        if !is_armed {
            return;
        }
        let State::Armed(held) = std::mem::replace(&mut lifeline.state, State::Pulled) else {
            return;
        };
        let is_main = lifeline.main == Some(thread::current().id());
        (held, lifeline.spawner.clone().filter(|_| !is_main))
    };
    tracing::error!(reason, "upgrade_undone");
    logging::settle(LAST_LINES);
    let held = std::sync::Arc::new(held);
    let undone = reason.to_owned();
    let executed = {
        let held = std::sync::Arc::clone(&held);
        move || held.execute(&undone)
    };
    let error = match spawner {
        Some(spawner) => spawner.execute_and_wait(executed),
        None => executed(),
    };
    tracing::error!(%error, "upgrade_not_undone");
    if let Some(mut held) = std::sync::Arc::into_inner(held) {
        held.program = None;
        LIFELINE.lock().state = State::Armed(held);
    }
}

impl Held {
    fn execute(&self, undone: &str) -> io::Error {
        let Some(program) = &self.program else {
            return io::ErrorKind::NotFound.into();
        };
        let label = Label {
            has_program: false,
            undone: Some(undone.to_owned()),
            ..self.label.clone()
        };
        let all = self.descriptors.iter().chain(&self.connections);
        let all: Vec<BorrowedFd<'_>> = all.map(|it| it.as_fd()).collect();
        let path = format!("/proc/self/fd/{}", program.as_raw_fd());
        let mut command = Command::new(path);
        // Arguments of the original start: those of the new program may be the cause.
        let mut arguments = label.arguments.iter();
        if let Some(name) = arguments.next() {
            command.arg0(name);
        }
        command.args(arguments).env_clear();
        command.envs(label.variables.iter().cloned());
        execute(command, &label, &self.document, &all)
    }
}

/// Executes a program in this process and passes it the document and all descriptors. Returns only on failure, with
/// descriptors as before.
pub(super) fn execute(
    mut command: Command,
    label: &Label,
    document: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> io::Error {
    without_descriptors_of_systemd(&mut command);
    let memory = match passage::pack(label, document, descriptors) {
        Ok(memory) => memory,
        Err(error) => return error,
    };
    command.stdin(memory);
    blocked(|| {
        let error = match passage::keep_open(descriptors, true) {
            Ok(()) => command.exec(),
            Err(error) => error,
        };
        // All of them are open.
        let _ = passage::keep_open(descriptors, false);
        error
    })
}
