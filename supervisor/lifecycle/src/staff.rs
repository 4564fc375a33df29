//! The staff of a worker: its children, and who follows whom. Of drains and exits the
//! [worker](crate::worker) knows.

use crate::death::DeathCause;
use crate::effect::{Deed, Effect, SeatId};
use crate::exit::SupervisorExit;
use crate::ledger::Ledger;
use crate::life::Life;
use crate::restart_policy::{Verdict, WorkerFailure};
use crate::seats::Seats;
use crate::standby::{self, Standby};
use crate::state::State;
use crate::worker::Settings;
use std::num::NonZeroU8;
use std::time::Duration;
use worker_orcd_ipc::Role;

#[derive(Debug)]
pub(crate) struct Staff {
    pub(crate) settings: Settings,
    pub(crate) seats: Seats,
    pub(crate) standby: Standby,
    pub(crate) has_served: bool,
    /// Times that a child was ordered, or promoted, to serve in place of one before.
    pub(crate) successions: u64,
    pub(crate) ledger: Ledger,
    /// Nobody follows any more.
    is_closed: bool,
    /// Why no child can follow, until the worker asks.
    failure: Option<WorkerFailure>,
}

type Effects = Vec<Effect>;

impl Staff {
    pub(crate) fn new(now: Duration, settings: Settings, serving: NonZeroU8) -> Self {
        Self {
            seats: Seats::new(now, &settings, serving),
            standby: Standby::new(settings.standby),
            settings,
            has_served: false,
            successions: 0,
            ledger: Ledger::default(),
            is_closed: false,
            failure: None,
        }
    }

    /// Spawns as many children as are to serve at once.
    pub(crate) fn start(&mut self, now: Duration) -> Effects {
        let first: Vec<_> = self.seats.with_role(Role::Active).collect();
        let spawn = |seat| self.spawn(now, seat);
        first.into_iter().flat_map(spawn).collect()
    }

    /// Lets no further child follow.
    pub(crate) fn close(&mut self) {
        self.is_closed = true;
        self.seats.iter_mut().for_each(Life::stay_empty);
    }

    pub(crate) fn take_failure(&mut self) -> Option<WorkerFailure> {
        self.failure.take()
    }

    pub(crate) fn tick(&mut self, now: Duration, seat: SeatId) -> Effects {
        match self.seats.get(seat).state() {
            State::Vacant {
                spawn_at: Some(at), ..
            } if now >= *at => self.fill(now, seat),
            _ => {
                let deeds = self.seats.get_mut(seat).tick(now);
                self.follow(now, seat, deeds)
            }
        }
    }

    /// Draws the conclusions from what becomes of a child.
    pub(crate) fn follow(&mut self, now: Duration, seat: SeatId, deeds: Vec<Deed>) -> Effects {
        let generation = self.seats.get(seat).generation();
        let mut effects = vec![];
        for deed in deeds {
            let conclusion = self.conclude(now, seat, &deed);
            effects.push(Effect::Child {
                seat,
                generation,
                deed,
            });
            effects.extend(conclusion);
        }
        effects
    }

    fn conclude(&mut self, now: Duration, seat: SeatId, deed: &Deed) -> Effects {
        let is_active = self.seats.get(seat).role() == Role::Active;
        match deed {
            Deed::Serve => {
                self.has_served = true;
                self.ledger.served();
                self.want_standby(now);
                vec![]
            }
            Deed::StandBy if self.standby.stands_by() => self.dismiss_active(now),
            Deed::Suspend { .. } if is_active => self.promote_heir(now, seat),
            Deed::Bury(cause) => {
                self.ledger.count(cause);
                if is_active && *cause != DeathCause::Dismissed {
                    self.ledger.record(now, self.settings.restart.window);
                }
                let mut effects = self.succeed(now, seat, cause);
                if !is_active && cause.is_of_kept_weights() {
                    effects.extend(self.kill_active(now, cause));
                }
                effects
            }
            _ => vec![],
        }
    }

    /// A seat without a child gets its next one, if any.
    fn succeed(&mut self, now: Duration, seat: SeatId, cause: &DeathCause) -> Effects {
        let life = self.seats.get_mut(seat);
        match (life.state(), life.role()) {
            (State::Unreapable { pid, .. }, _) => {
                let reason = format!(
                    "process {pid} survived SIGKILL for {} s: it is stuck in the kernel, and the \
                     node needs a reboot",
                    self.settings.deadlines.kill.as_secs()
                );
                let exit = SupervisorExit::Unreapable;
                self.failure = Some(WorkerFailure { exit, reason });
                vec![]
            }
            _ if self.is_closed => vec![],
            (_, Role::Standby) => {
                let pause = self.standby.pause_after(now, cause, &self.settings.restart);
                life.rest(now, pause.map(|pause| now + pause));
                vec![]
            }
            (_, Role::Active) => self.replace_dead(now, seat, cause),
        }
    }

    fn replace_dead(&mut self, now: Duration, seat: SeatId, cause: &DeathCause) -> Effects {
        let policy = self.settings.restart;
        let deaths = self.ledger.intensity(now, policy.window);
        let delay = match policy.judge(cause, deaths, self.has_served) {
            Verdict::Fail(failure) => {
                self.failure = Some(failure);
                return vec![];
            }
            Verdict::RestartNow => Duration::ZERO,
            Verdict::RestartAfter(delay) => delay,
        };
        let has_heir = self.seats.are_staffed();
        let life = self.seats.get_mut(seat);
        if has_heir {
            // Its child has taken over; this seat is for the next standby.
            life.assign(Role::Standby);
            let next = self.standby.is_wanted();
            life.rest(now, next.then(|| now + delay.max(standby::PAUSE)));
            return vec![];
        }
        life.rest(now, Some(now + delay));
        match delay {
            Duration::ZERO => self.fill(now, seat),
            _ => vec![],
        }
    }

    /// Orders the next child of a seat whose time has come.
    fn fill(&mut self, now: Duration, seat: SeatId) -> Effects {
        let is_active = self.seats.get(seat).role() == Role::Active;
        if !is_active && !self.seats.foremost().state().takes_work() {
            // The next one that serves will want it.
            self.seats.get_mut(seat).rest(now, None);
            return vec![];
        }
        self.successions += u64::from(is_active);
        self.spawn(now, seat)
    }

    fn spawn(&mut self, now: Duration, seat: SeatId) -> Effects {
        let deeds = self.seats.spawn(now, seat);
        self.follow(now, seat, deeds)
    }

    // === a standby ===

    /// The child of a seat has begun to end: the standby serves in its place.
    fn promote_heir(&mut self, now: Duration, of: SeatId) -> Effects {
        let heir = self.seats.heir().filter(|_| !self.is_closed);
        let Some(heir) = heir else {
            return vec![];
        };
        self.successions += 1;
        let mut effects = vec![Effect::Succession { of, heir }];
        let deeds = self.seats.get_mut(heir).promote(now);
        effects.extend(self.follow(now, heir, deeds));
        effects
    }

    /// What a standby has found of the weights is true of the same memory where another child computes with it.
    fn kill_active(&mut self, now: Duration, cause: &DeathCause) -> Effects {
        let active: Vec<_> = self.seats.with_role(Role::Active).collect();
        let kill = |seat| {
            let life = self.seats.get_mut(seat);
            if !life.state().is_trusted() {
                return vec![];
            }
            let deeds = life.kill(now, cause.clone());
            self.follow(now, seat, deeds)
        };
        active.into_iter().flat_map(kill).collect()
    }

    fn want_standby(&mut self, now: Duration) {
        self.standby.try_again();
        if !self.standby.is_wanted() {
            return;
        }
        for life in self.seats.iter_mut() {
            let is_free = matches!(life.state(), State::Vacant { spawn_at: None, .. });
            if is_free && life.role() == Role::Standby {
                life.rest(now, Some(now + standby::PAUSE));
            }
        }
    }

    /// A new child takes the place of the one that serves as soon as it is ready. It is of the binary as
    /// that is now, so a standby there is goes first.
    pub(crate) fn replace(&mut self, now: Duration) -> Effects {
        if self.is_closed || !self.seats.foremost().state().takes_work() {
            return vec![];
        }
        self.standby.order_replacement();
        let standbys: Vec<_> = self.seats.with_role(Role::Standby).collect();
        let renew = |seat| match self.seats.get(seat).state() {
            State::Vacant { .. } => self.fill(now, seat),
            _ => {
                let deeds = self.seats.get_mut(seat).dismiss(now);
                self.follow(now, seat, deeds)
            }
        };
        standbys.into_iter().flat_map(renew).collect()
    }

    fn dismiss_active(&mut self, now: Duration) -> Effects {
        let serves = |seat: &SeatId| self.seats.get(*seat).state().takes_work();
        let active = self.seats.with_role(Role::Active).find(serves);
        let Some(seat) = active else {
            return vec![];
        };
        let deeds = self.seats.get_mut(seat).dismiss(now);
        self.follow(now, seat, deeds)
    }
}
