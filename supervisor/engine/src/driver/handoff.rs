//! Handoff between drivers: the state left to the next driver, and the state taken from the previous one.

use super::{Driver, program};
use crate::child::pending_spawns::see_off;
use crate::driver::retained_memory::{ModelFiles, RetainedMemory};
use crate::engine::control::Control;
use crate::engine::{EngineSettings, PreviousEngine};
use crate::handoff::living::{LivingChild, Terms};
use crate::handoff::{DeviceHandoff, DeviceNote, EngineHandoff, EngineNote};
use futures_util::future::BoxFuture;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc::WeakUnboundedSender;
use tokio::sync::oneshot;
use tracing::{error, info, warn};
use worker_orcd_ipc::{Generation, KvReaders};
use worker_orcd_lifecycle::{DeviceId, OutOfServiceReason, PreviousChild, SeatId};
use worker_orcd_process::reap::Process;
use worker_orcd_requests::Failure;
use worker_orcd_requests::error_code::ErrorCode;
use worker_orcd_requests::orphans::PATIENCE;
use worker_orcd_requests::record::{Record, StreamEvent};
use worker_orcd_requests::wal::{Clock, Restored, Wal};

/// Time for the child to return its requests. A slower child is not handed over.
const RECALL: Duration = Duration::from_secs(2);

/// Handoff state of the previous driver, and the state last announced to the next one.
#[derive(Default)]
pub(super) struct HandoffState {
    devices: Vec<OfDevice>,
    /// Generation of the newest child, if there was one.
    last_child: Option<Generation>,
    /// Digest of the previous supervisor's model, until a model serves here.
    digest: Option<[u8; 32]>,
    /// Replaces the inherited children if their program on disk has changed. Started once a child serves.
    replaced: Option<BoxFuture<'static, ()>>,
    /// Handoff state as last announced.
    announced: EngineNote,
}

/// Handoff state of one device.
#[derive(Default)]
struct OfDevice {
    /// Inherited serving child, until it has a seat here.
    child: Option<LivingChild>,
    /// Size in bytes of the inherited child's KV cache.
    kv_bytes: Option<u64>,
    out_of_service: Option<OutOfServiceReason>,
}

/// Pending handoff to another driver.
pub(super) struct Departure {
    successor: oneshot::Sender<EngineHandoff>,
    pub(super) until: Instant,
}

impl HandoffState {
    /// Handoff state under these settings. A child with other terms, or of a device being withdrawn, ends here.
    pub(super) fn of(handoff: &mut EngineHandoff, settings: &EngineSettings) -> Self {
        let strays = handoff.arrange(&settings.load.model_path, &settings.devices);
        strays.into_iter().for_each(end);
        let of_device = |(device, it): (u8, &mut DeviceHandoff)| {
            let terms = terms(settings, DeviceId(device));
            let mut child = it.child.take();
            let out_of_service = it.note.out_of_service.clone();
            let other =
                child.take_if(|child| child.note.terms != terms || out_of_service.is_some());
            other.into_iter().for_each(end);
            if child.is_none() && settings.load.kv_readers != KvReaders::Successors {
                // No successor adopts from this cache any more, and the next child needs its memory.
                it.let_go_of_kv();
            }
            let kv_bytes = it.note.kv_bytes;
            OfDevice {
                child,
                kv_bytes,
                out_of_service,
            }
        };
        Self {
            devices: (0..).zip(&mut handoff.devices).map(of_device).collect(),
            last_child: handoff.note.last_child,
            digest: handoff.note.digest,
            replaced: None,
            announced: EngineNote::default(),
        }
    }

    /// Previous child of each device.
    pub(super) fn before(&self) -> Vec<PreviousChild> {
        let of_device = |it: &OfDevice| match (&it.out_of_service, &it.child, self.last_child) {
            (Some(out_of_service), _, last) => PreviousChild::OutOfService {
                last: last.unwrap_or(Generation(0)),
                reason: out_of_service.clone(),
            },
            (None, Some(child), _) => PreviousChild::Serving(child.note.generation),
            (None, None, Some(last)) => PreviousChild::Dying(last),
            (None, None, None) => PreviousChild::None,
        };
        self.devices.iter().map(of_device).collect()
    }

    pub(super) fn take_child(&mut self, device: DeviceId) -> Option<LivingChild> {
        let of_device = self.devices.get_mut(usize::from(device.0));
        of_device.and_then(|it| it.child.take())
    }

    pub(super) fn kv_bytes(&self, device: DeviceId) -> Option<u64> {
        self.devices.get(usize::from(device.0))?.kv_bytes
    }
}

/// Kills an inherited child that is not adopted.
fn end(child: LivingChild) {
    let pid = child.kill();
    info!(pid, "inherited_child_ended");
    match Process::resume(pid) {
        Ok(process) => drop(tokio::spawn(see_off(process))),
        Err(error) => warn!(%error, "child_exit_not_observed"),
    }
}

fn terms(settings: &EngineSettings, device: DeviceId) -> Terms {
    Terms::new(settings.load_on(device), settings.child_confinement)
}

impl Driver {
    /// Continues from another driver's handoff state. Called before the first turn.
    pub(super) fn restore(
        &mut self,
        previous: PreviousEngine,
        controls: WeakUnboundedSender<Control>,
    ) {
        let now = self.now;
        match Wal::create(now) {
            Ok(wal) => self.requests.keep_log(wal),
            Err(error) => warn!(%error, "wal_missing"),
        }
        let PreviousEngine { handoff, requests } = previous;
        let living = self
            .handoff_state
            .devices
            .iter()
            .filter_map(|it| it.child.as_ref());
        let pids: Vec<_> = living.map(|child| child.note.pid).collect();
        if !pids.is_empty() {
            let program = self.settings.child_binary.clone();
            let replaced = program::replace(pids, program, controls.clone());
            self.handoff_state.replaced = Some(Box::pin(replaced));
        }
        let model: Option<ModelFiles> = (!handoff.model.is_empty()).then(|| handoff.model.into());
        let kept = |it| RetainedMemory::inherited(now, model.clone(), it);
        self.retained = handoff.devices.into_iter().map(kept).collect();
        if requests.is_empty() {
            return;
        }
        let clock = Clock::at(now);
        info!(
            count = requests.len(),
            weights_kept = self.retained.iter().any(|it| it.bytes() > 0),
            "requests_restored"
        );
        let shared = &self.handles.shared;
        for mut request in requests {
            let sealed = request.sealed.take();
            self.refuse_what_does_not_fit(&mut request);
            let has_ended = request.end.is_some();
            let record = Record::restored(request, clock);
            // The log retains ended requests for a while, under their numbers.
            shared.registry.number_behind(record.id.0);
            // This request is already admitted. Later requests queue after it.
            let room = shared.registry.room_for(&record);
            let record = Arc::new(record.with_room(room));
            if !has_ended {
                shared.registry.readmit(&record);
            }
            shared.orphans.add(Arc::clone(&record));
            self.requests.restore(record, sealed, now);
        }
        self.requests.wake();
        let shared = Arc::clone(shared);
        tokio::spawn(async move {
            tokio::time::sleep(PATIENCE).await;
            for id in shared.orphans.give_up() {
                if let Some(controls) = controls.upgrade() {
                    drop(controls.send(Control::Abandon(id)));
                }
            }
        });
    }

    /// Ends a request that exceeds `--max-context`. An earlier supervisor admitted it under a larger limit.
    fn refuse_what_does_not_fit(&self, request: &mut Restored) {
        let most = self.settings.load.max_sequence_tokens;
        let Some(most) = most.filter(|most| request.most_tokens() > u64::from(*most)) else {
            return;
        };
        if request.end.is_none() {
            let message = format!(
                "the worker was upgraded to --max-context {most}, and this request needs {} tokens",
                request.most_tokens()
            );
            let failure = Failure::new(ErrorCode::WorkerUnhealthy, message);
            request.end = Some(StreamEvent::Failed(failure));
        }
    }

    /// Ends all requests, including those submitted in the last moment.
    pub(super) fn end_requests(mut self) {
        for record in self.handles.close() {
            self.requests.submit(record);
        }
        let failure = Failure::new(ErrorCode::WorkerUnhealthy, "the worker has ended");
        self.requests.fail_all(&failure, self.now);
        self.requests.wake();
    }

    /// Recalls all requests from the children. Their tokens are retained.
    pub(super) fn prepare_to_hand_over(&mut self, successor: oneshot::Sender<EngineHandoff>) {
        self.requests.recall();
        self.departure = Some(Departure {
            successor,
            until: self.now + RECALL,
        });
    }

    /// Channel to the next driver, once all serving children are quiescent or the time is over.
    pub(super) fn is_to_hand_over(&mut self) -> Option<oneshot::Sender<EngineHandoff>> {
        let until = self.departure.as_ref()?.until;
        let mut serving = self.seats_that_serve().into_iter();
        let is_ready = serving.all(|seat| self.may_be_left(seat));
        let departure = self.departure.take_if(|_| is_ready || self.now >= until);
        departure.map(|departure| departure.successor)
    }

    fn seats_that_serve(&self) -> Vec<SeatId> {
        let serves = |seat: &SeatId| self.worker.seat(*seat).state().takes_work();
        self.worker.seats().filter(serves).collect()
    }

    fn may_be_left(&mut self, seat: SeatId) -> bool {
        self.requests.is_withdrawn(seat) && self.seats[seat].may_hand_over()
    }

    /// Hands over the serving children and all retained state. Other children end.
    pub(super) fn hand_over(mut self) -> EngineHandoff {
        let wal = self.requests.take_log();
        let wal = wal.as_ref().and_then(duplicate);
        let devices = self.worker.devices();
        let left: Vec<_> = devices
            .map(|device| self.hand_over_device(device))
            .collect();
        let handoff = self.handoff();
        EngineHandoff {
            note: EngineNote {
                last_child: Some(self.worker.newest()),
                ..handoff.note
            },
            wal,
            devices: left,
            ..handoff
        }
    }

    fn hand_over_device(&mut self, device: DeviceId) -> DeviceHandoff {
        let terms = terms(&self.settings, device);
        let of_device = |seat: &SeatId| seat.device() == device;
        let serving = self.seats_that_serve().into_iter().find(of_device);
        let child = serving.and_then(|seat| {
            let left = self
                .may_be_left(seat)
                .then(|| self.seats[seat].hand_over(terms))?;
            left.inspect_err(|error| warn!(%error, "child_not_left"))
                .ok()
        });
        let handoff = self.device_handoff(device);
        let kv = self.retained.of(device).copy_kv();
        DeviceHandoff {
            note: DeviceNote {
                kv: kv.as_ref().map(|(_, source)| *source),
                ..handoff.note
            },
            kv: kv.map(|(memory, _)| memory),
            child,
            ..handoff
        }
    }

    /// Duplicates of the present handoff state.
    pub(super) fn handoff(&self) -> EngineHandoff {
        let model = self.model_files();
        let devices = self.worker.devices();
        EngineHandoff {
            note: self.handoff_note(),
            wal: self.requests.log().and_then(duplicate),
            // An incomplete set of files is no model.
            model: model.and_then(duplicates).unwrap_or_default(),
            devices: devices.map(|device| self.device_handoff(device)).collect(),
        }
    }

    fn model_files(&self) -> Option<&[OwnedFd]> {
        self.retained.iter().find_map(|it| it.model.as_deref())
    }

    fn device_handoff(&self, device: DeviceId) -> DeviceHandoff {
        self.retained.of(device).copy(self.device_note(device))
    }

    /// Announces a changed handoff state.
    pub(super) fn announce_handoff(&mut self) {
        let is_announced = self.handoff_state.announced.digest.is_some();
        if !is_announced && self.model.is_none() && self.handoff_state.digest.is_none() {
            return;
        }
        // A change of the size alone is not announced.
        let kv_bytes = None;
        let note = |device| {
            let note = self.retained.of(device).note(self.device_note(device));
            DeviceNote { kv_bytes, ..note }
        };
        let note = EngineNote {
            devices: self.worker.devices().map(note).collect(),
            model_files: self.model_files().map_or(0, |files| files.len() as u16),
            ..self.handoff_note()
        };
        if note != self.handoff_state.announced {
            self.handoff_state.announced = note;
            self.handles.handoff_changed();
        }
    }

    fn handoff_note(&self) -> EngineNote {
        EngineNote {
            model_path: self.settings.load.model_path.clone(),
            digest: self
                .model
                .as_ref()
                .map(|model| model.digest())
                .or(self.handoff_state.digest),
            ..EngineNote::default()
        }
    }

    fn device_note(&self, device: DeviceId) -> DeviceNote {
        let kv_bytes = self.observer.kv_bytes(device);
        DeviceNote {
            selector: Some(self.settings.load_on(device).device),
            kv_bytes: kv_bytes.or(self.handoff_state.kv_bytes(device)),
            out_of_service: self.worker.device_status(device).reason().cloned(),
            ..DeviceNote::default()
        }
    }

    /// Compares a newly served model with the inherited one. Requests of a different model end here.
    pub(super) fn compare_with_inherited(&mut self, digest: [u8; 32]) {
        if let Some(replaced) = self.handoff_state.replaced.take() {
            tokio::spawn(replaced);
        }
        if self
            .handoff_state
            .digest
            .take()
            .is_some_and(|it| it != digest)
        {
            warn!("inherited_requests_of_another_model");
            let message = "the worker has another model since it was started again";
            let failure = Failure::new(ErrorCode::WorkerUnhealthy, message);
            self.requests.fail_restored(&failure, self.now);
        }
    }
}

/// Duplicate of a descriptor. `None` on failure, which is logged.
fn duplicate(descriptor: &impl AsFd) -> Option<OwnedFd> {
    let duplicate = descriptor.as_fd().try_clone_to_owned();
    let failed = |error: &io::Error| error!(%error, "descriptor_not_duplicated");
    duplicate.inspect_err(failed).ok()
}

fn duplicates(descriptors: &[OwnedFd]) -> Option<Vec<OwnedFd>> {
    descriptors.iter().map(duplicate).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::testing::settings;
    use worker_orcd_ipc::KvSource;

    #[test]
    fn the_kv_cache_of_a_child_that_is_gone_is_kept_for_a_successor_alone() {
        for (readers, is_kept) in [
            (KvReaders::Successors, true),
            (KvReaders::Siblings, false),
            (KvReaders::None, false),
        ] {
            let mut settings = settings();
            settings.load.kv_readers = readers;
            let source = KvSource {
                child: Generation(3),
                bytes: 1 << 20,
            };
            let mut handoff = EngineHandoff {
                note: EngineNote {
                    model_path: settings.load.model_path.clone(),
                    ..EngineNote::default()
                },
                devices: vec![DeviceHandoff {
                    note: DeviceNote {
                        selector: Some(settings.load.device),
                        kv_bytes: Some(source.bytes),
                        kv: Some(source),
                        ..DeviceNote::default()
                    },
                    kv: Some(std::fs::File::open("/dev/null").unwrap().into()),
                    ..DeviceHandoff::default()
                }],
                ..EngineHandoff::default()
            };
            let handoff_state = HandoffState::of(&mut handoff, &settings);
            assert_eq!(handoff.devices[0].kv.is_some(), is_kept, "{readers:?}");
            assert_eq!(handoff.devices[0].note.kv.is_some(), is_kept);
            assert_eq!(handoff_state.kv_bytes(DeviceId(0)), Some(source.bytes));
        }
    }
}
