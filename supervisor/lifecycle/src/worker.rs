//! The worker: its course, and how it ends. Time and what happened go in; what to do comes out.
//!
//! `tests/golden/worker.txt` is the whole table for a worker of which one child serves.
//!
//! All seats are on one device, and the deaths of children that serve, or are to, count together: a
//! machine that kills one child kills the others too. A standby takes over as soon as such a child's
//! end begins; its own deaths cost no stream anything, and end nothing but the wish for one.

use crate::course::{Course, Drain, End};
use crate::death::DeathCause;
use crate::effect::{Deed, Effect, EndReason, SeatId, Signal};
use crate::event::{ChildEvent, Event};
use crate::exit::SupervisorExit;
use crate::gpu::Testimony;
use crate::ledger::Ledger;
use crate::life::Life;
use crate::restart_policy::{RestartPolicy, WorkerFailure};
use crate::staff::Staff;
use crate::state::State;
use crate::watchdog::{Deadlines, OWN_ABSENCE};
use std::num::NonZeroU8;
use std::time::Duration;
use worker_orcd_ipc::{Generation, Role};

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Settings {
    pub deadlines: Deadlines,
    pub restart: RestartPolicy,
    /// Compile-time features of a child that are acceptable.
    pub accept_features: Vec<String>,
    /// A child stands by at all times, to take over from one that dies.
    pub standby: bool,
    /// Where none stands by, the next child begins while the one before is dying.
    pub overlap: bool,
    /// Children of another supervisor.
    pub before: Before,
}

/// What another supervisor has left of its children.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Before {
    #[default]
    Nothing,
    /// The last one, which may still be dying when the first one here begins.
    Dying(Generation),
    /// The one that serves: it is the first one here.
    Serving(Generation),
}

#[derive(Debug)]
pub struct Worker {
    staff: Staff,
    course: Course,
    stale_events: u64,
    last_called: Duration,
}

type Effects = Vec<Effect>;

impl Worker {
    /// Spawns as many children as are to serve at once. There is one seat more: for a standby, or for
    /// a child that replaces another.
    #[must_use]
    pub fn start(now: Duration, settings: Settings, serving: NonZeroU8) -> (Self, Effects) {
        let mut staff = Staff::new(now, settings, serving);
        let effects = staff.start(now);
        let worker = Self {
            staff,
            course: Course::Serve,
            stale_events: 0,
            last_called: now,
        };
        (worker, effects)
    }

    pub fn handle(&mut self, now: Duration, event: Event) -> Effects {
        self.forgive_own_absence(now);
        match event {
            Event::Child { generation, event } => self.child(now, generation, event),
            _ if self.is_over() => vec![],
            Event::Tick => self.tick(now),
            Event::Gpu(testimony) => self.testimony(now, &testimony),
            Event::Drain { timeout } => self.drain(now, timeout),
            Event::Idle => self.idle(now),
            Event::Replace => self.replace(now),
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
        let watches = self
            .staff
            .seats
            .iter()
            .any(|life| life.state().is_watched());
        // Whoever measures a child's silence must be able to prove that it was listening.
        let attentive = watches.then(|| self.last_called + OWN_ABSENCE / 2);
        let own = self.staff.seats.iter().filter_map(Life::deadline);
        own.chain(drain).chain(attentive).min()
    }

    // === looking ===

    /// Generation of the child that was ordered last.
    #[must_use]
    pub fn newest(&self) -> Generation {
        self.staff.seats.newest()
    }

    #[must_use]
    pub fn seat(&self, seat: SeatId) -> &Life {
        self.staff.seats.get(seat)
    }

    pub fn seats(&self) -> impl Iterator<Item = SeatId> + use<> {
        self.staff.seats.ids()
    }

    /// The one that speaks for all: who serves, else who is to, else who did.
    #[must_use]
    pub fn foremost(&self) -> &Life {
        self.staff.seats.foremost()
    }

    /// The standby, or its empty seat, where there is to be one.
    #[must_use]
    pub fn standby(&self) -> Option<&Life> {
        let mut standbys = self.staff.seats.with_role(Role::Standby);
        let seat = standbys.next().filter(|_| self.settings().standby)?;
        Some(self.seat(seat))
    }

    /// Why there is no standby, although there should be.
    #[must_use]
    pub fn standby_given_up(&self) -> Option<&str> {
        self.staff.standby.given_up()
    }

    #[must_use]
    pub fn ledger(&self) -> &Ledger {
        &self.staff.ledger
    }

    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.staff.settings
    }

    /// Times that a child was ordered, or promoted, to serve in place of one before.
    #[must_use]
    pub fn successions(&self) -> u64 {
        self.staff.successions
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
        self.staff.has_served
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
            let lives = self.staff.seats.iter_mut();
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
            let effects = worker.staff.tick(now, seat);
            worker.draw(now, effects)
        })
    }

    // === a child ===

    fn child(&mut self, now: Duration, generation: Generation, event: ChildEvent) -> Effects {
        let is_new = matches!(event, ChildEvent::Spawned { .. });
        let seat = self.staff.seats.of(generation);
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
        match &self.course {
            Course::Condemned { condemnation, .. } => {
                let cause = DeathCause::Condemned(condemnation.clone());
                deeds.extend(self.life(seat).kill(now, cause));
            }
            Course::Leave(_) => deeds.extend(self.life(seat).dismiss(now)),
            Course::Serve | Course::Drain(_) | Course::Over { .. } => {}
        }
        self.follow(now, seat, deeds)
    }

    /// Draws the conclusions from what becomes of a child.
    fn follow(&mut self, now: Duration, seat: SeatId, deeds: Vec<Deed>) -> Effects {
        let effects = self.staff.follow(now, seat, deeds);
        self.draw(now, effects)
    }

    fn replace(&mut self, now: Duration) -> Effects {
        match self.course {
            Course::Serve => {
                let effects = self.staff.replace(now);
                self.draw(now, effects)
            }
            _ => vec![],
        }
    }

    /// Adds what follows for the worker from what became of its children.
    fn draw(&mut self, now: Duration, mut effects: Effects) -> Effects {
        effects.extend(match self.staff.take_failure() {
            Some(failure) => self.fail(now, failure),
            None => self.settle(now),
        });
        effects
    }

    // === its end ===

    fn testimony(&mut self, now: Duration, testimony: &Testimony) -> Effects {
        let drain = match self.course {
            Course::Serve => None,
            Course::Drain(drain) => Some(drain),
            Course::Condemned { .. } | Course::Leave(_) | Course::Over { .. } => return vec![],
        };
        let Some(condemnation) = testimony.condemns() else {
            return vec![];
        };
        let cause = DeathCause::Condemned(condemnation.clone());
        self.course = Course::Condemned {
            condemnation,
            drain,
        };
        self.staff.close();
        // A child there is may hang in NVIDIA's driver, or compute nonsense; both end here.
        self.each(
            |worker, seat| match worker.seat(seat).state().is_trusted() {
                true => {
                    let deeds = worker.life(seat).kill(now, cause.clone());
                    worker.follow(now, seat, deeds)
                }
                false => worker.settle(now),
            },
        )
    }

    fn drain(&mut self, now: Duration, timeout: Duration) -> Effects {
        let (since, until) = (now, now + timeout);
        match &mut self.course {
            Course::Serve => self.course = Course::Drain(Drain { since, until }),
            Course::Condemned {
                drain: drain @ None,
                ..
            } => *drain = Some(Drain { since, until }),
            // Told again: whoever is in more of a hurry decides.
            Course::Drain(drain)
            | Course::Condemned {
                drain: Some(drain), ..
            } => {
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
        self.staff.close();
    }

    fn leave(&mut self, now: Duration, exit: SupervisorExit) -> Effects {
        self.end_with(End::Stop(exit));
        self.dismiss(now)
    }

    fn dismiss(&mut self, now: Duration) -> Effects {
        self.each(|worker, seat| {
            let deeds = worker.life(seat).dismiss(now);
            worker.follow(now, seat, deeds)
        })
    }

    /// Ends, if nothing else is to come and no process is left.
    fn settle(&mut self, now: Duration) -> Effects {
        if matches!(self.course, Course::Serve | Course::Drain(_)) {
            return vec![];
        }
        self.staff.close();
        if !self.staff.seats.iter().all(|life| life.state().is_over()) {
            return vec![];
        }
        match self.course.clone() {
            Course::Condemned { condemnation, .. } => self.fail(now, condemnation.into()),
            Course::Leave(end) => {
                let (exit, reason) = match &end {
                    End::Stop(exit) => (*exit, exit.name().to_owned()),
                    End::Fail(failure) => (failure.exit, failure.reason.clone()),
                };
                self.course = Course::Over { since: now, end };
                vec![Effect::End { exit, reason }]
            }
            Course::Serve | Course::Drain(_) | Course::Over { .. } => vec![],
        }
    }

    fn life(&mut self, seat: SeatId) -> &mut Life {
        self.staff.seats.get_mut(seat)
    }

    fn each(&mut self, mut act: impl FnMut(&mut Self, SeatId) -> Effects) -> Effects {
        let seats = self.seats();
        seats.flat_map(|seat| act(self, seat)).collect()
    }
}
