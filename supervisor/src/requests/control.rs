//! Controls: what clients' tasks want of the driver.

use crate::requests::record::Record;
use std::sync::Arc;
use std::time::Duration;
use worker_orcd_ipc::RequestId;

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
    StopNow,
}
