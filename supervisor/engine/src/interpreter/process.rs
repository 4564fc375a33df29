//! Interpreter process: `worker-orcd interpret`, started by the supervisor, not by hand.
//!
//! It sets its limits before it reads any input. It reads and writes only the socket at descriptor 0. It can open no
//! file, start no program, and leaves no core dump.

use super::channel::{Channel, frame};
use super::{Answer, Order};
use landlock::{
    ABI, Access as _, AccessFs, AccessNet, Ruleset, RulesetAttr as _, RulesetError, Scope,
};
use nix::sys::prctl;
use nix::sys::resource::{Resource, UsageWho, getrlimit, getrusage, rlim_t, setrlimit};
use nix::sys::signal::Signal;
use nix::unistd::{Pid, getppid};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::{fs, io};
use worker_orcd_grammar::Compiler;
use worker_orcd_ipc::Grammar;
use worker_orcd_text::template::{ChatTemplate, TemplateError};

/// Subcommand of this program that calls [`run`], with the options [`PARENT`] and [`CPU_SECONDS`].
pub const COMMAND: &str = "interpret";
pub const PARENT: &str = "parent";
pub const CPU_SECONDS: &str = "cpu-seconds";

/// Address space for program, stack and heap. A conversation of the largest body takes a third of it, and two such
/// processes stay below a supervisor's share of a small container. A vocabulary and a grammar within the compiler's own
/// limits take less.
const ADDRESS_SPACE_BYTES: rlim_t = 512 << 20;

/// Usual stack size, whatever this machine's limit is.
const STACK_BYTES: rlim_t = 8 << 20;

/// OOM score of the process that the kernel's OOM killer takes first.
const OOM_SCORE: &str = "1000";

/// Executes orders of the supervisor `parent` until it closes the socket. Each order has `cpu_seconds` of processor
/// time.
///
/// # Errors
/// If the supervisor has died, the process cannot be confined, or the socket fails.
pub fn run(parent: i32, cpu_seconds: u64) -> io::Result<()> {
    let stream = confine(parent)?;
    serve(Channel::new(stream), cpu_seconds)
}

/// Ties this process to its parent and drops its rights.
fn confine(parent: i32) -> io::Result<UnixStream> {
    // On failure the kernel's default score stays.
    drop(fs::write("/proc/self/oom_score_adj", OOM_SCORE));
    // Ends this process with its parent. A parent that died before this call is detected by its PID.
    prctl::set_pdeathsig(Signal::SIGKILL)?;
    if getppid() != Pid::from_raw(parent) {
        return Err(io::Error::other("the supervisor is gone"));
    }
    // A core dump could be piped to a collector while the supervisor waits.
    prctl::set_dumpable(false)?;
    prctl::set_no_new_privs()?;
    // Must precede the limits: a ruleset needs a descriptor.
    allow_no_file().map_err(io::Error::other)?;
    let socket = io::stdin().as_fd().try_clone_to_owned()?;
    for (resource, limit) in [
        (Resource::RLIMIT_CORE, 0),
        (Resource::RLIMIT_FSIZE, 0),
        (Resource::RLIMIT_AS, ADDRESS_SPACE_BYTES),
        (Resource::RLIMIT_STACK, STACK_BYTES),
        // Open descriptors stay open.
        (Resource::RLIMIT_NOFILE, 0),
    ] {
        // A lower existing limit stays.
        let (_, hard) = getrlimit(resource)?;
        setrlimit(resource, limit.min(hard), limit.min(hard))?;
    }
    Ok(UnixStream::from(socket))
}

/// Landlock rules without an exception: no file, program, port or outside process. On a kernel without Landlock only
/// the limits apply, and `worker-orcd doctor` reports it.
fn allow_no_file() -> Result<(), RulesetError> {
    const ALL: ABI = ABI::V6;
    let rules = Ruleset::default()
        .handle_access(AccessFs::from_all(ALL))?
        .handle_access(AccessNet::from_all(ALL))?
        .scope(Scope::from_all(ALL))?;
    rules.create()?.restrict_self().map(drop)
}

/// Content of the first order.
#[derive(Debug, Default)]
struct Interpreter {
    template: Option<ChatTemplate>,
    compiler: Option<Compiler>,
}

fn serve(mut channel: Channel, cpu_seconds: u64) -> io::Result<()> {
    let mut interpreter = Interpreter::default();
    while let Ok(order) = channel.receive(None) {
        allow_time(cpu_seconds)?;
        let answer = interpreter.follow(order);
        let sent = frame(&answer).and_then(|frame| channel.send(&frame, None));
        sent.map_err(|error| io::Error::other(error.to_string()))?;
    }
    Ok(())
}

impl Interpreter {
    fn follow(&mut self, order: Order) -> Answer {
        match order {
            Order::Compile(source) => match ChatTemplate::compile(source) {
                Ok(compiled) => {
                    self.template = Some(compiled);
                    Answer::Ready
                }
                Err(error) => Answer::Failed(error),
            },
            Order::Render(rendering) => {
                let template = self.template.as_ref().ok_or(TemplateError::Missing);
                let rendered = template.and_then(|template| template.render(&rendering));
                rendered.map_or_else(Answer::Failed, Answer::Rendered)
            }
            Order::Vocabulary(facts) => match Compiler::new(&facts) {
                Ok(compiler) => {
                    self.compiler = Some(compiler);
                    Answer::Ready
                }
                Err(error) => Answer::NoVocabulary(error.to_string()),
            },
            Order::Check(grammar) => Answer::Checked(self.check(&grammar)),
        }
    }

    fn check(&self, grammar: &Grammar) -> Result<(), String> {
        let Some(compiler) = &self.compiler else {
            return Err("there is no vocabulary".to_owned());
        };
        let compiled = compiler.compile(grammar);
        let first = compiled.and_then(|mut matcher| matcher.mask().map(drop));
        first.map_err(|error| error.to_string())
    }
}

/// Limits the processor time of one order, from now on. The supervisor's deadline is earlier; this limit applies if the
/// supervisor itself is stopped.
fn allow_time(seconds: u64) -> io::Result<()> {
    let usage = getrusage(UsageWho::RUSAGE_SELF)?;
    let used = usage.user_time().tv_sec() + usage.system_time().tv_sec();
    let (_, hard) = getrlimit(Resource::RLIMIT_CPU)?;
    let limit = (used.unsigned_abs() + 1 + seconds).min(hard);
    setrlimit(Resource::RLIMIT_CPU, limit, hard)?;
    Ok(())
}
