//! Control messages from clients' tasks to the driver.

use crate::handoff::EngineHandoff;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use worker_orcd_ipc::RequestId;
use worker_orcd_lifecycle::DeviceId;
use worker_orcd_requests::record::Record;

/// Channel for the answer to an operator. The error is the reason for a refusal.
pub(crate) type Answer = oneshot::Sender<Result<(), String>>;

/// Message from a client's task to the driver. The channel is unbounded, but admission bounds it: each admitted request
/// causes at most one `Submit` and one `Abandon`.
#[derive(Debug)]
pub(crate) enum Control {
    Submit(Arc<Record>),
    Cancel(RequestId),
    /// The reader is dropped.
    Abandon(RequestId),
    Drain(Duration),
    /// Replace the serving child by a new one.
    Replace,
    /// Take this device out of service.
    Withdraw(DeviceId, Answer),
    /// Return this device to service.
    Readmit(DeviceId, Answer),
    /// Return duplicates of the handoff state.
    CopyHandoff(oneshot::Sender<EngineHandoff>),
    /// End at once and hand over to another engine.
    HandOver(oneshot::Sender<EngineHandoff>),
    StopNow,
}
