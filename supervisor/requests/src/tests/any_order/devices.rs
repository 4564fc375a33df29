//! Simulated devices and their children, and the supervisor's actions on them.

use super::World;
use crate::error_code::ErrorCode;
use crate::record::Failure;
use crate::scene::Scene;
use crate::testing::class;
use std::collections::{BTreeMap, BTreeSet};
use worker_orcd_ipc::{Began, FinishReason, RequestId};
use worker_orcd_lifecycle::{DeathCause, DeviceId, SeatId};

/// Number of requests that a child computes at once. Further requests wait in its queue.
const SLOTS: usize = 2;

#[derive(Default)]
pub(super) struct Child {
    /// Index of the child's seat on its device: 0 or 1.
    pub(super) seat: u8,
    pub(super) serving: bool,
    pub(super) withdrawn: bool,
    /// Running requests, each with the index of its next token.
    pub(super) running: BTreeMap<RequestId, u32>,
    /// Requests that wait for a slot, each with the index of its next token.
    pub(super) queue: Vec<(RequestId, u32)>,
    /// Answers to cancellations, sent with the next step.
    pub(super) answers: Vec<(RequestId, FinishReason)>,
    /// Requests that have a token from this child.
    pub(super) moved: BTreeSet<RequestId>,
}

impl Child {
    pub(super) fn has(&self) -> impl Iterator<Item = RequestId> {
        let queue = self.queue.iter().map(|(id, _)| *id);
        self.running.keys().copied().chain(queue)
    }

    /// Moves requests from the queue to free slots, for the next step.
    pub(super) fn begin(&mut self) -> Vec<Began> {
        let free = SLOTS
            .saturating_sub(self.running.len())
            .min(self.queue.len());
        let begins: Vec<_> = self.queue.drain(..free).collect();
        self.running.extend(begins.iter().copied());
        let began = begins.into_iter().map(|(request, _)| Began {
            request,
            cached_tokens: 0,
        });
        began.collect()
    }
}

impl World {
    pub(super) fn device(&self, number: u8) -> DeviceId {
        DeviceId(number % self.children.len() as u8)
    }

    pub(super) fn child(&mut self, device: DeviceId) -> &mut Child {
        &mut self.children[usize::from(device.0)]
    }

    pub(super) fn class(&self, device: DeviceId) -> &'static str {
        self.kins[usize::from(device.0)]
    }

    pub(super) fn seat(&self, device: DeviceId) -> SeatId {
        SeatId(2 * device.0 + self.children[usize::from(device.0)].seat)
    }

    pub(super) fn serve(&mut self, device: u8) {
        let device = self.device(device);
        if self.stranded.contains(&device) || self.child(device).serving {
            return;
        }
        self.child(device).serving = true;
        let class = class(self.class(device));
        self.journal.serve_by(self.seat(device), class, SLOTS);
    }

    pub(super) fn withdraw(&mut self, device: DeviceId) {
        if self.child(device).serving {
            self.child(device).withdrawn = true;
            self.journal.requests.withdraw(self.seat(device));
        }
    }

    /// Dismisses children that have returned all their requests.
    pub(super) fn dismiss(&mut self) {
        for number in 0..self.children.len() as u8 {
            let device = DeviceId(number);
            let seat = self.seat(device);
            if self.child(device).withdrawn && self.journal.requests.is_withdrawn(seat) {
                assert_eq!(self.child(device).has().count(), 0);
                self.die(device, &DeathCause::Dismissed, &Scene::default());
            }
        }
    }

    /// Takes a device out of use, except the last one: a worker without devices ends every request.
    pub(super) fn strand(&mut self, device: DeviceId, dies_first: bool) {
        let mut others = (0..self.children.len() as u8).map(DeviceId);
        if !others.any(|it| it != device && !self.stranded.contains(&it)) {
            return;
        }
        if dies_first {
            self.die(device, &DeathCause::Signalled(9), &Scene::default());
        } else {
            self.journal.requests.suspend(self.seat(device));
        }
        let failure = Failure::new(ErrorCode::WorkerUnhealthy, "its device is out");
        let now = self.journal.now;
        self.journal.requests.strand(device, &failure, now);
        self.stranded.insert(device);
        let left = (0..self.children.len() as u8).map(DeviceId);
        let left = left.filter(|it| !self.stranded.contains(it));
        let left: BTreeSet<_> = left.map(|it| self.class(it)).collect();
        self.lost
            .extend(self.kins.iter().filter(|it| !left.contains(*it)));
        self.die(device, &DeathCause::Signalled(9), &Scene::default());
    }

    /// Kills the child of a device. The next child takes the device's other seat.
    pub(super) fn die(&mut self, device: DeviceId, cause: &DeathCause, scene: &Scene) {
        let seat = self.seat(device);
        let child = std::mem::take(self.child(device));
        self.child(device).seat = child.seat;
        if child.serving {
            let now = self.journal.now;
            self.journal.requests.suspend(seat);
            if self.deaths.is_multiple_of(2) {
                self.journal.requests.release(seat);
            }
            self.deaths += 1;
            self.journal.requests.reaped(seat, cause, scene, now);
            self.child(device).seat = 1 - child.seat;
        }
    }
}
