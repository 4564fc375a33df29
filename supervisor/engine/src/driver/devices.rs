//! Children of the devices: spawn and load, start of service, transfer of another child's requests, and end; withdrawal
//! and readmission of devices, and the common properties of their models.

use super::Driver;
use crate::child::spawn::{Spawned, is_permanent, is_shortage_of_descriptors};
use crate::driver::observer::Observer;
use crate::driver::seat::Seat;
use crate::driver::snapshot_builder::SnapshotBuilder;
use crate::engine::control::Answer;
use crate::engine::{EngineSettings, LoadedModel};
use crate::handoff::living::LivingChild;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;
use tracing::{error, info, warn};
use worker_orcd_ipc::{Command, FdKind, Generation, KvReaders, LoadOrder, Role};
use worker_orcd_lifecycle::{ChildEvent, DeathCause, DeviceId, Event, OutOfServiceReason, SeatId};
use worker_orcd_requests::error_code::ErrorCode;
use worker_orcd_requests::{DeterminismClass, Failure, ServedBy};

/// Name in `/health` of a child that cannot be spawned for lack of descriptors.
const CHILD_SOCKET: &str = "child_socket";

/// The loaded model of each device.
pub(super) struct Models(Vec<Option<Arc<LoadedModel>>>);

impl Models {
    pub(super) fn new(devices: usize) -> Self {
        Self(vec![None; devices])
    }

    pub(super) fn put(&mut self, device: DeviceId, model: &Arc<LoadedModel>) {
        self.0[usize::from(device.0)] = Some(Arc::clone(model));
    }

    pub(super) fn of(&self, device: DeviceId) -> Option<&Arc<LoadedModel>> {
        self.0.get(usize::from(device.0))?.as_ref()
    }

    fn take(&mut self, device: DeviceId) {
        self.0[usize::from(device.0)] = None;
    }

    /// KV cache capacity in tokens of each device, in the order of the worker's list.
    pub(super) fn kv_capacities(&self) -> impl Iterator<Item = Option<u64>> {
        let tokens = |model: &Arc<LoadedModel>| model.kv_capacity_tokens;
        self.0.iter().map(move |model| model.as_ref().map(tokens))
    }

    /// Common properties of the model on all devices that have loaded it.
    pub(super) fn together(&self) -> Option<Arc<LoadedModel>> {
        let mut each = self.0.iter().flatten();
        let first = Arc::clone(each.next()?);
        Some(each.fold(first, |sum, next| Arc::new(sum.beside(next))))
    }
}

impl Driver {
    // === spawn and load ===

    /// Adopts the device's child of another supervisor, if there is one. Otherwise orders a new process.
    pub(super) fn spawn(&mut self, seat: SeatId, generation: Generation) {
        let now = self.now;
        let event = match self.handoff_state.take_child(seat.device()) {
            Some(living) => self.take_over(seat, living),
            None => {
                let (settings, snapshots) = (&self.settings, &mut self.observer.snapshots);
                order(now, &mut self.seats[seat], generation, settings, snapshots)
            }
        };
        if let Some(event) = event {
            self.handle(Event::Child { generation, event });
        }
    }

    fn take_over(&mut self, seat: SeatId, living: LivingChild) -> Option<ChildEvent> {
        let generation = living.note.generation;
        match self.seats[seat].resume(living, self.now) {
            Ok(pid) => {
                self.observer.adopted(generation, pid);
                Some(ChildEvent::Spawned { pid })
            }
            Err(error) => {
                warn!(%error, "child_not_kept");
                let (settings, snapshots) = (&self.settings, &mut self.observer.snapshots);
                order(
                    self.now,
                    &mut self.seats[seat],
                    generation,
                    settings,
                    snapshots,
                )
            }
        }
    }

    pub(super) fn on_spawned(&mut self, seat: SeatId, spawned: Spawned) {
        let generation = spawned.generation;
        let program = &self.settings.child_binary;
        let (seat, observer) = (&mut self.seats[seat], &mut self.observer);
        let event = receive(self.now, seat, spawned, program, observer);
        self.handle(Event::Child { generation, event });
    }

    pub(super) fn load(&mut self, seat: SeatId, generation: Generation, role: Role) {
        self.seats[seat].role = self.worker.seat(seat).role();
        if self.seats[seat].has_loaded() {
            self.retained[seat].goes_on(&mut self.seats[seat]);
            self.requests.loads(seat, generation, None);
            return self.seats[seat].retell();
        }
        let device = seat.device();
        self.observer.load_begins(self.now, device);
        let kv_bytes = self.observer.kv_bytes(device);
        let kv_bytes = kv_bytes.or(self.handoff_state.kv_bytes(device));
        let order = load_order(self.settings.load_on(device), role, kv_bytes);
        let order = self.retained[seat].hand_out(&mut self.seats[seat], order);
        self.requests.loads(seat, generation, order.adopts_from);
        self.send(seat, &Command::Load(order));
    }

    // === failover and end ===

    pub(super) fn serve(&mut self, seat: SeatId, generation: Generation) {
        if let Some(model) = self.seats[seat].model.take() {
            self.compare_with_inherited(model.digest());
            self.models.put(seat.device(), &model);
            self.install();
            let occupied = &mut self.seats[seat];
            self.retained[seat].serves(occupied);
            let model = self.model.insert(model);
            self.observer.ready(self.now, occupied, generation, model);
            let by = ServedBy {
                text: Arc::clone(&model.text),
                class: DeterminismClass::of(&model.device),
                slots: model.max_running as usize,
                kv_tokens: model.kv_capacity_tokens,
            };
            self.requests.serve(seat, by);
            self.introduce(seat);
        }
        for seat in self.seats.ids() {
            if let Some(generation) = self.seats[seat].to_release.take() {
                self.release(seat, generation);
            }
        }
    }

    /// Releases the KV cache of a dying child unless successors adopt from it. Siblings hold their descriptors already,
    /// and the next child of the device needs the memory.
    fn release_kv(&mut self, seat: SeatId, generation: Generation) {
        if self.settings.load.kv_readers != KvReaders::Successors {
            self.retained[seat].release_kv(generation);
        }
    }

    /// Exchanges KV caches between children of several devices that compute the same bits. After a death the survivor
    /// continues from the pages of the dead child.
    fn introduce(&mut self, seat: SeatId) {
        let siblings = self
            .worker
            .seats()
            .filter(|it| it.device() != seat.device());
        let serving = siblings.filter(|it| self.worker.seat(*it).state().takes_work());
        let alike: Vec<_> = serving.filter(|it| self.are_alike(seat, *it)).collect();
        for sibling in alike {
            self.lend_kv(seat, sibling);
            self.lend_kv(sibling, seat);
        }
    }

    fn are_alike(&self, one: SeatId, other: SeatId) -> bool {
        let class =
            |seat: SeatId| Some(DeterminismClass::of(&self.models.of(seat.device())?.device));
        let layout = |seat: SeatId| self.seats[seat].stats.as_ref()?.arena_layout();
        class(one).is_some() && class(one) == class(other) && layout(one) == layout(other)
    }

    /// Lends the KV cache of one child to another child.
    fn lend_kv(&mut self, from: SeatId, to: SeatId) {
        let lender = self.worker.seat(from).generation();
        let kept = self.retained[from].kv_of(lender);
        let (Some((memory, source)), Some(child)) = (kept, &self.seats[to].child) else {
            return;
        };
        match child.put(FdKind::KvCache, memory) {
            Ok(()) => {
                self.send(to, &Command::Attach(source));
                self.requests.attached(to, source.child);
            }
            Err(error) => warn!(%error, "kv_cache_not_lent"),
        }
    }

    /// Transfers the requests of a child before it is reaped, once another child serves.
    pub(super) fn release(&mut self, seat: SeatId, generation: Generation) {
        self.release_kv(seat, generation);
        let (observer, seat) = (&mut self.observer, &mut self.seats[seat]);
        if !self.worker.foremost().state().takes_work() {
            seat.to_release = Some(generation);
            return;
        }
        observer.released(self.now, seat, generation, &self.requests);
        self.requests.release(seat.id);
    }

    /// Reaps the child of a seat.
    pub(super) fn reaped(&mut self, seat: SeatId, generation: Generation, cause: &DeathCause) {
        let now = self.now;
        self.release_kv(seat, generation);
        let of_device = |it: &SeatId| *it != seat && it.device() == seat.device();
        let mut others = self.seats.ids().filter(of_device);
        let others = others.any(|other| self.seats[other].child.is_some());
        let (dead, requests) = (&mut self.seats[seat], &mut self.requests);
        let (observer, retained) = (&mut self.observer, &mut self.retained[seat]);
        observer.gpu[seat].keeps(retained.bytes());
        let scene = observer.reaped(now, dead, generation, cause, requests);
        let ascribed = requests.reaped(seat, cause, &scene, now);
        let unfinished = dead.takes_over_to_serve();
        dead.clear();
        retained.reaped(cause, unfinished, others);
        self.absolve(seat, cause, &scene, ascribed);
    }

    // === devices in and out of service ===

    /// Answers a request to withdraw `device`. Here and below, `device` is one of the worker's.
    pub(super) fn asked_to_withdraw(&mut self, device: DeviceId, asker: Answer) {
        let answer = self.refuse_withdrawal(device);
        if answer.is_ok() {
            self.handle(Event::Withdraw(device));
        }
        drop(asker.send(answer));
    }

    pub(super) fn asked_to_readmit(&mut self, device: DeviceId, asker: Answer) {
        let answer = self.refuse_readmission(device);
        if answer.is_ok() {
            self.handle(Event::Readmit(device));
        }
        drop(asker.send(answer));
    }

    fn refuse_withdrawal(&self, device: DeviceId) -> Result<(), String> {
        self.refuse_at_the_end()?;
        if !self.worker.device_status(device).is_in_use() {
            return Err(format!("device {device} is not in use"));
        }
        if !self.worker.may_withdraw(device) {
            return Err("no other device is in use: drain the worker instead".to_owned());
        }
        if !self.has_same_class(device) {
            return Err(format!(
                "no other device in use computes as {device} does: its streams could go on nowhere: drain the worker \
                 instead"
            ));
        }
        Ok(())
    }

    fn refuse_readmission(&self, device: DeviceId) -> Result<(), String> {
        self.refuse_at_the_end()?;
        if self.worker.device_status(device).is_in_use() {
            return Err(format!("device {device} is in use"));
        }
        if !self.worker.may_readmit(device) {
            return Err(format!(
                "device {device} cannot be used yet, for a process is left on it: wait until it is gone"
            ));
        }
        Ok(())
    }

    fn refuse_at_the_end(&self) -> Result<(), String> {
        match self.worker.is_draining() {
            true => Err("the worker is ending".to_owned()),
            false => Ok(()),
        }
    }

    /// True if another device in use can continue this device's streams, as far as its determinism class is known.
    fn has_same_class(&self, device: DeviceId) -> bool {
        let class = |device| {
            self.models
                .of(device)
                .map(|model| DeterminismClass::of(&model.device))
        };
        let own = class(device);
        let others = self.worker.devices().filter(|other| *other != device);
        let mut in_use = others.filter(|other| self.worker.device_status(*other).is_in_use());
        in_use.any(|other| own.is_none() || own == class(other))
    }

    /// Reports the withdrawn children that have no request left.
    pub(super) fn report_vacated(&mut self) {
        for seat in self.worker.seats() {
            let is_to_go = !self.worker.device_status(seat.device()).is_in_use()
                && self.worker.seat(seat).state().takes_work();
            if is_to_go && self.requests.is_withdrawn(seat) {
                self.handle(Event::Vacated(seat));
            }
        }
    }

    /// Takes the device out of service. Its requests continue elsewhere or end.
    pub(super) fn device_out(&mut self, device: DeviceId) {
        let id = self.settings.device_name(device);
        let out_of_service = self.worker.device_status(device).reason();
        let reason = out_of_service.map_or_else(String::new, ToString::to_string);
        match out_of_service {
            Some(OutOfServiceReason::Withdrawn) | None => info!(device = id, "device_drained"),
            Some(out_of_service) => error!(
                device = id,
                what = out_of_service.name(),
                reason,
                "device_out"
            ),
        }
        self.models.take(device);
        self.install();
        let message =
            format!("the device {id} is out of use, and no other computes alike: {reason}");
        let failure = Failure::new(ErrorCode::WorkerUnhealthy, message);
        self.requests.strand(device, &failure, self.now);
    }

    pub(super) fn device_in(&mut self, device: DeviceId) {
        let id = self.settings.device_name(device);
        warn!(device = id, "device_readmitted");
        self.requests.readmit(device);
    }

    /// Publishes the common model properties to clients.
    pub(super) fn install(&mut self) {
        if let Some(model) = self.models.together() {
            self.handles.install(&model);
        }
    }
}

/// Orders the next child of a seat. `None`: the result follows as [`Spawned`].
fn order(
    now: Instant,
    seat: &mut Seat,
    generation: Generation,
    settings: &EngineSettings,
    snapshots: &mut SnapshotBuilder,
) -> Option<ChildEvent> {
    match seat.begin(generation, settings) {
        Ok(()) => {
            snapshots.repaired(CHILD_SOCKET);
            None
        }
        Err(error) => {
            snapshots.impaired(now, CHILD_SOCKET, &error.to_string());
            Some(ChildEvent::SpawnStarved)
        }
    }
}

/// Accepts the ordered process, or reports its spawn failure.
fn receive(
    now: Instant,
    seat: &mut Seat,
    spawned: Spawned,
    program: &Path,
    observer: &mut Observer,
) -> ChildEvent {
    let generation = spawned.generation;
    match seat.receive(spawned, now) {
        Ok(pid) => {
            if seat.has_child(generation) {
                observer.spawned(now, seat.id, generation, pid);
            }
            ChildEvent::Spawned { pid }
        }
        Err(error) => {
            if is_shortage_of_descriptors(&error) {
                let snapshots = &mut observer.snapshots;
                snapshots.impaired(now, CHILD_SOCKET, &error.to_string());
            }
            failure(&format!("{}: {error}", program.display()), &error)
        }
    }
}

/// Load order for a child of `role`. A standby gets as much KV cache as its predecessor has or had.
fn load_order(settings: LoadOrder, role: Role, kv_bytes: Option<u64>) -> LoadOrder {
    let as_much = kv_bytes.filter(|_| role == Role::Standby);
    LoadOrder {
        role,
        kv_cache_bytes: as_much.or(settings.kv_cache_bytes),
        ..settings
    }
}

fn failure(message: &str, error: &io::Error) -> ChildEvent {
    error!(error = %message, "child_spawn_failed");
    if is_shortage_of_descriptors(error) {
        return ChildEvent::SpawnStarved;
    }
    ChildEvent::SpawnFailed {
        message: message.to_owned(),
        permanent: is_permanent(error),
    }
}
