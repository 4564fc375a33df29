//! The staff of one device: its children, and who follows whom; [`leaving`] is how a device goes out of use, and
//! comes back. Of drains and exits the [worker](crate::worker) knows.

mod leaving;

use crate::death::DeathCause;
use crate::effect::{Deed, DeviceId, Effect, SeatId};
use crate::exit::SupervisorExit;
use crate::generations::Generations;
use crate::ledger::Ledger;
use crate::life::{Achieved, Life};
use crate::restart_policy::WorkerFailure;
use crate::seats::Seats;
use crate::standby::{self, Standby};
use crate::standing::Standing;
use crate::state::State;
use crate::worker::{Before, Settings};
use std::time::Duration;
use worker_orcd_ipc::Role;

#[derive(Debug)]
pub(crate) struct Staff {
    pub(crate) device: DeviceId,
    pub(crate) settings: Settings,
    pub(crate) seats: Seats,
    pub(crate) standby: Standby,
    pub(crate) has_served: bool,
    /// Times that a child was ordered, or promoted, to serve in place of one before.
    pub(crate) successions: u64,
    pub(crate) ledger: Ledger,
    /// Nobody follows any more.
    is_closed: bool,
    pub(crate) standing: Standing,
    /// Why no child can follow, until the worker asks.
    failure: Option<WorkerFailure>,
}

type Effects = Vec<Effect>;

impl Staff {
    pub(crate) fn new(
        now: Duration,
        settings: Settings,
        device: DeviceId,
        before: &Before,
        generations: Generations,
    ) -> Self {
        Self {
            device,
            seats: Seats::new(now, &settings, device, before, generations),
            standby: Standby::new(settings.standby),
            settings,
            has_served: false,
            successions: 0,
            ledger: Ledger::default(),
            is_closed: false,
            standing: Standing::InUse,
            failure: None,
        }
    }

    /// Spawns the child that is to serve.
    pub(crate) fn start(&mut self, now: Duration) -> Effects {
        let first = self.seats.with_role(Role::Active).next();
        match first {
            Some(seat) => self.spawn(now, seat),
            None => vec![],
        }
    }

    /// Lets no further child follow.
    pub(crate) fn close(&mut self) {
        self.is_closed = true;
        self.seats.iter_mut().for_each(Life::stay_empty);
    }

    pub(crate) fn take_failure(&mut self) -> Option<WorkerFailure> {
        self.failure.take()
    }

    /// The child of a seat has made progress, if it is one that can.
    pub(crate) fn progressed(&mut self, seat: SeatId) {
        if self.seats.get(seat).achieved() == Achieved::Progress {
            self.ledger.progressed();
        }
    }

    /// So many of the latest deaths had another cause than the device.
    pub(crate) fn absolve(&mut self, deaths: u32) {
        self.ledger.absolve(deaths);
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
            Deed::DoubtWeights(cause) => self.kill_others(now, seat, cause),
            Deed::Suspend { noticed_in } if is_active => {
                let served = noticed_in.takes_work();
                self.replace_dying(now, seat, served)
            }
            Deed::Suspend {
                noticed_in: State::StandingBy { since, .. },
            } if now >= *since + self.settings.restart.steady => {
                self.standby.progressed();
                vec![]
            }
            Deed::Bury(cause) => {
                self.ledger.count(cause);
                if is_active && *cause != DeathCause::Dismissed {
                    let achieved = self.seats.get(seat).achieved();
                    let policy = &self.settings.restart;
                    self.ledger.record(now, cause, achieved, policy);
                }
                self.succeed(now, seat, cause)
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
        let tally = self.ledger.tally(now, policy.window);
        let verdict = policy.judge(cause, tally, self.has_served);
        let Some(delay) = verdict.delay() else {
            self.failure = verdict.failure();
            return vec![];
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

    /// The child of a seat has begun to end: the standby serves in its place, or else the next child is begun
    /// if there was something to serve.
    fn replace_dying(&mut self, now: Duration, of: SeatId, served: bool) -> Effects {
        if self.is_closed {
            return vec![];
        }
        match self.seats.heir() {
            Some(heir) => self.promote(now, of, heir),
            None if served && self.settings.overlap => self.begin_heir(now, of),
            None => vec![],
        }
    }

    fn promote(&mut self, now: Duration, of: SeatId, heir: SeatId) -> Effects {
        self.successions += 1;
        self.standby.progressed();
        let mut effects = vec![Effect::Succession { of, heir }];
        let deeds = self.seats.get_mut(heir).promote(now);
        effects.extend(self.follow(now, heir, deeds));
        effects
    }

    /// Nobody stands by: the next child need not wait until this one is buried, unless what is known of the
    /// cause by now forbids it. Whether there is to be a next one at all is decided at the burial.
    fn begin_heir(&mut self, now: Duration, of: SeatId) -> Effects {
        let policy = self.settings.restart;
        let (dying, tally) = (self.seats.get(of), self.ledger.tally(now, policy.window));
        let (cause, achieved) = (dying.state().cause_so_far(), dying.achieved());
        let verdict = match cause {
            Some(cause) if cause.is_of_kept_weights() || cause.is_of_memory() => return vec![],
            Some(cause) => {
                let tally = tally.and(Some(&cause), achieved);
                policy.judge(&cause, tally, self.has_served)
            }
            None => policy.judge_unknown(tally.and(None, achieved)),
        };
        let (Some(heir), Some(delay)) = (self.seats.spare(), verdict.delay()) else {
            return vec![];
        };
        let life = self.seats.get_mut(heir);
        life.assign(Role::Active);
        life.rest(now, Some(now + delay));
        let mut effects = vec![Effect::Succession { of, heir }];
        if delay.is_zero() {
            effects.extend(self.fill(now, heir));
        }
        effects
    }

    /// Weights that one child has found changed lie in the same memory where another one computes with them.
    fn kill_others(&mut self, now: Duration, finder: SeatId, cause: &DeathCause) -> Effects {
        let others = self.seats.ids().filter(|seat| *seat != finder);
        others
            .flat_map(|seat| self.kill(now, seat, cause))
            .collect()
    }

    /// Kills the child of a seat, if there is one that does not die already.
    fn kill(&mut self, now: Duration, seat: SeatId, cause: &DeathCause) -> Effects {
        let life = self.seats.get_mut(seat);
        if !life.state().is_trusted() {
            return vec![];
        }
        let deeds = life.kill(now, cause.clone());
        self.follow(now, seat, deeds)
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
