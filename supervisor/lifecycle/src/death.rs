//! Why a child ended. Closed: a new cause makes the compiler ask for its name and its remedy.

use crate::gpu::{Condemnation, Need};
use std::time::Duration;
use strum::{EnumDiscriminants, IntoStaticStr, VariantArray};
use thiserror::Error;
use worker_orcd_ipc::{DeviceError, ExitCode, Fault, FaultKind, RequestId};

#[derive(Debug, Clone, PartialEq, Eq, Error, EnumDiscriminants)]
#[strum_discriminants(
    name(CauseKind),
    doc = "A [`DeathCause`] without its particulars.",
    derive(IntoStaticStr, VariantArray),
    strum(serialize_all = "snake_case")
)]
pub enum DeathCause {
    /// The child's own last words.
    #[error("{0}")]
    Said(Fault),
    /// An exit with a code of our table and no last words.
    #[error("the child exited with code {code} ({0}) and said nothing", code = .0.code())]
    Exited(ExitCode),
    #[error("the child exited with code {0}, which is none of its own")]
    ExitedUnknown(i32),
    /// A signal that this supervisor did not send.
    #[error("the child was killed by signal {0}")]
    Signalled(i32),
    /// SIGKILL, and the kernel counted a victim of its own.
    #[error("the child was killed by the kernel, which was out of memory")]
    OomKilled,
    #[error("no heartbeat for {} ms", .silent_for.as_millis())]
    HeartbeatLost { silent_for: Duration },
    #[error("a step ran for {} ms without end", .ran_for.as_millis())]
    StepDeadline { ran_for: Duration },
    #[error(
        "loading stood still for {} ms at {bytes_done} of {bytes_total} bytes",
        .stalled_for.as_millis()
    )]
    LoadStalled {
        stalled_for: Duration,
        bytes_done: u64,
        bytes_total: u64,
    },
    #[error("the child did not introduce itself within {} ms", .after.as_millis())]
    HandshakeDeadline { after: Duration },
    #[error("{0}")]
    HandshakeRefused(HandshakeRefusal),
    #[error("the child broke the protocol: {0}")]
    ProtocolViolation(String),
    /// Commands were not read for longer than the write deadline.
    #[error("the child stopped reading its commands")]
    LinkStalled,
    /// The socket ended but the process did not.
    #[error("the child closed its control socket and did not exit")]
    SocketClosed,
    /// A model that is loaded, but of which the supervisor cannot make text.
    #[error("the model cannot be served: {0}")]
    Unservable(String),
    /// Another model than the first child loaded.
    #[error(
        "the model file was changed in place: what is loaded now is not what the running streams \
         were begun with, so they cannot go on; the next start takes the file as it is"
    )]
    ModelChanged,
    /// `permanent`: the binary is missing or not executable; trying again cannot help.
    #[error("the child cannot be started: {message}")]
    SpawnFailed { message: String, permanent: bool },
    /// A child that lived on a device that nothing can be trusted on.
    #[error("{0}")]
    Condemned(Condemnation),
    /// A child that this supervisor wanted gone.
    #[error("dismissed by the supervisor")]
    Dismissed,
}

/// Something that a child said, or is, that makes talking to it pointless.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum HandshakeRefusal {
    #[error("{0}")]
    Preamble(String),
    #[error("the child was built with `{}`, which this supervisor accepts only with --accept-fault-injection", .0.join("`, `"))]
    Features(Vec<String>),
    #[error("the child says that it is process {said}, but it was started as {spawned}")]
    Pid { said: u32, spawned: u32 },
}

impl HandshakeRefusal {
    /// Of a child that was spawned as one process, says that it is another or the same, and has these
    /// compile-time features. `None`: it is accepted.
    pub(crate) fn of_hello(
        spawned: u32,
        said: u32,
        features: &[String],
        accepted: &[String],
    ) -> Option<Self> {
        if said != spawned {
            return Some(Self::Pid { said, spawned });
        }
        let is_unknown = |it: &&String| !accepted.contains(it);
        let unknown: Vec<_> = features.iter().filter(is_unknown).cloned().collect();
        (!unknown.is_empty()).then_some(Self::Features(unknown))
    }
}

/// The end of a process, as `wait` tells it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    Code(i32),
    Signal(i32),
    /// Killed by the kernel's OOM killer.
    OomKilled,
}

/// The suspects of a death, as far as its cause tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Blame {
    /// No request: it came from outside, or before any request.
    Nobody,
    /// Any request that was with the child.
    Anybody,
    /// The child itself named it.
    Request(RequestId),
}

impl DeathCause {
    /// Every label that there is, in the order of the enum.
    pub fn labels() -> impl Iterator<Item = &'static str> {
        CauseKind::VARIANTS.iter().flat_map(|kind| match kind {
            CauseKind::Said => FaultKind::VARIANTS.iter().map(|it| it.name()).collect(),
            CauseKind::Exited => vec![EXITED_SILENTLY],
            CauseKind::Condemned => Need::VARIANTS.iter().map(Into::into).collect(),
            kind => vec![kind.into()],
        })
    }

    /// The cause when nothing but the exit is known.
    #[must_use]
    pub fn of_exit(exit: Exit) -> Self {
        match exit {
            Exit::Signal(signal) => Self::Signalled(signal),
            Exit::OomKilled => Self::OomKilled,
            Exit::Code(code) => {
                ExitCode::from_code(code).map_or(Self::ExitedUnknown(code), Self::Exited)
            }
        }
    }

    /// A signal that the child did not earn by what it computed: a person or a service manager sent it, or a limit
    /// that was set to the process. The kernel keeps no record of the sender, so a signal that a program can
    /// earn counts as earned.
    #[must_use]
    pub fn is_from_outside(&self) -> bool {
        matches!(self, Self::Signalled(signal) if !OF_A_PROGRAM.contains(signal))
    }

    /// The cause lies in the machine's condition: another child at once would find it unchanged.
    #[must_use]
    pub fn needs_time(&self) -> bool {
        matches!(
            self,
            Self::Said(
                Fault::ModelLoad { .. }
                    | Fault::InsufficientMemory { .. }
                    | Fault::DeviceUnavailable { .. }
                    | Fault::OutOfMemory { .. }
                    | Fault::Io { .. }
            ) | Self::Exited(_)
                | Self::OomKilled
                | Self::SpawnFailed { .. }
                | Self::Unservable(_)
                | Self::LoadStalled { .. }
                | Self::HandshakeDeadline { .. }
        )
    }

    /// Memory was short, and a dying child has its own until it is reaped.
    #[must_use]
    pub(crate) fn is_of_memory(&self) -> bool {
        matches!(
            self,
            Self::Said(Fault::InsufficientMemory { .. } | Fault::OutOfMemory { .. })
                | Self::OomKilled
                | Self::Exited(ExitCode::Fault(
                    FaultKind::InsufficientMemory | FaultKind::OutOfMemory
                ))
        )
    }

    /// The child found that weights are not what they were, or not where they were.
    #[must_use]
    pub fn is_of_kept_weights(&self) -> bool {
        let of_weights = [DeviceError::WeightsChanged, DeviceError::NotResident];
        match self {
            Self::Said(Fault::Device { error, .. }) => of_weights.contains(error),
            _ => false,
        }
    }

    /// The suspects of this death. In doubt they are all requests: a suspicion costs an innocent
    /// request a moment alone, while a query of death that is never suspected costs everybody the
    /// worker.
    #[must_use]
    pub fn blame(&self) -> Blame {
        match self {
            Self::Said(Fault::NonFiniteLogits { request, .. }) => Blame::Request(*request),
            Self::Said(fault) => blame_of_fault(fault.kind()),
            Self::Exited(code) => blame_of_code(*code),
            Self::Signalled(_) if self.is_from_outside() => Blame::Nobody,
            Self::Signalled(_)
            | Self::OomKilled
            | Self::ExitedUnknown(_)
            | Self::HeartbeatLost { .. }
            | Self::StepDeadline { .. }
            | Self::ProtocolViolation(_)
            | Self::LinkStalled
            | Self::SocketClosed => Blame::Anybody,
            Self::LoadStalled { .. }
            | Self::HandshakeDeadline { .. }
            | Self::HandshakeRefused(_)
            | Self::Unservable(_)
            | Self::ModelChanged
            | Self::SpawnFailed { .. }
            | Self::Condemned(_)
            | Self::Dismissed => Blame::Nobody,
        }
    }

    /// A stable word for metrics and /health: the fault's, the need's, else that of the variant.
    #[must_use]
    pub fn label(&self) -> &'static str {
        match self {
            Self::Said(fault) => fault.kind().name(),
            Self::Exited(ExitCode::Fault(kind)) => kind.name(),
            Self::Exited(_) => EXITED_SILENTLY,
            Self::Condemned(condemnation) => condemnation.need.into(),
            other => CauseKind::from(other).into(),
        }
    }

    /// What two deaths have in common that one fault may have caused: the label and, of a violation of the protocol, which
    /// one it was, without numbers.
    #[must_use]
    pub fn manner(&self) -> String {
        match self {
            Self::ProtocolViolation(reason) => {
                let reason = reason.split(|c: char| c.is_ascii_digit());
                let words: Vec<_> = reason.filter(|part| !part.is_empty()).collect();
                format!("{}: {}", self.label(), words.concat())
            }
            other => other.label().to_owned(),
        }
    }
}

/// The label of an exit code that names no fault.
const EXITED_SILENTLY: &str = "exited_silently";

/// SIGILL, SIGTRAP, SIGABRT, SIGBUS, SIGFPE, SIGSEGV, SIGSYS: what a program earns by what it does.
/// All others are sent by people and service managers, or for a limit that was set to it.
const OF_A_PROGRAM: [i32; 7] = [4, 5, 6, 7, 8, 11, 31];

fn blame_of_code(code: ExitCode) -> Blame {
    match code {
        ExitCode::Fault(kind) => blame_of_fault(kind),
        ExitCode::Clean => Blame::Anybody,
        ExitCode::Usage | ExitCode::SupervisorLost => Blame::Nobody,
    }
}

fn blame_of_fault(kind: FaultKind) -> Blame {
    match kind {
        FaultKind::ModelLoad | FaultKind::InsufficientMemory | FaultKind::DeviceUnavailable => {
            Blame::Nobody
        }
        FaultKind::Device
        | FaultKind::NonFiniteLogits
        | FaultKind::Protocol
        | FaultKind::OutOfMemory
        | FaultKind::Panic
        | FaultKind::Io => Blame::Anybody,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn condemnation(need: Need) -> Condemnation {
        Condemnation {
            need,
            because: String::new(),
        }
    }

    #[test]
    fn every_exit_is_some_death_and_every_label_is_listed() {
        let of_exits = (-1..256).map(Exit::Code).chain((1..65).map(Exit::Signal));
        let of_exits = of_exits.chain([Exit::OomKilled]);
        let causes = of_exits.map(DeathCause::of_exit).chain([
            DeathCause::HeartbeatLost {
                silent_for: Duration::ZERO,
            },
            DeathCause::StepDeadline {
                ran_for: Duration::ZERO,
            },
            DeathCause::LoadStalled {
                stalled_for: Duration::ZERO,
                bytes_done: 0,
                bytes_total: 0,
            },
            DeathCause::HandshakeDeadline {
                after: Duration::ZERO,
            },
            DeathCause::HandshakeRefused(HandshakeRefusal::Pid {
                said: 1,
                spawned: 2,
            }),
            DeathCause::ProtocolViolation(String::new()),
            DeathCause::LinkStalled,
            DeathCause::SocketClosed,
            DeathCause::Unservable(String::new()),
            DeathCause::ModelChanged,
            DeathCause::SpawnFailed {
                message: String::new(),
                permanent: false,
            },
            DeathCause::Condemned(condemnation(Need::GpuReset)),
            DeathCause::Condemned(condemnation(Need::NodeReboot)),
            DeathCause::Dismissed,
        ]);
        let labels: BTreeSet<_> = causes.map(|cause| cause.label()).collect();
        assert_eq!(labels, DeathCause::labels().collect());
    }

    #[test]
    fn an_operators_kill_accuses_nobody_and_a_crash_accuses_whoever_was_there() {
        let blame = |exit| DeathCause::of_exit(exit).blame();
        for signal in 1..65 {
            let accuses = [4, 5, 6, 7, 8, 11, 31].contains(&signal);
            let expected = [Blame::Nobody, Blame::Anybody][usize::from(accuses)];
            assert_eq!(blame(Exit::Signal(signal)), expected, "signal {signal}");
        }
        assert_eq!(blame(Exit::OomKilled), Blame::Anybody);
        assert_eq!(blame(Exit::Code(0)), Blame::Anybody);
        assert_eq!(blame(Exit::Code(65)), Blame::Nobody);
        let request = RequestId(7);
        let cause = DeathCause::Said(Fault::NonFiniteLogits { step: 1, request });
        assert_eq!(cause.blame(), Blame::Request(request));
    }

    #[test]
    fn causes_read_like_sentences() {
        let cause = DeathCause::of_exit(Exit::Code(71));
        let text = "the child exited with code 71 (OutOfMemory) and said nothing";
        assert_eq!(cause.to_string(), text);
        let refusal = HandshakeRefusal::Features(vec!["fault-injection".to_owned()]);
        let text = "the child was built with `fault-injection`, which this supervisor accepts only \
                    with --accept-fault-injection";
        assert_eq!(DeathCause::HandshakeRefused(refusal).to_string(), text);
    }
}
