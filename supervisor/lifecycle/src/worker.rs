//! The worker: its course, and how it ends. Time and what happened go in; what to do comes out.
//!
//! `tests/golden/worker.txt` is the whole table for a worker of one device.
//!
//! On each of its devices one child serves. A device on which children cannot be kept alive, or that NVIDIA's driver calls
//! unfit, goes out of use ([`Standing`]) and the worker goes on with the others; without any it has failed.
//!
//! The deaths of children of one device that serve, or are to, count together: a device that kills one
//! child kills the others too. A standby takes over as soon as such a child's end begins; its own deaths
//! cost no stream anything, and end nothing but the wish for one.

use crate::course::{Course, Drain, End};
use crate::effect::{Deed, DeviceId, Effect, EndReason, SeatId, Signal};
use crate::event::{ChildEvent, Event};
use crate::exit::SupervisorExit;
use crate::generations::Generations;
use crate::gpu::Testimony;
use crate::ledger::Ledger;
use crate::life::Life;
use crate::restart_policy::{RestartPolicy, WorkerFailure};
use crate::staff::Staff;
use crate::standing::Standing;
use crate::state::State;
use crate::watchdog::{Deadlines, OWN_ABSENCE};
use std::time::Duration;
use worker_orcd_ipc::{Generation, Role};

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Settings {
    pub deadlines: Deadlines,
    pub restart: RestartPolicy,
    /// Compile-time features of a child that are acceptable.
    pub accept_features: Vec<String>,
    /// On each device a child stands by at all times, to take over from one that dies.
    pub standby: bool,
    /// Where none stands by, the next child begins while the one before is dying.
    pub overlap: bool,
}

/// What another supervisor has left of its children of one device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Before {
    #[default]
    Nothing,
    /// Its last child, of whichever device. That of this one may still be dying when the first one here begins.
    Dying(Generation),
    /// The one that serves: it is the first one here.
    Serving(Generation),
}

#[derive(Debug)]
pub struct Worker {
    settings: Settings,
    /// One for each device, in their order.
    staffs: Vec<Staff>,
    generations: Generations,
    course: Course,
    stale_events: u64,
    last_called: Duration,
}

type Effects = Vec<Effect>;

impl Worker {
    /// Spawns a child for each device, of which there is one at least. A device has one seat more: for a standby, or
    /// for a child that replaces another.
    #[must_use]
    pub fn start(now: Duration, settings: Settings, devices: &[Before]) -> (Self, Effects) {
        let last = devices.iter().map(Before::last).max();
        let generations = Generations::behind(last.unwrap_or(Generation(0)));
        let devices = match devices {
            [] => &[Before::Nothing],
            devices => devices,
        };
        let staff = |(device, before): (u8, &Before)| {
            let (settings, generations) = (settings.clone(), generations.clone());
            Staff::new(now, settings, DeviceId(device), *before, generations)
        };
        let mut worker = Self {
            staffs: (0..).zip(devices).map(staff).collect(),
            settings,
            generations,
            course: Course::Serve,
            stale_events: 0,
            last_called: now,
        };
        let started = worker.staffs.iter_mut().map(|staff| staff.start(now));
        let effects = started.flatten().collect();
        (worker, effects)
    }

    pub fn handle(&mut self, now: Duration, event: Event) -> Effects {
        self.forgive_own_absence(now);
        match event {
            Event::Child { generation, event } => self.child(now, generation, event),
            _ if self.is_over() => vec![],
            Event::Tick => self.tick(now),
            Event::Gpu(device, testimony) => self.testimony(now, device, &testimony),
            Event::Drain { timeout } => self.drain(now, timeout),
            Event::Idle => self.idle(now),
            Event::Replace => self.replace(now),
            Event::Withdraw(device) => self.withdraw(now, device),
            Event::Vacated(seat) => self.in_device(now, seat.device(), |it| it.vacated(now, seat)),
            Event::Readmit(device) => self.readmit(now, device),
            Event::StopNow => self.stop_now(now),
        }
    }

    /// The moment at which [`Event::Tick`] is needed next. `None` only when it is over.
    #[must_use]
    pub fn poll_deadline(&self) -> Option<Duration> {
        if self.is_over() {
            return None;
        }
        let drain = self.course.drain().map(|drain| drain.until);
        let watches = self.lives().any(|life| life.state().is_watched());
        // Whoever measures a child's silence must be able to prove that it was listening.
        let attentive = watches.then(|| self.last_called + OWN_ABSENCE / 2);
        let own = self.lives().filter_map(Life::deadline);
        own.chain(drain).chain(attentive).min()
    }

    // === looking ===

    /// Generation of the child that was ordered last.
    #[must_use]
    pub fn newest(&self) -> Generation {
        self.generations.newest()
    }

    #[must_use]
    pub fn seat(&self, seat: SeatId) -> &Life {
        self.staff(seat.device()).seats.get(seat)
    }

    pub fn seats(&self) -> impl Iterator<Item = SeatId> + use<> {
        let seats = self.staffs.iter().flat_map(|staff| staff.seats.ids());
        seats.collect::<Vec<_>>().into_iter()
    }

    pub fn devices(&self) -> impl Iterator<Item = DeviceId> + use<> {
        (0..).map(DeviceId).take(self.staffs.len())
    }

    /// Whether a device is in use, and why not.
    #[must_use]
    pub fn standing(&self, device: DeviceId) -> &Standing {
        &self.staff(device).standing
    }

    /// It can be taken out of use: it is in use, and not alone.
    #[must_use]
    pub fn may_withdraw(&self, device: DeviceId) -> bool {
        self.standing(device).is_in_use() && self.is_in_use_beside(device)
    }

    /// It can be used again: it is out of use, and no process is stuck on it.
    #[must_use]
    pub fn may_readmit(&self, device: DeviceId) -> bool {
        self.staff(device).may_return()
    }

    /// The one that speaks for all: who serves, else who is to, else who did.
    #[must_use]
    pub fn foremost(&self) -> &Life {
        let of_each = || self.staffs.iter().map(|staff| staff.seats.foremost());
        let serves = of_each().find(|life| life.state().takes_work());
        let is_to = || of_each().find(|life| life.state().is_under_way());
        let in_use = || self.staffs.iter().find(|staff| staff.standing.is_in_use());
        let any = || in_use().unwrap_or(&self.staffs[0]).seats.foremost();
        serves.or_else(is_to).unwrap_or_else(any)
    }

    /// The one that speaks for its device.
    #[must_use]
    pub fn foremost_of(&self, device: DeviceId) -> &Life {
        self.staff(device).seats.foremost()
    }

    /// The standby of a device, or its empty seat, where there is to be one.
    #[must_use]
    pub fn standby(&self, device: DeviceId) -> Option<&Life> {
        let mut standbys = self.staff(device).seats.with_role(Role::Standby);
        let seat = standbys.next().filter(|_| self.settings.standby)?;
        Some(self.seat(seat))
    }

    /// Why there is no standby, although there should be.
    #[must_use]
    pub fn standby_given_up(&self, device: DeviceId) -> Option<&str> {
        self.staff(device).standby.given_up()
    }

    #[must_use]
    pub fn ledger(&self, device: DeviceId) -> &Ledger {
        &self.staff(device).ledger
    }

    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Times that a child was ordered, or promoted, to serve in place of one before.
    #[must_use]
    pub fn successions(&self) -> u64 {
        self.staffs.iter().map(|staff| staff.successions).sum()
    }

    /// Nothing new is accepted.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        match &self.course {
            Course::Leave(End::Stop(_)) | Course::Over { .. } => true,
            course => course.drain().is_some(),
        }
    }

    /// True when no process is left, and none follows.
    #[must_use]
    pub fn is_over(&self) -> bool {
        matches!(self.course, Course::Over { .. })
    }

    /// Why it gave up, if it did.
    #[must_use]
    pub fn failure(&self) -> Option<&WorkerFailure> {
        match &self.course {
            Course::Leave(End::Fail(failure))
            | Course::Over {
                end: End::Fail(failure),
                ..
            } => Some(failure),
            _ => None,
        }
    }

    /// A stable word for /health, metrics and logs, and since when it is true.
    #[must_use]
    pub fn state(&self) -> (&'static str, Duration) {
        let state = self.foremost().state();
        match (&self.course, self.course.drain()) {
            (Course::Over { since, end }, _) => (end.name(), *since),
            (_, Some(drain)) if state.takes_work() => {
                (self.word_for(state), state.since().max(drain.since))
            }
            _ => (self.word_for(state), state.since()),
        }
    }

    /// A child that serves does so to the end of a drain, if there is one.
    #[must_use]
    pub fn word_for(&self, state: &State) -> &'static str {
        match self.course.drain() {
            Some(_) if state.takes_work() => "draining",
            _ => state.name(),
        }
    }

    #[must_use]
    pub fn has_served(&self) -> bool {
        self.staffs.iter().any(|staff| staff.has_served)
    }

    /// Words of the dead that were dropped.
    #[must_use]
    pub fn stale_events(&self) -> u64 {
        self.stale_events
    }

    // === time ===

    fn forgive_own_absence(&mut self, now: Duration) {
        let absent = now.saturating_sub(self.last_called);
        self.last_called = self.last_called.max(now);
        if absent >= OWN_ABSENCE {
            let staffs = self.staffs.iter_mut();
            let lives = staffs.flat_map(|staff| staff.seats.iter_mut());
            lives.for_each(|life| life.forgive(absent));
        }
    }

    fn tick(&mut self, now: Duration) -> Effects {
        if self.course.drain().is_some_and(|drain| now >= drain.until) {
            let mut effects = vec![Effect::EndRequests(EndReason::DrainDeadline)];
            effects.extend(self.leave(now, SupervisorExit::DrainIncomplete));
            return effects;
        }
        self.each(|worker, seat| {
            worker.in_device(now, seat.device(), |staff| staff.tick(now, seat))
        })
    }

    // === a child ===

    fn child(&mut self, now: Duration, generation: Generation, event: ChildEvent) -> Effects {
        let is_new = matches!(event, ChildEvent::Spawned { .. });
        let mut staffs = self.staffs.iter();
        let seat = staffs.find_map(|staff| staff.seats.of(generation));
        let heard = seat.filter(|_| !self.is_over()).and_then(|seat| {
            let deeds = self.life(seat).tell(now, event)?;
            Some((seat, deeds))
        });
        match heard {
            Some((seat, deeds)) if is_new => self.greet(now, seat, deeds),
            Some((seat, deeds)) => self.follow(now, seat, deeds),
            None => self.stale(seat, generation, is_new),
        }
    }

    /// A late process must not live on; late words are only counted. Where the seat has its next child,
    /// whoever made the process has ended it.
    fn stale(&mut self, seat: Option<SeatId>, generation: Generation, is_new: bool) -> Effects {
        self.stale_events += 1;
        let kill = Effect::Child {
            seat: seat.unwrap_or(SeatId(0)),
            generation,
            deed: Deed::Kill(Signal::Kill),
        };
        if is_new { vec![kill] } else { vec![] }
    }

    /// Greets a process, which may have come too late to be of use.
    fn greet(&mut self, now: Duration, seat: SeatId, mut deeds: Vec<Deed>) -> Effects {
        deeds.extend(match self.course {
            Course::Leave(_) => self.life(seat).dismiss(now),
            Course::Serve | Course::Drain(_) => self.staff_mut(seat.device()).turn_away(now, seat),
            Course::Over { .. } => vec![],
        });
        self.follow(now, seat, deeds)
    }

    /// Draws the conclusions from what becomes of a child.
    fn follow(&mut self, now: Duration, seat: SeatId, deeds: Vec<Deed>) -> Effects {
        self.in_device(now, seat.device(), |staff| staff.follow(now, seat, deeds))
    }

    /// On every device a new child takes the place of the one that serves.
    fn replace(&mut self, now: Duration) -> Effects {
        match self.course {
            Course::Serve => self.each_device(now, |staff| staff.replace(now)),
            _ => vec![],
        }
    }

    /// Lets the staff of a device do something, and adds what follows for the worker.
    fn in_device(
        &mut self,
        now: Duration,
        device: DeviceId,
        act: impl FnOnce(&mut Staff) -> Effects,
    ) -> Effects {
        let staff = self.staff_mut(device);
        let mut effects = act(staff);
        effects.extend(match staff.take_failure() {
            Some(failure) => self.lose(now, device, failure),
            None => self.settle(now),
        });
        effects
    }

    // === a device comes and goes ===

    /// No child can be kept alive on this device.
    fn lose(&mut self, now: Duration, device: DeviceId, failure: WorkerFailure) -> Effects {
        let goes_on = matches!(self.course, Course::Serve | Course::Drain(_));
        match goes_on && self.is_in_use_beside(device) {
            true => self.in_device(now, device, |staff| staff.fail(now, failure)),
            false => self.fail(now, failure),
        }
    }

    fn testimony(&mut self, now: Duration, device: DeviceId, testimony: &Testimony) -> Effects {
        let goes_on = matches!(self.course, Course::Serve | Course::Drain(_));
        let is_condemned = self.standing(device).is_condemned();
        match testimony.condemns() {
            Some(condemnation) if goes_on && !is_condemned => {
                self.in_device(now, device, |staff| staff.condemn(now, &condemnation))
            }
            _ => vec![],
        }
    }

    fn withdraw(&mut self, now: Duration, device: DeviceId) -> Effects {
        match self.course {
            Course::Serve if self.may_withdraw(device) => {
                self.in_device(now, device, |staff| staff.withdraw(now))
            }
            _ => vec![],
        }
    }

    fn readmit(&mut self, now: Duration, device: DeviceId) -> Effects {
        match self.course {
            Course::Serve => self.in_device(now, device, |staff| staff.readmit(now)),
            _ => vec![],
        }
    }

    fn is_in_use_beside(&self, device: DeviceId) -> bool {
        let mut others = self.staffs.iter().filter(|staff| staff.device != device);
        others.any(|staff| staff.standing.is_in_use())
    }

    /// Devices whose last process is gone are out of use; without any other the worker has failed.
    fn settle_devices(&mut self, now: Duration) -> Effects {
        let mut effects = vec![];
        for staff in &mut self.staffs {
            if staff.settle() {
                effects.push(Effect::DeviceOut(staff.device));
            }
        }
        let standings = || self.staffs.iter().map(|staff| &staff.standing);
        if effects.is_empty() || !standings().all(Standing::is_out) {
            return effects;
        }
        let absences = standings().filter_map(Standing::absence);
        match absences.filter_map(|absence| absence.failure()).next_back() {
            Some(failure) => self.fail(now, failure),
            None => self.leave(now, SupervisorExit::Clean),
        }
    }

    // === its end ===

    fn drain(&mut self, now: Duration, timeout: Duration) -> Effects {
        let (since, until) = (now, now + timeout);
        match &mut self.course {
            Course::Serve => self.course = Course::Drain(Drain { since, until }),
            // Told again: whoever is in more of a hurry decides.
            Course::Drain(drain) => {
                drain.until = drain.until.min(until);
                return vec![];
            }
            Course::Leave(_) | Course::Over { .. } => return vec![],
        }
        vec![Effect::RefuseNewWork]
    }

    fn idle(&mut self, now: Duration) -> Effects {
        match self.course.drain() {
            Some(_) => self.leave(now, SupervisorExit::Clean),
            None => vec![],
        }
    }

    fn stop_now(&mut self, now: Duration) -> Effects {
        self.end_with(End::Stop(SupervisorExit::StoppedAtOnce));
        let mut effects = vec![
            Effect::RefuseNewWork,
            Effect::EndRequests(EndReason::StoppedAtOnce),
        ];
        effects.extend(self.each(|worker, seat| {
            let deeds = worker.life(seat).end_at_once(now);
            worker.follow(now, seat, deeds)
        }));
        effects
    }

    fn fail(&mut self, now: Duration, failure: WorkerFailure) -> Effects {
        if self.failure().is_some() {
            return self.settle(now);
        }
        self.end_with(End::Fail(failure));
        let mut effects = vec![
            Effect::RefuseNewWork,
            Effect::EndRequests(EndReason::Failed),
        ];
        effects.extend(self.dismiss(now));
        effects
    }

    fn end_with(&mut self, end: End) {
        self.course = Course::Leave(end);
        self.staffs.iter_mut().for_each(Staff::close);
    }

    fn leave(&mut self, now: Duration, exit: SupervisorExit) -> Effects {
        self.end_with(End::Stop(exit));
        self.dismiss(now)
    }

    fn dismiss(&mut self, now: Duration) -> Effects {
        self.each_device(now, |staff| staff.dismiss(now))
    }

    /// Ends, if nothing else is to come and no process is left.
    fn settle(&mut self, now: Duration) -> Effects {
        let end = match &self.course {
            Course::Serve | Course::Drain(_) => return self.settle_devices(now),
            Course::Over { .. } => return vec![],
            Course::Leave(end) => end.clone(),
        };
        self.staffs.iter_mut().for_each(Staff::close);
        if !self.staffs.iter().all(|staff| staff.seats.are_over()) {
            return vec![];
        }
        let (exit, reason) = match &end {
            End::Stop(exit) => (*exit, exit.name().to_owned()),
            End::Fail(failure) => (failure.exit, failure.reason.clone()),
        };
        self.course = Course::Over { since: now, end };
        vec![Effect::End { exit, reason }]
    }

    // === its devices ===

    fn staff(&self, device: DeviceId) -> &Staff {
        &self.staffs[usize::from(device.0)]
    }

    fn staff_mut(&mut self, device: DeviceId) -> &mut Staff {
        &mut self.staffs[usize::from(device.0)]
    }

    fn lives(&self) -> impl Iterator<Item = &Life> {
        self.staffs.iter().flat_map(|staff| staff.seats.iter())
    }

    fn life(&mut self, seat: SeatId) -> &mut Life {
        self.staff_mut(seat.device()).seats.get_mut(seat)
    }

    fn each(&mut self, mut act: impl FnMut(&mut Self, SeatId) -> Effects) -> Effects {
        let seats = self.seats();
        seats.flat_map(|seat| act(self, seat)).collect()
    }

    fn each_device(
        &mut self,
        now: Duration,
        mut act: impl FnMut(&mut Staff) -> Effects,
    ) -> Effects {
        let devices = self.devices();
        devices
            .flat_map(|device| self.in_device(now, device, &mut act))
            .collect()
    }
}

impl Before {
    /// Number of a child that is not this worker's own.
    fn last(&self) -> Generation {
        match self {
            Self::Nothing => Generation(0),
            Self::Dying(last) => *last,
            Self::Serving(child) => *child,
        }
    }
}
