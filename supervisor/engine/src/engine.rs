//! Handle of the server to the engine: requests in, tokens out. The [driver](crate::driver) runs the children.
//!
//! All methods answer at once from memory, except the asynchronous ones, which wait for the driver.

#![expect(
    clippy::disallowed_methods,
    reason = "what a handler asks for begins now"
)]

pub(crate) mod control;
pub mod gpu;
pub(crate) mod model;
pub mod sampling;
pub mod snapshot;
pub(crate) mod sums;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

pub use gpu::GpuSnapshot;
pub use model::LoadedModel;
pub use sampling::SamplingDefaults;
pub use snapshot::{
    ChildSnapshot, DeviceSnapshot, EngineSnapshot, FaultsSnapshot, LoadSnapshot, Status,
};

use crate::crash::{CrashSettings, CrashStore};
use crate::engine::control::{Answer, Control};
use crate::handoff::EngineHandoff;
use parking_lot::RwLock;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot, watch};
use worker_orcd_ipc::{ClientId, DeviceSelector, LoadOrder, RequestId};
use worker_orcd_lifecycle::{Deadlines, DeviceId, RestartPolicy, Settings, SupervisorExit};
use worker_orcd_requests::orphans::Orphans;
use worker_orcd_requests::record::Record;
use worker_orcd_requests::wal::Restored;
use worker_orcd_requests::{
    Abandon, Admitted, NewRequest, OnFault, Refusal, Registry, RequestStream, Skip,
};
use worker_orcd_text::tools::Choices;

/// Feature of a child that was built with fault injection.
const FAULT_INJECTION: &str = "fault-injection";

/// Settings of an engine.
#[derive(Debug, Clone)]
pub struct EngineSettings {
    /// Path of `worker-orcd-gpu`.
    pub child_binary: PathBuf,
    /// Load order of each child. Its device is the first of `devices`, and the driver replaces it by the child's own.
    pub load: LoadOrder,
    /// Devices in the worker's order, at least one.
    pub devices: Vec<DeviceSelector>,
    pub deadlines: Deadlines,
    pub restart: RestartPolicy,
    /// Behaviour after a fault for requests that do not set it.
    pub on_fault: OnFault,
    /// Maximum number of waiting requests, beyond those that the child decodes at once.
    pub max_queue: usize,
    /// Time for which a convicted query of death is refused.
    pub quarantine_for: Duration,
    /// Time limit for the compilation of a chat template, and for each prompt that it renders.
    pub template_timeout: Duration,
    /// Use the sampling defaults of the model file.
    pub model_sampling: bool,
    /// The operator's choice of parsers for answers.
    pub parsers: Choices,
    /// Accept a child with fault injection. Never in production.
    pub accept_fault_injection: bool,
    /// Sandbox child processes.
    pub child_confinement: bool,
    /// Keep a standby child for failover.
    pub standby: bool,
    pub crashes: CrashSettings,
}

impl EngineSettings {
    /// Settings of the lifecycle.
    pub(crate) fn rules(&self) -> Settings {
        let features = self.accept_fault_injection.then_some(FAULT_INJECTION);
        Settings {
            deadlines: self.deadlines,
            restart: self.restart,
            accept_features: features.into_iter().map(str::to_owned).collect(),
            standby: self.standby,
            overlap: true,
        }
    }

    /// Name of a device in the syntax of the command line.
    pub(crate) fn device_name(&self, device: DeviceId) -> String {
        self.load_on(device).device.to_string()
    }

    /// Load order for a child of a device.
    pub(crate) fn load_on(&self, device: DeviceId) -> LoadOrder {
        let selector = self.devices.get(usize::from(device.0));
        LoadOrder {
            device: selector.copied().unwrap_or(self.load.device),
            ..self.load.clone()
        }
    }
}

/// End of the engine: the exit status of the process, and the reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    pub exit: SupervisorExit,
    pub reason: String,
}

/// State of an earlier engine.
#[derive(Debug, Default)]
pub struct PreviousEngine {
    pub handoff: EngineHandoff,
    /// Requests in the write-ahead log.
    pub requests: Vec<Restored>,
}

/// Handle to an engine, cheap to clone. Once the last handle and the last stream are dropped, the child ends.
#[derive(Debug, Clone)]
pub struct Engine {
    shared: Arc<Shared>,
    controls: mpsc::UnboundedSender<Control>,
    milestones: watch::Receiver<Milestones>,
}

/// State that the driver publishes to all handles.
#[derive(Debug)]
pub(crate) struct Shared {
    pub registry: Arc<Registry>,
    pub model: RwLock<Option<Arc<LoadedModel>>>,
    pub snapshot: RwLock<Arc<EngineSnapshot>>,
    pub crashes: Arc<CrashStore>,
    pub orphans: Orphans,
    pub on_fault: OnFault,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Milestones {
    /// True after the driver's first turn.
    pub begun: bool,
    /// True once a model has been loaded.
    pub ready: bool,
    /// Number of changes of the handoff state.
    pub handoffs: u64,
    pub ended: Option<Ended>,
}

impl Engine {
    /// Creates a handle from the channels of a [driver](crate::driver).
    pub(crate) fn new(
        shared: Arc<Shared>,
        controls: mpsc::UnboundedSender<Control>,
        milestones: watch::Receiver<Milestones>,
    ) -> Self {
        Self {
            shared,
            controls,
            milestones,
        }
    }

    /// Admits the requests of one client, all or none.
    ///
    /// # Errors
    /// The [`Refusal`] for the client. No request is then admitted.
    pub fn submit(&self, requests: Vec<NewRequest>) -> Result<Vec<RequestStream>, Refusal> {
        if self.shared.model.read().is_none() {
            let reason = self.snapshot().reason.clone();
            return Err(Refusal::Unavailable(reason));
        }
        let now = Instant::now();
        let registry = &self.shared.registry;
        for request in &requests {
            registry.inspect(request, now)?;
        }
        let admitted = registry.admit(&requests)?.into_iter().zip(requests);
        let record = |(Admitted { id, room }, request)| {
            Record::new(id, request, self.shared.on_fault, now).with_room(room)
        };
        let records: Vec<_> = admitted.map(record).map(Arc::new).collect();
        for record in &records {
            let submitted = self.controls.send(Control::Submit(Arc::clone(record)));
            if submitted.is_err() {
                let free = |it: &Arc<Record>| registry.release(&it.job_id, it.id, Duration::ZERO);
                records.iter().for_each(free);
                return Err(Refusal::Unavailable("the engine has ended".to_owned()));
            }
        }
        Ok(self.readers_of(records))
    }

    fn readers_of(&self, records: Vec<Arc<Record>>) -> Vec<RequestStream> {
        let controls = self.controls.clone();
        // Without a driver there is no request to cancel.
        let abandon = Abandon::new(move |id| drop(controls.send(Control::Abandon(id))));
        let reader = |record| RequestStream::new(record, abandon.clone());
        records.into_iter().map(reader).collect()
    }

    /// Maximum number of requests that can be admitted together on an idle engine.
    #[must_use]
    pub fn most_together(&self) -> usize {
        self.shared.registry.most_together()
    }

    /// Number of parts of an answer that [`resume`](Self::resume) can continue.
    #[must_use]
    pub fn parts_to_resume(&self, answer: &str, owner: Option<ClientId>) -> Option<usize> {
        self.shared.orphans.parts(answer, owner)
    }

    /// Continues an answer of an earlier supervisor that waits for its reader: its parts, and their presentation. With
    /// an owner, only an answer of that client. `skips`: position of the client in each part. Empty means that the
    /// client has nothing yet.
    #[must_use]
    pub fn resume(
        &self,
        answer: &str,
        owner: Option<ClientId>,
        skips: &[Skip],
    ) -> Option<(Vec<RequestStream>, String)> {
        let records = self.shared.orphans.take(answer, owner)?;
        for (record, skip) in records.iter().zip(skips) {
            record.progress.lock().skip(*skip);
        }
        let format = records.first()?.format.clone();
        Some((self.readers_of(records), format))
    }

    /// Cancels the live job or answer parts with this id, restricted to an owner if there is one. Their streams end
    /// with `CANCELLED`. False if there are none.
    #[must_use]
    pub fn cancel(&self, job_id: &str, owner: Option<ClientId>) -> bool {
        let found = self.shared.registry.find(job_id, owner);
        let cancel = |id: &RequestId| self.controls.send(Control::Cancel(*id)).is_ok();
        !found.is_empty() && found.iter().all(cancel)
    }

    /// Loaded model. `None` before the first load. It remains while a child is replaced.
    #[must_use]
    pub fn model(&self) -> Option<Arc<LoadedModel>> {
        self.shared.model.read().clone()
    }

    /// Latest snapshot of the driver. A drain is visible from its request on, even before the driver handles it, so no
    /// readiness probe succeeds after an answer to `/shutdown`.
    #[must_use]
    pub fn snapshot(&self) -> Arc<EngineSnapshot> {
        let snapshot = Arc::clone(&self.shared.snapshot.read());
        if snapshot.draining || snapshot.failed || !self.shared.registry.is_draining() {
            return snapshot;
        }
        Arc::new(EngineSnapshot {
            draining: true,
            ..(*snapshot).clone()
        })
    }

    /// Crash reports of this supervisor and of earlier ones.
    #[must_use]
    pub fn crashes(&self) -> &Arc<CrashStore> {
        &self.shared.crashes
    }

    /// Present number of live requests. The last snapshot may be older and show none while the queue is full.
    #[must_use]
    pub fn live_requests(&self) -> usize {
        self.shared.registry.live()
    }

    /// True once the engine is ordered to end or has failed.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.shared.registry.is_closed()
    }

    /// Refuses new requests, finishes the live ones, then ends. Requests left after `timeout` end with an error.
    pub fn drain(&self, timeout: Duration) {
        // Admission closes here already, so that no request follows the drain.
        self.shared.registry.close(Refusal::Draining);
        drop(self.controls.send(Control::Drain(timeout)));
    }

    /// Replaces the serving child by a new one, once that is ready.
    pub fn replace_child(&self) {
        drop(self.controls.send(Control::Replace));
    }

    /// Takes a device out of service. Its streams continue on other devices, and its child ends.
    ///
    /// # Errors
    /// The reason for a refusal.
    pub async fn withdraw_device(&self, device: DeviceId) -> Result<(), String> {
        self.ask(|asker| Control::Withdraw(device, asker)).await
    }

    /// Returns a device to service.
    ///
    /// # Errors
    /// The reason for a refusal.
    pub async fn readmit_device(&self, device: DeviceId) -> Result<(), String> {
        self.ask(|asker| Control::Readmit(device, asker)).await
    }

    async fn ask(&self, control: impl FnOnce(Answer) -> Control) -> Result<(), String> {
        let (asker, answer) = oneshot::channel();
        let ended = |_| Err("the engine has ended".to_owned());
        drop(self.controls.send(control(asker)));
        answer.await.unwrap_or_else(ended)
    }

    /// Ends at once: an error for each request, SIGKILL for each child.
    pub fn stop_now(&self) {
        self.shared.registry.close(Refusal::Draining);
        drop(self.controls.send(Control::StopNow));
    }

    /// Ends at once and hands over its state, with the serving children, to another engine. `None`: the engine has
    /// ended already.
    pub async fn hand_over(&self) -> Option<EngineHandoff> {
        let (sender, handoff) = oneshot::channel();
        self.controls.send(Control::HandOver(sender)).ok()?;
        handoff.await.ok()
    }

    /// Duplicates of the handoff state. `None`: the engine has ended.
    pub async fn copy_handoff(&self) -> Option<EngineHandoff> {
        let (sender, handoff) = oneshot::channel();
        self.controls.send(Control::CopyHandoff(sender)).ok()?;
        handoff.await.ok()
    }

    /// Waits for the next change of the handoff state. False if the engine has ended.
    pub async fn handoff_changed(&self, known: &mut u64) -> bool {
        let mut milestones = self.milestones.clone();
        let changed = milestones.wait_for(|it| it.handoffs != *known || it.ended.is_some());
        let Ok(seen) = changed.await else {
            return false;
        };
        let is_over = seen.ended.is_some();
        *known = seen.handoffs;
        !is_over
    }

    /// Waits for the first turn of the driver.
    pub async fn wait_begun(&self) {
        let mut milestones = self.milestones.clone();
        // A lost driver has panicked.
        drop(milestones.wait_for(|milestones| milestones.begun).await);
    }

    /// Waits for the first model.
    ///
    /// # Errors
    /// If the engine ends before.
    pub async fn wait_ready(&self) -> Result<(), Ended> {
        let mut milestones = self.milestones.clone();
        let seen = milestones
            .wait_for(|milestones| milestones.ready || milestones.ended.is_some())
            .await;
        match seen.ok().and_then(|milestones| milestones.ended.clone()) {
            Some(ended) => Err(ended),
            None if self.model().is_some() => Ok(()),
            None => Err(driver_lost()),
        }
    }

    /// Waits until the driver, and with it its socket directory, is gone.
    pub async fn wait_gone(&self) {
        let mut milestones = self.milestones.clone();
        while milestones.changed().await.is_ok() {}
    }

    pub async fn wait_ended(&self) -> Ended {
        let mut milestones = self.milestones.clone();
        let seen = milestones
            .wait_for(|milestones| milestones.ended.is_some())
            .await;
        seen.ok()
            .and_then(|milestones| milestones.ended.clone())
            .unwrap_or_else(driver_lost)
    }
}

/// End of a driver's task without a message: the driver panicked, or the runtime shuts down.
fn driver_lost() -> Ended {
    Ended {
        exit: SupervisorExit::StoppedAtOnce,
        reason: "the engine's driver is gone".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An engine without a driver. The receiver gets its control messages.
    fn engine_before_its_driver() -> (Engine, mpsc::UnboundedReceiver<Control>) {
        let settings = CrashSettings {
            directory: None,
            max_reports: 1,
        };
        let mut snapshot = EngineSnapshot::before_anything(Instant::now());
        snapshot.serving = true;
        let shared = Shared {
            registry: Arc::new(Registry::new(1, 1, Duration::ZERO)),
            model: RwLock::new(None),
            snapshot: RwLock::new(Arc::new(snapshot)),
            crashes: Arc::new(CrashStore::open(settings)),
            orphans: Orphans::default(),
            on_fault: OnFault::Resume,
        };
        let (controls, inbox) = mpsc::unbounded_channel();
        let (_, milestones) = watch::channel(Milestones::default());
        (Engine::new(Arc::new(shared), controls, milestones), inbox)
    }

    fn status(engine: &Engine) -> Status {
        engine.snapshot().status(Instant::now())
    }

    #[test]
    fn a_drain_is_seen_before_the_driver_has_come_to_it() {
        let (engine, mut inbox) = engine_before_its_driver();
        assert_eq!(status(&engine), Status::Healthy);
        engine.drain(Duration::ZERO);
        assert_eq!(status(&engine), Status::Draining);
        assert!(matches!(inbox.try_recv(), Ok(Control::Drain(_))));
    }

    #[test]
    fn a_door_that_was_closed_for_another_reason_is_no_drain() {
        let (engine, _inbox) = engine_before_its_driver();
        let refusal = Refusal::Unavailable("failed".to_owned());
        engine.shared.registry.close(refusal);
        assert_eq!(status(&engine), Status::Healthy, "as the driver said last");
    }
}
