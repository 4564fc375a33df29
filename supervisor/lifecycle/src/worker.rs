//! The worker: its course, and how it ends. Time and what happened go in; what to do comes out.
//!
//! `tests/golden/worker.txt` is the whole table for a worker of one device.
//!
//! On each of its devices one child serves. A device on which children cannot be kept alive, or that NVIDIA's driver calls
//! unfit, goes out of use ([`Standing`](crate::Standing), [`devices`]) and the worker goes on with the others; without any it has failed.
//!
//! The deaths of children of one device that serve, or are to, count together: a device that kills one
//! child kills the others too. A standby takes over as soon as such a child's end begins; its own deaths
//! cost no stream anything, and end nothing but the wish for one. Deaths between which children deliver make a
//! device unsteady, and end nothing. [`looking`] is what others see of it.

mod devices;
mod looking;

use crate::course::{Course, Drain, End};
use crate::effect::{Deed, DeviceId, Effect, EndReason, SeatId, Signal};
use crate::event::{ChildEvent, Event};
use crate::exit::SupervisorExit;
use crate::generations::Generations;
use crate::life::Life;
use crate::restart_policy::{RestartPolicy, WorkerFailure};
use crate::staff::Staff;
use crate::standing::Absence;
use crate::watchdog::{Deadlines, OWN_ABSENCE};
use std::time::Duration;
use worker_orcd_ipc::Generation;

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
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Before {
    #[default]
    Nothing,
    /// Its last child, of whichever device. That of this one may still be dying when the first one here begins.
    Dying(Generation),
    /// The one that serves: it is the first one here.
    Serving(Generation),
    /// None: the device was out of use, and stays so while another one is in use. With the number of the last child, of
    /// whichever device.
    Out { last: Generation, absence: Absence },
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
    /// Spawns a child for each device that is in use, of which there is one at least. A device has one seat more: for a
    /// standby, or for a child that replaces another.
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
            Staff::new(now, settings, DeviceId(device), before, generations)
        };
        let mut worker = Self {
            staffs: (0..).zip(devices).map(staff).collect(),
            settings,
            generations,
            course: Course::Serve,
            stale_events: 0,
            last_called: now,
        };
        let is_any_in_use = devices.iter().any(|before| before.absence().is_none());
        let begin = |(staff, before): (&mut Staff, &Before)| match before.absence() {
            Some(absence) if is_any_in_use => staff.stay_out(now, absence.clone()),
            _ => staff.start(now),
        };
        let begun = worker.staffs.iter_mut().zip(devices).map(begin);
        let effects = begun.flatten().collect();
        (worker, effects)
    }

    pub fn handle(&mut self, now: Duration, event: Event) -> Effects {
        self.forgive_own_absence(now);
        match event {
            Event::Child { generation, event } => self.child(now, generation, event),
            _ if self.is_over() => vec![],
            Event::Tick => self.tick(now),
            Event::Absolve { device, deaths } => {
                self.staff_mut(device).absolve(deaths);
                vec![]
            }
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
        let is_progress = event == ChildEvent::Progress;
        let mut staffs = self.staffs.iter();
        let seat = staffs.find_map(|staff| staff.seats.of(generation));
        let heard = seat.filter(|_| !self.is_over()).and_then(|seat| {
            let deeds = self.life(seat).tell(now, event)?;
            Some((seat, deeds))
        });
        match heard {
            Some((seat, deeds)) if is_progress => {
                self.staff_mut(seat.device()).progressed(seat);
                self.follow(now, seat, deeds)
            }
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
            Self::Out { last, .. } => *last,
        }
    }

    fn absence(&self) -> Option<&Absence> {
        match self {
            Self::Out { absence, .. } => Some(absence),
            Self::Nothing | Self::Dying(_) | Self::Serving(_) => None,
        }
    }
}
