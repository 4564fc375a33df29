//! A child's beginning: what the lifecycle is told of a process that was made, or could not be, and what
//! the child is told to load.

use crate::child::nursery::NotBegun;
use crate::child::spawn::{Spawned, is_permanent, is_want_of_descriptors};
use crate::driver::chronicle::Chronicle;
use crate::driver::news::News;
use crate::driver::seat::Seat;
use crate::engine::EngineSettings;
use std::io;
use std::path::Path;
use std::time::Instant;
use tracing::error;
use worker_orcd_ipc::{Generation, LoadOrder, Role};
use worker_orcd_lifecycle::ChildEvent;

/// Name in `/health` of a child that cannot be begun.
const CHILD_SOCKET: &str = "child_socket";

/// Orders the next child of a seat. `None`: its process will come.
pub(super) fn order(
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
        Err(ref why @ NotBegun::Thread(ref error)) => Some(failure(&why.to_string(), error)),
        Err(NotBegun::Socket(error)) => {
            news.impaired(now, CHILD_SOCKET, &error.to_string());
            Some(ChildEvent::SpawnStarved)
        }
    }
}

/// The process that was ordered, or why there is none.
pub(super) fn receive(
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

/// The order for a child of that role. A standby gets as much KV cache as the child has, or had, in whose place
/// it may come.
pub(super) fn load_order(settings: &LoadOrder, role: Role, kv_bytes: Option<u64>) -> LoadOrder {
    let as_much = kv_bytes.filter(|_| role == Role::Standby);
    LoadOrder {
        role,
        kv_cache_bytes: as_much.or(settings.kv_cache_bytes),
        ..settings.clone()
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
