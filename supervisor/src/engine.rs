//! The handle that HTTP holds: requests go in, tokens come out, and the child's life stays the
//! [driver](crate::driver)'s business.
//!
//! Every method but the two `wait_` ones answers at once, from memory.

#![expect(
    clippy::disallowed_methods,
    reason = "what a handler asks for begins now"
)]

pub(crate) mod control;
pub mod gpu;
pub mod model;
pub mod sampling;
pub mod snapshot;
pub(crate) mod sums;
#[cfg(test)]
pub(crate) mod testing;

pub use gpu::GpuSnapshot;
pub use model::LoadedModel;
pub use sampling::SamplingDefaults;
pub use snapshot::{
    ChildSnapshot, DeviceSnapshot, EngineSnapshot, FaultsSnapshot, LoadSnapshot, Status,
};
pub use worker_orcd_lifecycle::{Deadlines, RestartPolicy, SupervisorExit};
pub use worker_orcd_requests::{
    Completion, Embedding, Failure, Listed, ListedToken, NewRequest, OnFault, Piece, Position,
    Refusal, RequestStream, Skip, StopReason, StreamEvent, Streams,
};

use crate::crash::{CrashSettings, CrashStore};
use crate::engine::control::{Answer, Control};
use crate::estate::EngineEstate;
use parking_lot::RwLock;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot, watch};
use worker_orcd_ipc::{ClientId, DeviceSelector, LoadOrder, RequestId};
use worker_orcd_lifecycle::{DeviceId, Settings};
use worker_orcd_requests::orphans::Orphans;
use worker_orcd_requests::record::Record;
use worker_orcd_requests::wal::Restored;
use worker_orcd_requests::{Abandon, Admitted, Registry};
use worker_orcd_text::tools::Choices;

/// The feature of a child that was built to fail on command.
const FAULT_INJECTION: &str = "fault-injection";

/// Everything that is decided before the first child.
#[derive(Debug, Clone)]
pub struct EngineSettings {
    /// Path of `worker-orcd-gpu`.
    pub child_binary: PathBuf,
    /// The same for every child, but for the device, which is the first of `devices`.
    pub load: LoadOrder,
    /// In the worker's order; one at least.
    pub devices: Vec<DeviceSelector>,
    pub deadlines: Deadlines,
    pub restart: RestartPolicy,
    /// The choice for requests that do not choose themselves.
    pub on_fault: OnFault,
    /// Requests that may wait beyond those that the child decodes at once.
    pub max_queue: usize,
    /// Time for which a request that killed a child when it ran alone is refused.
    pub quarantine_for: Duration,
    /// Time for the compilation of a chat template, and for each prompt it makes.
    pub template_timeout: Duration,
    /// Follow the sampling advice of the model file.
    pub model_sampling: bool,
    /// What the operator says of how answers are taken apart.
    pub parsers: Choices,
    /// Accept a child that was built to fail on command. Never in production.
    pub accept_fault_injection: bool,
    /// Children take away from themselves what they do not need.
    pub child_confinement: bool,
    /// Keep a child that takes over when another one dies.
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

    /// A device as it is written on the command line.
    pub(crate) fn device_name(&self, device: DeviceId) -> String {
        self.load_on(device).device.to_string()
    }

    /// The order for a child of that device.
    pub(crate) fn load_on(&self, device: DeviceId) -> LoadOrder {
        let selector = self.devices.get(usize::from(device.0));
        LoadOrder {
            device: selector.copied().unwrap_or(self.load.device),
            ..self.load.clone()
        }
    }
}

/// The engine's end: why, and with which number the process should exit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    pub exit: SupervisorExit,
    pub reason: String,
}

/// What an engine finds of an earlier one.
#[derive(Debug, Default)]
pub(crate) struct Inheritance {
    pub estate: EngineEstate,
    /// Requests of its log.
    pub requests: Vec<Restored>,
}

/// Cheap to clone. When the last handle and the last stream are gone, the child is too.
#[derive(Debug, Clone)]
pub struct Engine {
    shared: Arc<Shared>,
    controls: mpsc::UnboundedSender<Control>,
    milestones: watch::Receiver<Milestones>,
}

/// Facts that the driver publishes and every handle can read.
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
    /// The driver has had its first turn.
    pub begun: bool,
    /// A model was loaded at least once.
    pub ready: bool,
    /// Number of times that what would be left to another engine has changed.
    pub estates: u64,
    pub ended: Option<Ended>,
}

impl Engine {
    /// A handle to what a [driver](crate::driver) publishes, and to what it listens to.
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

    /// Lets requests of one client in, all or none.
    ///
    /// # Errors
    /// The [`Refusal`] that the client is told. Nothing was kept.
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
        // Without a driver there is nothing to cancel.
        let abandon = Abandon::new(move |id| drop(controls.send(Control::Abandon(id))));
        let reader = |record| RequestStream::new(record, abandon.clone());
        records.into_iter().map(reader).collect()
    }

    /// Requests that can be let in together, if there are no others.
    #[must_use]
    pub fn most_together(&self) -> usize {
        self.shared.registry.most_together()
    }

    /// Number of parts of an answer that [`resume`](Self::resume) goes on with.
    #[must_use]
    pub fn parts_to_resume(&self, answer: &str, owner: Option<ClientId>) -> Option<usize> {
        self.shared.orphans.parts(answer, owner)
    }

    /// The rest of an answer of an earlier supervisor whose reader is waited for, part by part, and how it is
    /// told. With an owner, only that client's. `skips` is what the client has of each part; where it is
    /// empty, that is nothing.
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
        let presentation = records.first()?.presentation.clone();
        Some((self.readers_of(records), presentation))
    }

    /// True when a live job or parts of an answer had this id, and were this owner's where one is given; their
    /// streams end with `CANCELLED`.
    #[must_use]
    pub fn cancel(&self, job_id: &str, owner: Option<ClientId>) -> bool {
        let found = self.shared.registry.find(job_id, owner);
        let cancel = |id: &RequestId| self.controls.send(Control::Cancel(*id)).is_ok();
        !found.is_empty() && found.iter().all(cancel)
    }

    /// `None` before the first model was loaded; kept while a child is replaced.
    #[must_use]
    pub fn model(&self) -> Option<Arc<LoadedModel>> {
        self.shared.model.read().clone()
    }

    /// What the driver last said. A drain counts from the moment at which it was asked for, though the
    /// driver may not have come to it yet: no probe says ready after `/shutdown` was answered.
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

    /// Reports of children that died, this supervisor's and earlier ones'.
    #[must_use]
    pub fn crashes(&self) -> &Arc<CrashStore> {
        &self.shared.crashes
    }

    /// Requests that were let in and have not ended: counted now, for a snapshot of a moment ago
    /// may say that there are none while the queue is full.
    #[must_use]
    pub fn live_requests(&self) -> usize {
        self.shared.registry.live()
    }

    /// True from the moment at which it was told to end, or failed.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.shared.registry.is_closed()
    }

    /// Takes no new work, finishes what there is, then ends. Terminal errors for what is left
    /// after `timeout`.
    pub fn drain(&self, timeout: Duration) {
        // At the door already here, so that no request slips in behind the drain.
        self.shared.registry.close(Refusal::Draining);
        drop(self.controls.send(Control::Drain(timeout)));
    }

    /// Puts a new child in the place of the one that serves, once the new one is ready.
    pub fn replace_child(&self) {
        drop(self.controls.send(Control::Replace));
    }

    /// Takes a device out of use: its streams go on with others, and its child ends.
    ///
    /// # Errors
    /// Why that cannot be.
    pub async fn withdraw_device(&self, device: DeviceId) -> Result<(), String> {
        self.ask(|asker| Control::Withdraw(device, asker)).await
    }

    /// Uses a device again that is out of use.
    ///
    /// # Errors
    /// Why that cannot be.
    pub async fn readmit_device(&self, device: DeviceId) -> Result<(), String> {
        self.ask(|asker| Control::Readmit(device, asker)).await
    }

    async fn ask(&self, control: impl FnOnce(Answer) -> Control) -> Result<(), String> {
        let (asker, answer) = oneshot::channel();
        let ended = |_| Err("the engine has ended".to_owned());
        drop(self.controls.send(control(asker)));
        answer.await.unwrap_or_else(ended)
    }

    /// Ends now: terminal errors for every request, SIGKILL for the child.
    pub fn stop_now(&self) {
        self.shared.registry.close(Refusal::Draining);
        drop(self.controls.send(Control::StopNow));
    }

    /// Ends at once, with every child, and leaves everything to another engine. `None`: it has ended already.
    pub async fn leave(&self) -> Option<EngineEstate> {
        let (sender, estate) = oneshot::channel();
        self.controls.send(Control::Leave(sender)).ok()?;
        estate.await.ok()
    }

    /// Duplicates of what it would leave. `None`: it has ended.
    pub async fn copy_estate(&self) -> Option<EngineEstate> {
        let (sender, estate) = oneshot::channel();
        self.controls.send(Control::CopyEstate(sender)).ok()?;
        estate.await.ok()
    }

    /// Waits until what it would leave is something else than before, or there is something for the first
    /// time. False when it has ended.
    pub async fn estate_changed(&self, known: &mut u64) -> bool {
        let mut milestones = self.milestones.clone();
        let changed = milestones.wait_for(|it| it.estates != *known || it.ended.is_some());
        let Ok(seen) = changed.await else {
            return false;
        };
        let is_over = seen.ended.is_some();
        *known = seen.estates;
        !is_over
    }

    /// Waits for the first turn of the driver.
    pub async fn wait_begun(&self) {
        let mut milestones = self.milestones.clone();
        // A driver that was lost has panicked.
        drop(milestones.wait_for(|milestones| milestones.begun).await);
    }

    /// Waits for the first model.
    ///
    /// # Errors
    /// When the engine ended instead.
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

    /// Waits until the driver is gone, and the directory with its sockets.
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

/// The driver's task ended without a word: it panicked, or the runtime is shutting down.
fn driver_lost() -> Ended {
    Ended {
        exit: SupervisorExit::StoppedAtOnce,
        reason: "the engine's driver is gone".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An engine whose driver reads no control: whoever holds the receiver is that driver.
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
