//! The seats of a device: whose each one is, and who takes over from whom.

use crate::effect::{DeviceId, SEATS_OF_A_DEVICE, SeatId};
use crate::generations::Generations;
use crate::life::{Deeds, Life};
use crate::state::State;
use crate::worker::{Before, Settings};
use std::time::Duration;
use worker_orcd_ipc::{Generation, Role};

#[derive(Debug)]
pub(crate) struct Seats {
    first: SeatId,
    lives: Vec<Life>,
    generations: Generations,
    /// The child of another supervisor, which is the first one here.
    goes_on: Option<Generation>,
    /// Others may be dying that have no seat here, when the first child begins.
    others_die: bool,
}

impl Seats {
    /// A seat for the child that serves, and one for a standby, or for the child that replaces another.
    pub(crate) fn new(
        now: Duration,
        settings: &Settings,
        device: DeviceId,
        before: &Before,
        generations: Generations,
    ) -> Self {
        let seat = |role| Life::new(now, role, settings);
        Self {
            first: SeatId::first_of(device),
            lives: vec![seat(Role::Active), seat(Role::Standby)],
            generations,
            goes_on: match before {
                Before::Serving(child) => Some(*child),
                Before::Nothing | Before::Dying(_) | Before::Out { .. } => None,
            },
            others_die: matches!(before, Before::Dying(_)),
        }
    }

    pub(crate) fn ids(&self) -> impl Iterator<Item = SeatId> + use<> {
        let first = self.first.0;
        (first..first + SEATS_OF_A_DEVICE).map(SeatId)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Life> {
        self.lives.iter()
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Life> {
        self.lives.iter_mut()
    }

    pub(crate) fn get(&self, seat: SeatId) -> &Life {
        &self.lives[usize::from(seat.0 - self.first.0)]
    }

    pub(crate) fn get_mut(&mut self, seat: SeatId) -> &mut Life {
        &mut self.lives[usize::from(seat.0 - self.first.0)]
    }

    /// The seat of the child of that generation.
    pub(crate) fn of(&self, generation: Generation) -> Option<SeatId> {
        let is_it = |seat: &SeatId| self.get(*seat).generation() == generation;
        self.ids().find(is_it)
    }

    pub(crate) fn with_role(&self, role: Role) -> impl Iterator<Item = SeatId> {
        let ids = self.ids();
        ids.filter(move |seat| self.get(*seat).role() == role)
    }

    pub(crate) fn spawn(&mut self, now: Duration, seat: SeatId) -> Deeds {
        let generation = match self.goes_on.take() {
            Some(child) => child,
            None => self.generations.next(),
        };
        // A standby takes most of its memory when it is promoted; the dying may still have it.
        let others_die = std::mem::take(&mut self.others_die);
        let is_behind = others_die || self.lives.iter().any(|life| life.state().is_ending());
        let loads_as = is_behind.then_some(Role::Standby);
        self.get_mut(seat).spawn(now, generation, loads_as)
    }

    /// A seat that is for a standby, and empty.
    pub(crate) fn spare(&self) -> Option<SeatId> {
        let mut standbys = self.with_role(Role::Standby);
        standbys.find(|seat| matches!(self.get(*seat).state(), State::Vacant { .. }))
    }

    /// No process is left.
    pub(crate) fn are_over(&self) -> bool {
        self.iter().all(|life| life.state().is_over())
    }

    /// A process is stuck in the kernel.
    pub(crate) fn has_unreapable(&self) -> bool {
        let mut states = self.iter().map(Life::state);
        states.any(|state| matches!(state, State::Unreapable { .. }))
    }

    /// Empty seats, as at the start.
    pub(crate) fn reopen(&mut self) {
        for (life, role) in self.lives.iter_mut().zip([Role::Active, Role::Standby]) {
            life.assign(role);
        }
    }

    // === who takes over ===

    /// A child serves, or is on its way to it.
    pub(crate) fn are_staffed(&self) -> bool {
        let active = self.with_role(Role::Active);
        let mut states = active.map(|seat| self.get(seat).state());
        states.any(|state| match state {
            State::Vacant { spawn_at, .. } => spawn_at.is_some(),
            state => state.is_under_way(),
        })
    }

    /// The standby that is the nearest to serving.
    pub(crate) fn heir(&self) -> Option<SeatId> {
        let nearness = |seat: &SeatId| match self.get(*seat).state() {
            State::StandingBy { .. } => 3,
            State::Loading { .. } => 2,
            State::Handshaking { .. } => 1,
            State::Spawning { .. } => 0,
            _ => -1,
        };
        let standbys = self.with_role(Role::Standby);
        let under_way = standbys.filter(|seat| nearness(seat) >= 0);
        under_way.max_by_key(nearness)
    }

    /// The one that speaks for all: who serves, else who is to, else who did.
    pub(crate) fn foremost(&self) -> &Life {
        let active = || self.iter().filter(|life| life.role() == Role::Active);
        let serves = active().find(|life| life.state().takes_work());
        let is_to = || active().find(|life| life.state().is_under_way());
        let any = || active().next().unwrap_or(&self.lives[0]);
        serves.or_else(is_to).unwrap_or_else(any)
    }
}
