//! Recent deaths. Several children may die at once, so each sign carries a generation, and progress of a new child is
//! recorded in the deaths of its seat.

use crate::crash::death::{Bed, Death, Reaping};
use crate::crash::gpu::GpuEvidence;
use crate::crash::report::Report;
use crate::crash::store::CrashStore;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};
use worker_orcd_ipc::{DeviceSelector, Generation, MemoryReport};
use worker_orcd_lifecycle::{DeathCause, Exit, SeatId};

/// Number of retained deaths. Their successors may still start, and evidence of the GPU monitor may still arrive. Older
/// deaths are no longer updated.
const DEATHS_KEPT: usize = 16;

#[derive(Debug)]
pub(crate) struct CrashLog {
    store: Arc<CrashStore>,
    /// Devices of the worker.
    devices: Vec<DeviceSelector>,
    /// Deaths in the order of their first signs.
    deaths: VecDeque<Arc<Death>>,
    reported: u64,
}

impl CrashLog {
    pub(crate) fn new(store: Arc<CrashStore>, devices: &[DeviceSelector]) -> Self {
        Self {
            store,
            devices: devices.to_vec(),
            deaths: VecDeque::new(),
            reported: 0,
        }
    }

    /// Deaths reported since the start.
    pub(crate) fn reported(&self) -> u64 {
        self.reported
    }

    pub(crate) fn deaths_mut(&mut self) -> impl Iterator<Item = &mut Arc<Death>> {
        self.deaths.iter_mut()
    }

    pub(crate) fn deaths(&self) -> impl Iterator<Item = &Arc<Death>> {
        self.deaths.iter()
    }

    /// Death with the latest reaping.
    pub(crate) fn last(&self) -> Option<&Arc<Death>> {
        let reaped = self.deaths.iter().filter(|death| death.reaping.is_some());
        reaped.max_by_key(|death| death.reaping.as_ref().map(|reaping| reaping.at.instant))
    }

    // === death of a child ===

    /// Records the state of the child at the first sign.
    pub(crate) fn noticed(
        &mut self,
        seat: SeatId,
        generation: Generation,
        now: Instant,
        state: &'static str,
    ) {
        let death = self.of(seat, generation, now);
        death.state.get_or_insert(state);
    }

    pub(crate) fn exited(
        &mut self,
        seat: SeatId,
        generation: Generation,
        now: Instant,
        exit: Exit,
    ) {
        let death = self.of(seat, generation, now);
        death.reaped.get_or_insert((now, exit));
    }

    pub(crate) fn killed(&mut self, seat: SeatId, generation: Generation, now: Instant) {
        let death = self.of(seat, generation, now);
        // A kill after the exit is not the cause.
        death.killed_by_supervisor |= death.reaped.is_none();
    }

    /// Records the requests that continue before the reaping. They have had no token since `silent_since`.
    pub(crate) fn released(
        &mut self,
        seat: SeatId,
        generation: Generation,
        now: Instant,
        silent_since: Option<Instant>,
    ) {
        let death = self.of(seat, generation, now);
        death.released = death.released.or(silent_since);
    }

    /// Records the reaping with its cause and all facts known without the GPU monitor.
    pub(crate) fn reaped(
        &mut self,
        seat: SeatId,
        generation: Generation,
        mut reaping: Reaping,
        examine: impl FnOnce(&Death, &Reaping) -> Option<GpuEvidence>,
    ) {
        if reaping.cause == DeathCause::Dismissed {
            return self.deaths.retain(|death| death.generation != generation);
        }
        let mut of_seat = self.deaths.iter().filter(|death| death.seat == seat);
        let unrecovered = of_seat.find(|death| death.is_unrecovered());
        if let Some(first) = unrecovered.and_then(|death| death.reaping.as_ref()) {
            reaping.pause = first.pause;
        }
        let death = self.of(seat, generation, reaping.at.instant);
        death.gpu = examine(death, &reaping);
        death.reaping = Some(reaping);
        self.reported += 1;
        self.update(generation, |_| {});
    }

    /// Adds facts to a recorded death.
    pub(crate) fn update(
        &mut self,
        generation: Generation,
        change: impl FnOnce(&mut Death),
    ) -> Option<&Death> {
        let is_it = |death: &&mut Arc<Death>| death.generation == generation;
        let death = self.deaths.iter_mut().find(is_it)?;
        death.reaping.as_ref()?;
        change(Arc::make_mut(death));
        keep(&self.store, death);
        Some(death)
    }

    /// Death of this generation. A new one is recorded as noticed now.
    fn of(&mut self, seat: SeatId, generation: Generation, now: Instant) -> &mut Death {
        let is_it = |death: &Arc<Death>| death.generation == generation;
        let index = self.deaths.iter().position(is_it).unwrap_or_else(|| {
            if self.deaths.len() == DEATHS_KEPT {
                self.deaths.pop_front();
            }
            let number = seat.device();
            let selector = self.devices.get(usize::from(number.0));
            let selector = selector.copied().unwrap_or(DeviceSelector::Cpu);
            let bed = Bed { number, selector };
            let death = Death::noticed(seat, generation, bed, now);
            self.deaths.push_back(Arc::new(death));
            self.deaths.len() - 1
        });
        Arc::make_mut(&mut self.deaths[index])
    }

    // === successor ===

    /// Moves the open deaths of a seat to the seat that takes over its requests.
    pub(crate) fn transfer(&mut self, of: SeatId, successor: SeatId) {
        for death in &mut self.deaths {
            if death.seat == of && death.successor.ready_at.is_none() {
                Arc::make_mut(death).seat = successor;
            }
        }
    }

    pub(crate) fn respawned(&mut self, seat: SeatId, now: Instant) {
        for death in self.unrecovered(seat) {
            death.successor.respawned_at.get_or_insert(now);
        }
    }

    pub(crate) fn loaded(&mut self, seat: SeatId, memory: MemoryReport) {
        for death in self.unrecovered(seat) {
            death.successor.memory.get_or_insert(memory);
        }
    }

    /// Records the readiness of a seat's child. Returns the pause if a child had died there.
    pub(crate) fn ready(&mut self, seat: SeatId, now: Instant) -> Option<Duration> {
        let store = Arc::clone(&self.store);
        let mut pause = None;
        for death in self.unrecovered(seat) {
            death.successor.ready_at = Some(now);
            let reaping = death.reaping.as_ref();
            pause = reaping.and_then(|reaping| reaping.pause(&death.successor));
            keep(&store, death);
        }
        pause
    }

    /// Records a step with tokens. True if a request had waited for it. Tokens before the successor serves are late
    /// messages of the dead child.
    pub(crate) fn tokens(&mut self, seat: SeatId, now: Instant) -> bool {
        let mut waited = false;
        for death in &mut self.deaths {
            if death.seat == seat && death.awaits_token() {
                Arc::make_mut(death).successor.first_token_at = Some(now);
                keep(&self.store, death);
                waited = true;
            }
        }
        waited
    }

    /// Deaths with requests that wait for the child of this seat. At an immediate failover the dead child is not reaped
    /// yet.
    fn unrecovered(&mut self, seat: SeatId) -> impl Iterator<Item = &mut Death> {
        let deaths = self.deaths.iter_mut();
        let waits = |death: &Death| death.successor.ready_at.is_none();
        let of_seat = deaths.filter(move |death| death.seat == seat && waits(death));
        of_seat.map(Arc::make_mut)
    }
}

fn keep(store: &CrashStore, death: &Death) {
    if let Some(reaping) = &death.reaping {
        store.keep(Report::of(death, reaping));
    }
}

#[cfg(test)]
mod tests;
