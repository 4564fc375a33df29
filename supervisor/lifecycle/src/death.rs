//! Causes of death of a child. The enum is closed: with a new cause, the compiler lists every decision to make about it.

use crate::gpu::{Condemnation, Need};
use std::time::Duration;
use strum::{EnumDiscriminants, IntoStaticStr, VariantArray};
use thiserror::Error;
use worker_orcd_ipc::{DeviceError, Exit, ExitCode, Fault, FaultKind, RequestId};

/// Cause of a child's death. `Display` is the message in logs, `/health` and crash reports; [`DeathCause::label`] is the
/// stable name.
#[derive(Debug, Clone, PartialEq, Eq, Error, EnumDiscriminants)]
#[strum_discriminants(
    name(CauseKind),
    doc = "Kind of a [`DeathCause`], without its fields.",
    derive(IntoStaticStr, VariantArray),
    strum(serialize_all = "snake_case")
)]
pub enum DeathCause {
    /// The child reported this fault before it exited.
    #[error("{0}")]
    Reported(Fault),
    /// Exit with a code of [`ExitCode`], without a reported fault.
    #[error("the child exited with code {code} ({0}) and reported no fault", code = .0.code())]
    Exited(ExitCode),
    /// Exit with a code that is not in [`ExitCode`].
    #[error("the child exited with unknown code {0}")]
    ExitedUnknown(i32),
    /// Signal that this supervisor did not send.
    #[error("the child was killed by signal {0}")]
    Signalled(i32),
    /// SIGKILL, and the `oom_kill` counter of the control group or the machine rose.
    #[error("the child was killed by the kernel's OOM killer")]
    OomKilled,
    /// Silence for [`Deadlines::heartbeat`](crate::Deadlines) or longer.
    #[error("no heartbeat for {} ms", .silent_for.as_millis())]
    HeartbeatLost { silent_for: Duration },
    /// A step in progress for [`Deadlines::step`](crate::Deadlines) or longer, while heartbeats arrived.
    #[error("a step has been running for {} ms", .ran_for.as_millis())]
    StepDeadline { ran_for: Duration },
    /// No loaded byte for [`Deadlines::load`](crate::Deadlines) or longer.
    #[error(
        "loading made no progress for {} ms at {bytes_done} of {bytes_total} bytes",
        .stalled_for.as_millis()
    )]
    LoadStalled {
        stalled_for: Duration,
        bytes_done: u64,
        bytes_total: u64,
    },
    /// No `Hello` within [`Deadlines::handshake`](crate::Deadlines).
    #[error("the child sent no Hello within {} ms", .after.as_millis())]
    HandshakeDeadline { after: Duration },
    /// The supervisor refused the child's preamble or `Hello`.
    #[error("{0}")]
    HandshakeRefused(HandshakeRefusal),
    /// Message that is malformed, unexpected in the child's state, or inconsistent with earlier ones.
    #[error("the child violated the protocol: {0}")]
    ProtocolViolation(String),
    /// The child read no commands for longer than the write deadline.
    #[error("the child stopped reading its commands")]
    LinkStalled,
    /// The socket closed, but the process did not exit within [`Deadlines::reap`](crate::Deadlines).
    #[error("the child closed its control socket and did not exit")]
    SocketClosed,
    /// The child loaded the model, but the supervisor cannot use its tokenizer or chat template.
    #[error("the model cannot be served: {0}")]
    Unservable(String),
    /// The child loaded another model than the first child did.
    #[error(
        "the model file was changed in place: the running streams began with the old contents and cannot \
         continue; restart the worker to serve the new contents"
    )]
    ModelChanged,
    /// `permanent`: the binary is missing or not executable, so a retry cannot succeed.
    #[error("the child cannot be started: {message}")]
    SpawnFailed { message: String, permanent: bool },
    /// NVIDIA's driver requires a reset of the device or a reboot of the node.
    #[error("{0}")]
    Condemned(Condemnation),
    /// The supervisor ended the child: drain, stop, replacement, or a withdrawn device.
    #[error("dismissed by the supervisor")]
    Dismissed,
}

/// Reason for which the supervisor refuses a child during the handshake.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum HandshakeRefusal {
    /// The preamble is of another protocol or another version.
    #[error("{0}")]
    Preamble(String),
    /// The child was compiled with features that this supervisor does not accept.
    #[error("the child was built with `{}`, which this supervisor accepts only with --accept-fault-injection", .0.join("`, `"))]
    Features(Vec<String>),
    /// The process id in `Hello` is not the id of the spawned process.
    #[error("the child reports process id {reported}, but it was started as {spawned}")]
    Pid { reported: u32, spawned: u32 },
}

impl HandshakeRefusal {
    /// Checks a `Hello`: its process id against the spawned one, its compile-time features against the accepted ones.
    /// `None`: the child is accepted.
    pub(crate) fn of_hello(
        spawned: u32,
        reported: u32,
        features: &[String],
        accepted: &[String],
    ) -> Option<Self> {
        if reported != spawned {
            return Some(Self::Pid { reported, spawned });
        }
        let is_unknown = |it: &&String| !accepted.contains(it);
        let unknown: Vec<_> = features.iter().filter(is_unknown).cloned().collect();
        (!unknown.is_empty()).then_some(Self::Features(unknown))
    }
}

/// Requests that may have caused a death, as far as its cause shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Blame {
    /// None: the cause is external, or precedes all requests.
    NoRequest,
    /// Any request that the child was computing.
    AnyRequest,
    /// The request that the child named in its fault.
    Request(RequestId),
}

impl DeathCause {
    /// All labels, in the order of the enum.
    pub fn labels() -> impl Iterator<Item = &'static str> {
        CauseKind::VARIANTS.iter().flat_map(|kind| match kind {
            CauseKind::Reported => FaultKind::VARIANTS.iter().map(|it| it.name()).collect(),
            CauseKind::Exited => vec![EXITED_SILENTLY],
            CauseKind::Condemned => Need::VARIANTS.iter().map(Into::into).collect(),
            kind => vec![kind.into()],
        })
    }

    /// Cause of a death of which only the exit status is known.
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

    /// True for a signal that the child's own code does not raise: an operator, a service manager or a resource limit
    /// sent it. The kernel does not record the sender, so SIGSEGV and the like count as the child's own.
    #[must_use]
    pub fn is_from_outside(&self) -> bool {
        matches!(self, Self::Signalled(signal) if !RAISED_BY_PROGRAMS.contains(signal))
    }

    /// True for a cause in the state of the machine, such as memory or disk: an immediate restart would meet it again,
    /// so the next child is delayed.
    #[must_use]
    pub fn needs_time(&self) -> bool {
        matches!(
            self,
            Self::Reported(
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

    /// True for a shortage of memory. A successor must wait until the dying child's memory is freed, at its reaping.
    #[must_use]
    pub(crate) fn is_memory_shortage(&self) -> bool {
        matches!(
            self,
            Self::Reported(Fault::InsufficientMemory { .. } | Fault::OutOfMemory { .. })
                | Self::OomKilled
                | Self::Exited(ExitCode::Fault(
                    FaultKind::InsufficientMemory | FaultKind::OutOfMemory
                ))
        )
    }

    /// True if the child found retained weights changed, or not in the device's memory.
    #[must_use]
    pub fn is_weights_fault(&self) -> bool {
        let of_weights = [DeviceError::WeightsChanged, DeviceError::NotResident];
        match self {
            Self::Reported(Fault::Device { error, .. }) => of_weights.contains(error),
            _ => false,
        }
    }

    /// Suspected requests of this death. An unclear cause suspects all requests of the child: a false suspicion costs
    /// one request a short time of exclusive execution, an undetected query of death costs the worker.
    #[must_use]
    pub fn blame(&self) -> Blame {
        match self {
            Self::Reported(Fault::NonFiniteLogits { request, .. }) => Blame::Request(*request),
            Self::Reported(fault) => blame_of_fault(fault.kind()),
            Self::Exited(code) => blame_of_code(*code),
            Self::Signalled(_) if self.is_from_outside() => Blame::NoRequest,
            Self::Signalled(_)
            | Self::OomKilled
            | Self::ExitedUnknown(_)
            | Self::HeartbeatLost { .. }
            | Self::StepDeadline { .. }
            | Self::ProtocolViolation(_)
            | Self::LinkStalled
            | Self::SocketClosed => Blame::AnyRequest,
            Self::LoadStalled { .. }
            | Self::HandshakeDeadline { .. }
            | Self::HandshakeRefused(_)
            | Self::Unservable(_)
            | Self::ModelChanged
            | Self::SpawnFailed { .. }
            | Self::Condemned(_)
            | Self::Dismissed => Blame::NoRequest,
        }
    }

    /// Stable label for metrics, `/health` and logs: the name of the fault, of the GPU's need, or of the variant.
    #[must_use]
    pub fn label(&self) -> &'static str {
        match self {
            Self::Reported(fault) => fault.kind().name(),
            Self::Exited(ExitCode::Fault(kind)) => kind.name(),
            Self::Exited(_) => EXITED_SILENTLY,
            Self::Condemned(condemnation) => condemnation.need.into(),
            other => CauseKind::from(other).into(),
        }
    }

    /// Key by which deaths are compared: equal keys may have one common cause. It is the label; a protocol violation
    /// adds its message without digits.
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

/// Label of an exit code that belongs to no fault.
const EXITED_SILENTLY: &str = "exited_silently";

/// Signals that a program's own code raises: SIGILL, SIGTRAP, SIGABRT, SIGBUS, SIGFPE, SIGSEGV, SIGSYS.
const RAISED_BY_PROGRAMS: [i32; 7] = [4, 5, 6, 7, 8, 11, 31];

fn blame_of_code(code: ExitCode) -> Blame {
    match code {
        ExitCode::Fault(kind) => blame_of_fault(kind),
        ExitCode::Clean => Blame::AnyRequest,
        ExitCode::Usage | ExitCode::SupervisorLost => Blame::NoRequest,
    }
}

fn blame_of_fault(kind: FaultKind) -> Blame {
    match kind {
        FaultKind::ModelLoad | FaultKind::InsufficientMemory | FaultKind::DeviceUnavailable => {
            Blame::NoRequest
        }
        FaultKind::Device
        | FaultKind::NonFiniteLogits
        | FaultKind::Protocol
        | FaultKind::OutOfMemory
        | FaultKind::Panic
        | FaultKind::Io => Blame::AnyRequest,
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
    fn every_exit_has_a_cause_and_every_label_is_listed() {
        let exits = (-1..256).map(Exit::Code).chain((1..65).map(Exit::Signal));
        let exits = exits.chain([Exit::OomKilled]);
        let causes = exits.map(DeathCause::of_exit).chain([
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
                reported: 1,
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
    fn an_operators_kill_accuses_no_request_and_a_crash_accuses_all_requests_of_the_child() {
        let blame = |exit| DeathCause::of_exit(exit).blame();
        for signal in 1..65 {
            let accuses = [4, 5, 6, 7, 8, 11, 31].contains(&signal);
            let expected = [Blame::NoRequest, Blame::AnyRequest][usize::from(accuses)];
            assert_eq!(blame(Exit::Signal(signal)), expected, "signal {signal}");
        }
        assert_eq!(blame(Exit::OomKilled), Blame::AnyRequest);
        assert_eq!(blame(Exit::Code(0)), Blame::AnyRequest);
        assert_eq!(blame(Exit::Code(65)), Blame::NoRequest);
        let request = RequestId(7);
        let cause = DeathCause::Reported(Fault::NonFiniteLogits { step: 1, request });
        assert_eq!(cause.blame(), Blame::Request(request));
    }

    #[test]
    fn causes_are_sentences() {
        let cause = DeathCause::of_exit(Exit::Code(71));
        let text = "the child exited with code 71 (OutOfMemory) and reported no fault";
        assert_eq!(cause.to_string(), text);
        let refusal = HandshakeRefusal::Features(vec!["fault-injection".to_owned()]);
        let text = "the child was built with `fault-injection`, which this supervisor accepts only \
                    with --accept-fault-injection";
        assert_eq!(DeathCause::HandshakeRefused(refusal).to_string(), text);
    }
}
