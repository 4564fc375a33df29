//! Child processes and their cleanup.
//!
//! Every child has a process group, so that signals also reach its descendants (a test binary under `cargo test`, a GPU
//! child under the supervisor). A signal to xtask is forwarded to all groups: SIGTERM the first time, SIGKILL the
//! second.

use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

static GROUPS: Mutex<Vec<Pid>> = Mutex::new(Vec::new());
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Starts the thread that forwards signals. Call once, before any child starts.
pub fn end_children_on_signals() {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM, SIGHUP])
        .expect("these signals can be handled");
    std::thread::spawn(move || {
        for _ in signals.forever() {
            let again = INTERRUPTED.swap(true, Ordering::SeqCst);
            signal_all(if again {
                Signal::SIGKILL
            } else {
                Signal::SIGTERM
            });
        }
    });
}

/// Whether the user has requested the end.
pub fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::SeqCst)
}

fn signal_all(signal: Signal) {
    for group in GROUPS.lock().expect("no holder panics").iter() {
        // A group that has just ended needs no signal.
        let _ = killpg(*group, signal);
    }
}

/// Process group to which signals are forwarded until this value goes out of scope.
#[derive(Debug)]
pub struct Group(Pid);

impl Group {
    pub fn of(leader: u32) -> Self {
        let group = Pid::from_raw(i32::try_from(leader).expect("a pid fits i32"));
        GROUPS.lock().expect("no holder panics").push(group);
        Self(group)
    }

    /// Sends a signal, unless the process has just ended.
    pub fn signal(&self, signal: Signal) {
        let _ = killpg(self.0, signal);
    }

    pub fn signal_leader(&self, signal: Signal) {
        let _ = kill(self.0, signal);
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let mut groups = GROUPS.lock().expect("no holder panics");
        groups.retain(|group| *group != self.0);
    }
}

/// Running program; its group is killed when this value goes out of scope.
#[derive(Debug)]
pub struct Running {
    child: Child,
    group: Group,
    name: String,
}

impl Running {
    pub fn start(command: &mut Command) -> Result<Self> {
        let name = command.get_program().to_string_lossy().into_owned();
        if interrupted() {
            bail!("interrupted");
        }
        let child = command
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot start {name}"))?;
        let group = Group::of(child.id());
        Ok(Self { child, group, name })
    }

    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    pub fn wait(&mut self) -> Result<ExitStatus> {
        self.child
            .wait()
            .with_context(|| format!("cannot wait for {}", self.name))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // The id is unambiguous only while the leader is not reaped.
        if !matches!(self.child.try_wait(), Ok(Some(_))) {
            self.group.signal(Signal::SIGKILL);
            let _ = self.child.wait();
        }
    }
}

/// Prints a command, runs it to its end, and returns an error unless it succeeds.
pub fn run(command: &mut Command) -> Result<()> {
    println!("$ {}", shown(command));
    let status = Running::start(command)?.wait()?;
    if !status.success() {
        bail!(
            "{} ended with {status}",
            command.get_program().to_string_lossy()
        );
    }
    Ok(())
}

/// Runs a command like [`run`], without printing it, and returns its standard output.
pub fn output(command: &mut Command) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command
        .output()
        .with_context(|| format!("cannot start {name}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{name} ended with {}:\n{}", output.status, said.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Command as a person would type it in the repository root.
pub fn shown(command: &Command) -> String {
    let root = format!("{}/", crate::paths::root().display());
    let word = |word: &OsStr| word.to_string_lossy().replace(&root, "");
    let program = match command.get_program() {
        program if program == cargo_path() => "cargo".to_owned(),
        program => word(program),
    };
    std::iter::once(program)
        .chain(command.get_args().map(word))
        .collect::<Vec<_>>()
        .join(" ")
}

/// `cargo`, the one that started xtask, in the repository root. Variables for xtask's package are removed: ring's build
/// script runs again where they change, and everything that depends on ring is compiled again.
pub fn cargo() -> Command {
    let mut command = Command::new(cargo_path());
    command.current_dir(crate::paths::root());
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            command.env_remove(&name);
        }
    }
    command
}

fn cargo_path() -> OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}
