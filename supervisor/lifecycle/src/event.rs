//! Events: what can happen to the worker.

use crate::death::{Exit, HandshakeRefusal};
use crate::effect::{DeviceId, SeatId};
use crate::gpu::Testimony;
use std::time::Duration;
use worker_orcd_ipc::{Fault, Generation};

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// Time has passed. Legal at any moment; needed at [`Worker::poll_deadline`].
    ///
    /// [`Worker::poll_deadline`]: crate::Worker::poll_deadline
    Tick,
    /// Something about one child. Of any generation but the current one it is counted and
    /// dropped.
    Child {
        generation: Generation,
        event: ChildEvent,
    },
    /// About a device, whichever child used it.
    Gpu(DeviceId, Testimony),
    /// So many of the latest deaths on a device do not count against it: a request that ran alone caused them, or
    /// a signal had stopped the child.
    Absolve { device: DeviceId, deaths: u32 },
    /// Take no new work, finish what there is within `timeout`, then end.
    Drain { timeout: Duration },
    /// The last request has ended. The driver says so whenever none is left while draining.
    Idle,
    /// Put a new child in the place of the one that serves, as soon as the new one is ready.
    Replace,
    /// Take this device out of use, while others go on: its streams move first.
    Withdraw(DeviceId),
    /// The child of this seat has nothing any more, after [`Deed::Vacate`](crate::Deed::Vacate).
    Vacated(SeatId),
    /// Use a device again that is out of use.
    Readmit(DeviceId),
    /// End now.
    StopNow,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChildEvent {
    Spawned {
        pid: u32,
    },
    /// `permanent`: trying again cannot help.
    SpawnFailed {
        message: String,
        permanent: bool,
    },
    /// The supervisor had no descriptor left to make it with, which is nobody's death.
    SpawnStarved,
    /// `pid` is what the child says; the driver has already compared the peer's credentials.
    Hello {
        pid: u32,
        features: Vec<String>,
    },
    /// The preamble was not ours, or of another version.
    HandshakeRefused(HandshakeRefusal),
    LoadProgress {
        bytes_done: u64,
        bytes_total: u64,
    },
    /// The child's model is loaded and the supervisor has built its tokenizer.
    Ready,
    /// The child is ready, but its tokenizer or template is none that the supervisor can use.
    Unservable(String),
    /// The child is ready with another model than that of the first child.
    ModelChanged,
    Heartbeat {
        step_elapsed: Option<Duration>,
    },
    /// It has delivered something to a client, or has served for [`RestartPolicy::steady`] with no request. Told
    /// once of each child.
    ///
    /// [`RestartPolicy::steady`]: crate::RestartPolicy::steady
    Progress,
    Fault(Fault),
    Goodbye,
    /// Anything that a child of this protocol would never say.
    Violation(String),
    /// Commands were not read for longer than the write deadline.
    LinkStalled,
    /// The socket ended; everything it carried was seen before this.
    LinkClosed,
    Exited(Exit),
}
