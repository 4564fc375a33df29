//! Post-mortem of a child: facts collected at its death for the crash report and the journal.

#![expect(clippy::disallowed_methods, reason = "a report names the time of day")]

use crate::crash::death::{Now, Pause, Reaping};
use crate::crash::recording::summary;
use crate::crash::report::{InFlight, RequestFacts};
use crate::driver::seat::Seat;
use nix::time::{ClockId, clock_gettime};
use std::time::{Duration, Instant, SystemTime};
use worker_orcd_ipc::flight::Recording;
use worker_orcd_lifecycle::DeathCause;
use worker_orcd_requests::Requests;
use worker_orcd_requests::record::Record;
use worker_orcd_requests::scene::Scene;

/// Requests in flight at a death.
#[derive(Debug, Default)]
pub(super) struct InFlightAtDeath {
    requests: Vec<RequestFacts>,
    /// Time since which no request has had a token. `None`: there are no requests.
    pub(super) silent_since: Option<Instant>,
}

/// Requests in flight of a seat, with those recorded earlier. Must precede their reassignment by the journal.
pub(super) fn note(seat: &mut Seat, requests: &Requests) -> InFlightAtDeath {
    let mut in_flight = std::mem::take(&mut seat.released);
    let noted: Vec<_> = in_flight.requests.iter().map(|it| it.request).collect();
    let is_new = |record: &&Record| !noted.contains(&record.id.0);
    let new = requests.in_flight(seat.id).filter(is_new);
    in_flight.requests.extend(new.map(facts));
    let silent_since = requests.silent_since(seat.id);
    in_flight.silent_since = in_flight.silent_since.or(silent_since);
    in_flight
}

/// Collects the facts of a death. Must precede the reassignment of requests. The scene is for the journal.
pub(super) fn examine(
    seat: &mut Seat,
    cause: &DeathCause,
    requests: &Requests,
    now: Instant,
) -> (Reaping, Scene) {
    let in_flight = note(seat, requests);
    let (recording, stopped) = seat.last_record();
    let scene = Scene {
        stopped,
        ..recording.as_ref().map(Scene::of).unwrap_or_default()
    };
    let at = Now {
        instant: now,
        wall: SystemTime::now(),
        monotonic_ns: monotonic_ns(),
    };
    let reaping = Reaping {
        at,
        cause: cause.clone(),
        child: seat.stats.as_ref().map(|stats| stats.deceased()),
        last_sign_of_life: last_sign_of_life(seat, recording.as_ref(), at),
        flight_recorder: recording.map(|it| summary(&it, at.monotonic_ns)).into(),
        requests: InFlight::new(in_flight.requests.into_iter()),
        host_available_bytes: host_available_bytes(),
        pause: Pause {
            began: now,
            silent_since: in_flight.silent_since,
        },
    };
    (reaping, scene)
}

/// Time of the last heartbeat or of the last flight recorder entry, whichever is later.
fn last_sign_of_life(seat: &Seat, recording: Option<&Recording>, at: Now) -> Option<Instant> {
    let stats = seat.stats.as_ref();
    let heartbeat = stats.and_then(|stats| stats.known().heartbeat_at);
    let record = recording
        .and_then(|recording| recording.records.last())
        .map(|record| Duration::from_nanos(at.monotonic_ns.saturating_sub(record.time_ns)))
        .and_then(|age| at.instant.checked_sub(age));
    heartbeat.into_iter().chain(record).max()
}

/// Counts and ids of a request, without its tokens.
fn facts(record: &Record) -> RequestFacts {
    let progress = record.progress.lock();
    RequestFacts {
        request: record.id.0,
        job_id: record.job_id.clone(),
        tokens_in: record.tokens_in(),
        tokens_out: progress.tokens_out(),
        max_tokens: record.params.max_tokens,
        recoveries: progress.recoveries(),
    }
}

/// Monotonic clock in nanoseconds. 0 without such a clock, which makes each record appear new.
fn monotonic_ns() -> u64 {
    clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(0, |now| {
        now.tv_sec().unsigned_abs() * 1_000_000_000 + now.tv_nsec().unsigned_abs()
    })
}

/// Memory in bytes that the kernel can allocate without swapping.
fn host_available_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_has_memory_and_a_clock_that_runs() {
        assert!(host_available_bytes().is_some_and(|bytes| bytes > 1 << 20));
        let before = monotonic_ns();
        assert!(before > 0 && monotonic_ns() >= before);
    }
}
