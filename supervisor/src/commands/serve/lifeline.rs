//! The way back, for a program that was executed in an upgrade and cannot go on.
//!
//! ```text
//! exec ─→ receive ─→ settings, log, sockets, engine ─→ first turn of the driver ─→ release
//!            └─ armed: a panic, an exit, or two seconds without a first turn ──→ exec the program before
//! ```
//!
//! Until the driver's first turn nothing of the estate was used up: the children were sent nothing, and connections
//! lie here. So the program before, whose file is open, is executed with the same document and the same descriptors.
//!
//! The kernel ends children with the thread that made them ([`spawn`](crate::child::spawn)), so the main thread
//! executes where it can be reached. Where it hangs, another thread does, and children are replaced as after a death.

use super::upgrade::without_descriptors_of_systemd;
use crate::child::spawn::Spawner;
use crate::estate::passage::{self, Label, Passage};
use crate::logging;
use crate::signals::blocked;
use parking_lot::Mutex;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::thread::{self, ThreadId};
use std::time::Duration;

/// Time from `exec` to the first turn of the driver.
const PATIENCE: Duration = Duration::from_secs(2);

/// Time for the last lines of the log to be read.
const LAST_LINES: Duration = Duration::from_millis(100);

/// Pause between two looks at an undoing that another thread has begun.
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
    /// Reaches the main thread, once that takes orders.
    spawner: Option<Spawner>,
    /// Why the program is about to end, as far as it was said.
    because: Option<String>,
}

#[derive(Debug)]
enum State {
    /// Nothing was received, or it is used.
    Slack,
    Armed(Box<Held>),
    /// A thread is executing the program before.
    Pulled,
}

/// Everything that was received.
#[derive(Debug)]
struct Held {
    /// `None`: this is the program before, which has no way back.
    program: Option<OwnedFd>,
    label: Label,
    document: Vec<u8>,
    /// Without connections.
    descriptors: Vec<OwnedFd>,
    connections: Vec<OwnedFd>,
}

/// What is known of an estate before it is used.
#[derive(Debug)]
pub struct Received {
    pub(super) document: Vec<u8>,
    /// Duplicates of everything but connections.
    pub(super) descriptors: Vec<OwnedFd>,
    /// Why the upgrade was undone that this program was to be replaced in.
    pub(super) undone: Option<String>,
}

/// Takes what an upgrade has left in descriptor 0. The first act of the program, on the main thread.
///
/// # Errors
/// When it cannot be read.
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

/// Has a panic of any thread execute the program before. To be called again where another hook was set.
pub(super) fn guard_against_panics() {
    let next = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        next(panic);
        pull(&format!("it panicked: {panic}"));
    }));
}

/// From now on the main thread takes orders.
pub(super) fn reach_main_by(spawner: &Spawner) {
    LIFELINE.lock().spawner = Some(spawner.clone());
}

/// Why the program is about to end.
pub(in crate::commands) fn note(reason: &str) {
    LIFELINE.lock().because = Some(reason.to_owned());
}

/// The program ends. Executes the one before where this one has not served yet; returns where it has, or there is none.
pub fn end(otherwise: &str) {
    let because = LIFELINE.lock().because.clone();
    pull(because.as_deref().unwrap_or(otherwise));
}

/// The first turn has come: there is no way back from here. Returns the connections.
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

/// Executes the program before, if there is a way back. Returns when there is none, or it cannot be executed.
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
        // As it was started: what is wrong may be in these.
        let mut arguments = label.arguments.iter();
        if let Some(name) = arguments.next() {
            command.arg0(name);
        }
        command.args(arguments).env_clear();
        command.envs(label.variables.iter().cloned());
        execute(command, &label, &self.document, &all)
    }
}

/// Executes a program in this one's place and leaves it everything. Returns only when that failed; then everything is as
/// before.
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
        // Each of them is open.
        let _ = passage::keep_open(descriptors, false);
        error
    })
}
