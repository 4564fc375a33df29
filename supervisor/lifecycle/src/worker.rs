//! The worker: its seats, what follows from a death, and how it ends. Time and what happened go in;
//! what to do comes out.
//!
//! `tests/golden/worker.txt` is the whole table for a worker of one seat.
//!
//! All seats are on one device, and their deaths count together: a machine that kills one child
//! kills the others too.

use crate::course::{Course, Drain, End};
use crate::death::DeathCause;
use crate::effect::{Deed, Effect, EndReason, SeatId, Signal};
use crate::event::{ChildEvent, Event};
use crate::exit::SupervisorExit;
use crate::gpu::Testimony;
use crate::ledger::Ledger;
use crate::life::Life;
use crate::restart_policy::{RestartPolicy, Verdict, WorkerFailure};
use crate::state::State;
use crate::watchdog::{Deadlines, OWN_ABSENCE};
use std::num::NonZeroU8;
use std::time::Duration;
use worker_orcd_ipc::Generation;

/// Time for descriptors to come back: clients' connections end all the time.
const STARVED_PAUSE: Duration = Duration::from_millis(250);

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Settings {
    pub deadlines: Deadlines,
    pub restart: RestartPolicy,
    /// Compile-time features of a child that are acceptable.
    pub accept_features: Vec<String>,
}

#[derive(Debug)]
pub struct Worker {
    settings: Settings,
    seats: Vec<Life>,
    course: Course,
    /// Generation of the child that was spawned last, in whichever seat.
    newest: Generation,
    has_served: bool,
    ledger: Ledger,
    stale_events: u64,
    last_called: Duration,
}

type Effects = Vec<Effect>;

impl Worker {
    /// Spawns the first child of each seat.
    #[must_use]
    pub fn start(now: Duration, settings: Settings, seats: NonZeroU8) -> (Self, Effects) {
        let seat = |_| Life::new(now, settings.deadlines, settings.accept_features.clone());
        let mut worker = Self {
            seats: (0..seats.get()).map(seat).collect(),
            settings,
            course: Course::Serve,
            newest: Generation(0),
            has_served: false,
            ledger: Ledger::default(),
            stale_events: 0,
            last_called: now,
        };
        let effects = worker.each(|worker, seat| worker.spawn(now, seat));
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
        let watches = self.seats.iter().any(|life| life.state().is_watched());
        // Whoever measures a child's silence must be able to prove that it was listening.
        let attentive = watches.then(|| self.last_called + OWN_ABSENCE / 2);
        let own = self.seats.iter().filter_map(Life::deadline);
        own.chain(drain).chain(attentive).min()
    }

    // === looking ===

    #[must_use]
    pub fn seat(&self, seat: SeatId) -> &Life {
        &self.seats[usize::from(seat.0)]
    }

    /// The one that speaks for all: who serves, else the first.
    #[must_use]
    pub fn foremost(&self) -> &Life {
        let mut seats = self.seats.iter();
        let serves = seats.find(|life| life.state().takes_work());
        serves.unwrap_or(&self.seats[0])
    }

    #[must_use]
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
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
        self.has_served
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
            self.seats.iter_mut().for_each(|life| life.forgive(absent));
        }
    }

    fn tick(&mut self, now: Duration) -> Effects {
        if self.course.drain().is_some_and(|drain| now >= drain.until) {
            let mut effects = vec![Effect::EndRequests(EndReason::DrainDeadline)];
            effects.extend(self.leave(now, SupervisorExit::DrainIncomplete));
            return effects;
        }
        self.each(|worker, seat| match worker.seat(seat).state() {
            State::Vacant {
                spawn_at: Some(at), ..
            } if now >= *at => worker.spawn(now, seat),
            _ => {
                let deeds = worker.life(seat).tick(now);
                worker.follow(now, seat, deeds)
            }
        })
    }

    // === a child ===

    fn child(&mut self, now: Duration, generation: Generation, event: ChildEvent) -> Effects {
        let is_new = matches!(event, ChildEvent::Spawned { .. });
        let mut ids = (0..).map(SeatId).take(self.seats.len());
        let seat = ids.find(|seat| self.seat(*seat).generation() == generation);
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

    /// Draws the worker's conclusions from what becomes of a child.
    fn follow(&mut self, now: Duration, seat: SeatId, deeds: Vec<Deed>) -> Effects {
        let mut cause = None;
        for deed in &deeds {
            match deed {
                Deed::Serve => {
                    self.has_served = true;
                    self.ledger.served();
                }
                Deed::Bury(why) => cause = Some(why.clone()),
                _ => {}
            }
        }
        let generation = self.seat(seat).generation();
        let child = |deed| Effect::Child {
            seat,
            generation,
            deed,
        };
        let mut effects: Effects = deeds.into_iter().map(child).collect();
        if let Some(cause) = &cause {
            let window = self.settings.restart.window;
            self.ledger.record(now, cause, window);
        }
        effects.extend(self.succeed(now, seat, cause));
        effects
    }

    /// A seat without a child gets its next one, if any.
    fn succeed(&mut self, now: Duration, seat: SeatId, cause: Option<DeathCause>) -> Effects {
        match (self.seat(seat).state(), &self.course, cause) {
            (State::Unreapable { pid, .. }, ..) => {
                let reason = format!(
                    "process {pid} survived SIGKILL for {} s: it is stuck in the kernel, and the \
                     node needs a reboot",
                    self.settings.deadlines.kill.as_secs()
                );
                let exit = SupervisorExit::Unreapable;
                self.fail(now, WorkerFailure { exit, reason })
            }
            (State::Vacant { spawn_at: None, .. }, Course::Serve | Course::Drain(_), cause) => {
                self.decide(now, seat, cause.as_ref())
            }
            _ => self.settle(now),
        }
    }

    fn decide(&mut self, now: Duration, seat: SeatId, cause: Option<&DeathCause>) -> Effects {
        let Some(cause) = cause else {
            // Nobody died: it is tried again, however often, until there is a descriptor.
            self.life(seat).rest(now, Some(now + STARVED_PAUSE));
            return vec![];
        };
        let policy = self.settings.restart;
        let deaths = self.ledger.intensity(now, policy.window);
        match policy.judge(cause, deaths, self.has_served) {
            Verdict::RestartNow => self.spawn(now, seat),
            Verdict::RestartAfter(delay) => {
                self.life(seat).rest(now, Some(now + delay));
                vec![]
            }
            Verdict::Fail(failure) => self.fail(now, failure),
        }
    }

    fn spawn(&mut self, now: Duration, seat: SeatId) -> Effects {
        self.newest = self.newest.next();
        let generation = self.newest;
        let deeds = self.life(seat).spawn(now, generation);
        self.follow(now, seat, deeds)
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
        self.course = Course::Leave(End::Stop(SupervisorExit::StoppedAtOnce));
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
        self.course = Course::Leave(End::Fail(failure));
        let mut effects = vec![
            Effect::RefuseNewWork,
            Effect::EndRequests(EndReason::Failed),
        ];
        effects.extend(self.dismiss(now));
        effects
    }

    fn leave(&mut self, now: Duration, exit: SupervisorExit) -> Effects {
        self.course = Course::Leave(End::Stop(exit));
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
        self.seats.iter_mut().for_each(Life::stay_empty);
        if !self.seats.iter().all(|life| life.state().is_over()) {
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
        &mut self.seats[usize::from(seat.0)]
    }

    fn each(&mut self, mut act: impl FnMut(&mut Self, SeatId) -> Effects) -> Effects {
        let seats = (0..).map(SeatId).take(self.seats.len());
        seats.flat_map(|seat| act(self, seat)).collect()
    }
}
