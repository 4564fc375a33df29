//! Driver's side of the state that it shares with the [`Engine`](crate::engine::Engine)'s handles: requests and
//! snapshots.

use crate::engine::control::Control;
use crate::engine::{Ended, EngineSnapshot, LoadedModel, Milestones, Shared};
use std::sync::Arc;
use tokio::sync::{mpsc, watch};
use worker_orcd_lifecycle::{EndReason, WorkerFailure};
use worker_orcd_requests::error_code::ErrorCode;
use worker_orcd_requests::record::Record;
use worker_orcd_requests::{Failure, Refusal};

pub(super) struct Handles {
    pub(super) shared: Arc<Shared>,
    controls: mpsc::UnboundedReceiver<Control>,
    milestones: watch::Sender<Milestones>,
    /// True once the last handle is dropped.
    deserted: bool,
}

impl Handles {
    pub(super) fn new(
        shared: Arc<Shared>,
        controls: mpsc::UnboundedReceiver<Control>,
        milestones: watch::Sender<Milestones>,
    ) -> Self {
        Self {
            shared,
            controls,
            milestones,
            deserted: false,
        }
    }

    /// Next control message; [`Control::StopNow`] once the last handle is dropped. Cancel-safe.
    pub(super) async fn next(&mut self) -> Control {
        if self.deserted {
            return std::future::pending().await;
        }
        let control = self.controls.recv().await;
        self.deserted = control.is_none();
        control.unwrap_or(Control::StopNow)
    }

    /// True if no request is left. Counted in the registry, because an admitted request may not have arrived here yet.
    pub(super) fn is_idle(&self) -> bool {
        self.shared.registry.live() == 0
    }

    pub(super) fn refuse(&self, refusal: Refusal) {
        self.shared.registry.close(refusal);
    }

    pub(super) fn install(&self, model: &Arc<LoadedModel>) {
        let slots = model.max_running as usize;
        self.shared.registry.set_slots(slots);
        *self.shared.model.write() = Some(Arc::clone(model));
        self.milestones
            .send_modify(|milestones| milestones.ready = true);
    }

    pub(super) fn publish(&self, snapshot: EngineSnapshot) {
        *self.shared.snapshot.write() = Arc::new(snapshot);
    }

    pub(super) fn has_begun(&self) {
        self.milestones
            .send_modify(|milestones| milestones.begun = true);
    }

    pub(super) fn handoff_changed(&self) {
        self.milestones
            .send_modify(|milestones| milestones.handoffs += 1);
    }

    pub(super) fn has_ended(&self, ended: Ended) {
        self.milestones
            .send_modify(|milestones| milestones.ended = Some(ended));
    }

    /// Closes admission and returns the requests that were admitted in the last moment.
    pub(super) fn close(&mut self) -> Vec<Arc<Record>> {
        self.refuse(Refusal::Unavailable("the engine has ended".to_owned()));
        self.controls.close();
        let mut last = vec![];
        while let Ok(control) = self.controls.try_recv() {
            if let Control::Submit(record) = control {
                last.push(record);
            }
        }
        last
    }
}

/// Failure of a request that ends with the worker.
pub(super) fn farewell(reason: EndReason, failure: Option<&WorkerFailure>) -> Failure {
    let message = match (reason, failure) {
        (EndReason::DrainDeadline, _) => "the worker is shutting down, and its time is over",
        (EndReason::StoppedAtOnce, _) => "the worker is shutting down at once",
        (EndReason::Failed, Some(failure)) => failure.reason.as_str(),
        (EndReason::Failed, None) => "the worker has failed",
    };
    Failure::new(ErrorCode::WorkerUnhealthy, message)
}
