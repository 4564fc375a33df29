//! Spawn and load of a child: its process, spawn failures, and its load order.

use super::Driver;
use crate::child::spawn::{Spawned, is_permanent, is_want_of_descriptors};
use crate::driver::chronicle::Chronicle;
use crate::driver::news::News;
use crate::driver::seat::Seat;
use crate::engine::EngineSettings;
use crate::estate::living::LivingChild;
use std::io;
use std::path::Path;
use std::time::Instant;
use tracing::{error, warn};
use worker_orcd_ipc::{Command, Generation, LoadOrder, Role};
use worker_orcd_lifecycle::{ChildEvent, Event, SeatId};

/// Name in `/health` of a child that cannot be spawned for lack of descriptors.
const CHILD_SOCKET: &str = "child_socket";

impl Driver {
    /// Adopts the device's child of another supervisor, if there is one. Otherwise orders a new process.
    pub(super) fn spawn(&mut self, seat: SeatId, generation: Generation) {
        let now = self.now;
        let event = match self.heritage.take_child(seat.device()) {
            Some(living) => self.take_over(seat, living),
            None => {
                let (settings, news) = (&self.settings, &mut self.chronicle.news);
                order(now, &mut self.seats[seat], generation, settings, news)
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
                self.chronicle.kept(generation, pid);
                Some(ChildEvent::Spawned { pid })
            }
            Err(error) => {
                warn!(%error, "child_not_kept");
                let (settings, news) = (&self.settings, &mut self.chronicle.news);
                order(self.now, &mut self.seats[seat], generation, settings, news)
            }
        }
    }

    pub(super) fn on_spawned(&mut self, seat: SeatId, spawned: Spawned) {
        let generation = spawned.generation;
        let program = &self.settings.child_binary;
        let (seat, chronicle) = (&mut self.seats[seat], &mut self.chronicle);
        let event = receive(self.now, seat, spawned, program, chronicle);
        self.handle(Event::Child { generation, event });
    }

    pub(super) fn load(&mut self, seat: SeatId, generation: Generation, role: Role) {
        self.seats[seat].role = self.worker.seat(seat).role();
        if self.seats[seat].has_loaded() {
            self.keeping[seat].goes_on(&mut self.seats[seat]);
            self.requests.loads(seat, generation, None);
            return self.seats[seat].retell();
        }
        let device = seat.device();
        self.chronicle.load_begins(self.now, device);
        let kv_bytes = self.chronicle.kv_bytes(device);
        let kv_bytes = kv_bytes.or(self.heritage.kv_bytes(device));
        let order = load_order(self.settings.load_on(device), role, kv_bytes);
        let order = self.keeping[seat].hand_out(&mut self.seats[seat], order);
        self.requests.loads(seat, generation, order.adopts_from);
        self.send(seat, &Command::Load(order));
    }
}

/// Orders the next child of a seat. `None`: the result follows as [`Spawned`].
fn order(
    now: Instant,
    seat: &mut Seat,
    generation: Generation,
    settings: &EngineSettings,
    news: &mut News,
) -> Option<ChildEvent> {
    match seat.begin(generation, settings) {
        Ok(()) => {
            news.repaired(CHILD_SOCKET);
            None
        }
        Err(error) => {
            news.impaired(now, CHILD_SOCKET, &error.to_string());
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
    chronicle: &mut Chronicle,
) -> ChildEvent {
    let generation = spawned.generation;
    match seat.receive(spawned, now) {
        Ok(pid) => {
            if seat.has_child(generation) {
                chronicle.spawned(now, seat.id, generation, pid);
            }
            ChildEvent::Spawned { pid }
        }
        Err(error) => {
            if is_want_of_descriptors(&error) {
                let news = &mut chronicle.news;
                news.impaired(now, CHILD_SOCKET, &error.to_string());
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
    if is_want_of_descriptors(error) {
        return ChildEvent::SpawnStarved;
    }
    ChildEvent::SpawnFailed {
        message: message.to_owned(),
        permanent: is_permanent(error),
    }
}
