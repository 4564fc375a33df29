//! Events: inputs of the worker.

use crate::death::HandshakeRefusal;
use crate::effect::{DeviceId, SeatId};
use crate::gpu::GpuVerdict;
use std::time::Duration;
use worker_orcd_ipc::{Exit, Fault, Generation};

/// Input of the worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// Passage of time. Legal at any time, required at [`Worker::poll_deadline`].
    ///
    /// [`Worker::poll_deadline`]: crate::Worker::poll_deadline
    Tick,
    /// Event of one child. An event of a generation without a seat is dropped and counted in
    /// [`Worker::stale_events`](crate::Worker::stale_events).
    Child {
        generation: Generation,
        event: ChildEvent,
    },
    /// Report of NVIDIA's driver about a device.
    Gpu(DeviceId, GpuVerdict),
    /// Removes the latest `deaths` from the device's count of deaths without progress: a request that ran alone caused
    /// them, or a signal had stopped the child.
    DiscountDeaths { device: DeviceId, deaths: u32 },
    /// Refuse new requests, finish the accepted ones within `timeout`, then end.
    Drain { timeout: Duration },
    /// No request is left. The driver sends it while draining.
    Idle,
    /// Replace the serving child of each device by a new one, once the new one is ready.
    Replace,
    /// Take this device out of service after its streams have moved to other devices. Ignored for the last device in use.
    Withdraw(DeviceId),
    /// The child of this seat has no requests left, after [`ChildAction::Vacate`](crate::ChildAction::Vacate).
    Vacated(SeatId),
    /// Return an out-of-service device to use.
    Readmit(DeviceId),
    /// End all requests and kill all children immediately.
    StopNow,
}

/// Event of one child.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChildEvent {
    /// The process exists.
    Spawned {
        pid: u32,
    },
    /// No process was created. `permanent`: a retry cannot succeed.
    SpawnFailed {
        message: String,
        permanent: bool,
    },
    /// No process was created because the supervisor has no free file descriptor. Not a death; the spawn is repeated.
    SpawnStarved,
    /// `pid` is the value in the message. The driver has already checked the peer's credentials.
    Hello {
        pid: u32,
        features: Vec<String>,
    },
    /// The preamble is of another protocol or another version.
    HandshakeRefused(HandshakeRefusal),
    LoadProgress {
        bytes_done: u64,
        bytes_total: u64,
    },
    /// The child's model is loaded and the supervisor has built its tokenizer.
    Ready,
    /// The child is ready, but the supervisor cannot use its tokenizer or chat template.
    Unservable(String),
    /// The child is ready with another model than that of the first child.
    ModelChanged,
    /// `step_elapsed`: age of the step in progress, `None` between steps.
    Heartbeat {
        step_elapsed: Option<Duration>,
    },
    /// The child has delivered output to a client, or has served for [`RestartPolicy::steady`] without a request. Sent
    /// once per child.
    ///
    /// [`RestartPolicy::steady`]: crate::RestartPolicy::steady
    Progress,
    /// Fault that the child reports before it exits.
    Fault(Fault),
    /// Answer to `Command::Shutdown`.
    Goodbye,
    /// Violation of the protocol.
    Violation(String),
    /// The child read no commands for longer than the write deadline.
    LinkStalled,
    /// The control socket closed. All messages that it carried precede this event.
    LinkClosed,
    /// The process exited.
    Exited(Exit),
}
