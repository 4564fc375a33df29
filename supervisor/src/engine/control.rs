//! Controls: what clients' tasks want of the driver.

use crate::estate::EngineEstate;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use worker_orcd_ipc::RequestId;
use worker_orcd_lifecycle::DeviceId;
use worker_orcd_requests::record::Record;

/// An operator's answer: why it cannot be done.
pub(crate) type Answer = oneshot::Sender<Result<(), String>>;

/// A message from an HTTP task to the driver. Unbounded as a channel, bounded by admission: each
/// request that was let in causes at most one of the first and one of the third.
#[derive(Debug)]
pub(crate) enum Control {
    Submit(Arc<Record>),
    Cancel(RequestId),
    /// The reader is gone.
    Abandon(RequestId),
    Drain(Duration),
    /// Put a new child in the place of the one that serves.
    Replace,
    /// Take this device out of use.
    Withdraw(DeviceId, Answer),
    /// Use this device again.
    Readmit(DeviceId, Answer),
    /// Say what would be left to another engine.
    CopyEstate(oneshot::Sender<EngineEstate>),
    /// End at once, and leave everything to another engine.
    Leave(oneshot::Sender<EngineEstate>),
    StopNow,
}
