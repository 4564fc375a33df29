//! Seats of one device, their roles, and the choice of a successor.

use crate::effect::{DeviceId, SEATS_OF_A_DEVICE, SeatId};
use crate::generations::Generations;
use crate::life::{ChildActions, Life};
use crate::state::State;
use crate::worker::{PreviousChild, Settings};
use std::time::Duration;
use worker_orcd_ipc::{Generation, Role};

#[derive(Debug)]
pub(crate) struct Seats {
    first: SeatId,
    lives: Vec<Life>,
    generations: Generations,
    /// Serving child of the previous supervisor, which becomes the first child here.
    adopted_child: Option<Generation>,
    /// A child of the previous supervisor may still be dying, outside these seats, when the first child is spawned.
    previous_child_dying: bool,
}

impl Seats {
    /// Creates one seat for the serving child and one for a standby or replacement.
    pub(crate) fn new(
        now: Duration,
        settings: &Settings,
        device: DeviceId,
        before: &PreviousChild,
        generations: Generations,
    ) -> Self {
        let seat = |role| Life::new(now, role, settings);
        Self {
            first: SeatId::first_of(device),
            lives: vec![seat(Role::Active), seat(Role::Standby)],
            generations,
            adopted_child: match before {
                PreviousChild::Serving(child) => Some(*child),
                PreviousChild::None
                | PreviousChild::Dying(_)
                | PreviousChild::OutOfService { .. } => None,
            },
            previous_child_dying: matches!(before, PreviousChild::Dying(_)),
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

    /// Seat of the current or latest child with this generation.
    pub(crate) fn of(&self, generation: Generation) -> Option<SeatId> {
        let is_it = |seat: &SeatId| self.get(*seat).generation() == generation;
        self.ids().find(is_it)
    }

    pub(crate) fn with_role(&self, role: Role) -> impl Iterator<Item = SeatId> {
        let ids = self.ids();
        ids.filter(move |seat| self.get(*seat).role() == role)
    }

    pub(crate) fn spawn(&mut self, now: Duration, seat: SeatId) -> ChildActions {
        let generation = match self.adopted_child.take() {
            Some(child) => child,
            None => self.generations.next(),
        };
        // The dying child may still hold device memory. A child that loads as a standby allocates most of its own at
        // its promotion.
        let previous_child_dying = std::mem::take(&mut self.previous_child_dying);
        let memory_is_held =
            previous_child_dying || self.lives.iter().any(|life| life.state().is_ending());
        let loads_as = memory_is_held.then_some(Role::Standby);
        self.get_mut(seat).spawn(now, generation, loads_as)
    }

    /// Empty standby seat.
    pub(crate) fn spare(&self) -> Option<SeatId> {
        let mut standbys = self.with_role(Role::Standby);
        standbys.find(|seat| matches!(self.get(*seat).state(), State::Vacant { .. }))
    }

    /// True if no seat has a process that can still end.
    pub(crate) fn are_over(&self) -> bool {
        self.iter().all(|life| life.state().is_over())
    }

    /// True if a process survived SIGKILL.
    pub(crate) fn has_unreapable(&self) -> bool {
        let mut states = self.iter().map(Life::state);
        states.any(|state| matches!(state, State::Unreapable { .. }))
    }

    /// Restores the roles of a new device, for its readmission.
    pub(crate) fn reset_roles(&mut self) {
        for (life, role) in self.lives.iter_mut().zip([Role::Active, Role::Standby]) {
            life.assign(role);
        }
    }

    // === failover ===

    /// True if a child with the active role serves, starts, or is scheduled.
    pub(crate) fn have_active_child(&self) -> bool {
        let active = self.with_role(Role::Active);
        let mut states = active.map(|seat| self.get(seat).state());
        states.any(|state| match state {
            State::Vacant { spawn_at, .. } => spawn_at.is_some(),
            state => state.is_under_way(),
        })
    }

    /// Standby that is closest to ready.
    pub(crate) fn successor(&self) -> Option<SeatId> {
        let readiness = |seat: &SeatId| match self.get(*seat).state() {
            State::StandingBy { .. } => 3,
            State::Loading { .. } => 2,
            State::Handshaking { .. } => 1,
            State::Spawning { .. } => 0,
            _ => -1,
        };
        let standbys = self.with_role(Role::Standby);
        let under_way = standbys.filter(|seat| readiness(seat) >= 0);
        under_way.max_by_key(readiness)
    }

    /// Life that represents the device: the serving child, else the starting one, else the latest active one.
    pub(crate) fn foremost(&self) -> &Life {
        let active = || self.iter().filter(|life| life.role() == Role::Active);
        let serves = active().find(|life| life.state().takes_work());
        let starts = || active().find(|life| life.state().is_under_way());
        let any = || active().next().unwrap_or(&self.lives[0]);
        serves.or_else(starts).unwrap_or_else(any)
    }
}
