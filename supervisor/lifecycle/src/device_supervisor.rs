//! Supervisor of one device: restart, failover and standby of its children. [`out_of_service`] takes the device out of
//! use and back. Drains and exit codes are the [worker](crate::worker)'s.

mod out_of_service;

use crate::death::DeathCause;
use crate::device_status::DeviceStatus;
use crate::effect::{ChildAction, DeviceId, Effect, SeatId};
use crate::exit::SupervisorExit;
use crate::generations::Generations;
use crate::ledger::Ledger;
use crate::life::{Achieved, Life};
use crate::restart_policy::WorkerFailure;
use crate::seats::Seats;
use crate::standby::{self, Standby};
use crate::state::State;
use crate::worker::{PreviousChild, Settings};
use std::time::Duration;
use worker_orcd_ipc::Role;

/// Supervisor of one device.
#[derive(Debug)]
pub(crate) struct DeviceSupervisor {
    pub(crate) device: DeviceId,
    pub(crate) settings: Settings,
    pub(crate) seats: Seats,
    pub(crate) standby: Standby,
    pub(crate) has_served: bool,
    /// Number of children that were spawned or promoted to replace an earlier one.
    pub(crate) failovers: u64,
    pub(crate) ledger: Ledger,
    /// No further child is spawned.
    is_closed: bool,
    pub(crate) status: DeviceStatus,
    /// Failure that the worker has not taken yet.
    failure: Option<WorkerFailure>,
}

type Effects = Vec<Effect>;

impl DeviceSupervisor {
    pub(crate) fn new(
        now: Duration,
        settings: Settings,
        device: DeviceId,
        before: &PreviousChild,
        generations: Generations,
    ) -> Self {
        Self {
            device,
            seats: Seats::new(now, &settings, device, before, generations),
            standby: Standby::new(settings.standby),
            settings,
            has_served: false,
            failovers: 0,
            ledger: Ledger::default(),
            is_closed: false,
            status: DeviceStatus::InUse,
            failure: None,
        }
    }

    /// Spawns the first child.
    pub(crate) fn start(&mut self, now: Duration) -> Effects {
        let first = self.seats.with_role(Role::Active).next();
        match first {
            Some(seat) => self.spawn(now, seat),
            None => vec![],
        }
    }

    /// Cancels scheduled spawns and prevents new ones.
    pub(crate) fn close(&mut self) {
        self.is_closed = true;
        self.seats.iter_mut().for_each(Life::stay_empty);
    }

    pub(crate) fn take_failure(&mut self) -> Option<WorkerFailure> {
        self.failure.take()
    }

    /// Records progress of the child of a seat, if it has served.
    pub(crate) fn progressed(&mut self, seat: SeatId) {
        if self.seats.get(seat).achieved() == Achieved::Progress {
            self.ledger.progressed();
        }
    }

    /// Removes deaths that the device did not cause from its count.
    pub(crate) fn discount_deaths(&mut self, deaths: u32) {
        self.ledger.discount_deaths(deaths);
    }

    pub(crate) fn tick(&mut self, now: Duration, seat: SeatId) -> Effects {
        match self.seats.get(seat).state() {
            State::Vacant {
                spawn_at: Some(at), ..
            } if now >= *at => self.spawn_due(now, seat),
            _ => {
                let actions = self.seats.get_mut(seat).tick(now);
                self.follow(now, seat, actions)
            }
        }
    }

    /// Turns actions on a child into effects, and adds the reactions of the other children of the device.
    pub(crate) fn follow(
        &mut self,
        now: Duration,
        seat: SeatId,
        actions: Vec<ChildAction>,
    ) -> Effects {
        let generation = self.seats.get(seat).generation();
        let mut effects = vec![];
        for action in actions {
            let reactions = self.react(now, seat, &action);
            effects.push(Effect::Child {
                seat,
                generation,
                action,
            });
            effects.extend(reactions);
        }
        effects
    }

    fn react(&mut self, now: Duration, seat: SeatId, action: &ChildAction) -> Effects {
        let is_active = self.seats.get(seat).role() == Role::Active;
        match action {
            ChildAction::Serve => {
                self.has_served = true;
                self.ledger.served();
                self.schedule_standby(now);
                vec![]
            }
            ChildAction::StandBy if self.standby.stands_by() => self.dismiss_active(now),
            ChildAction::InvalidateWeights(cause) => self.kill_others(now, seat, cause),
            ChildAction::Suspend { previous_state } if is_active => {
                let served = previous_state.takes_work();
                self.replace_dying(now, seat, served)
            }
            ChildAction::Suspend {
                previous_state: State::StandingBy { since, .. },
            } if now >= *since + self.settings.restart.steady => {
                self.standby.progressed();
                vec![]
            }
            ChildAction::Reap(cause) => {
                self.ledger.count(cause);
                if is_active && *cause != DeathCause::Dismissed {
                    let achieved = self.seats.get(seat).achieved();
                    let policy = &self.settings.restart;
                    self.ledger.record(now, cause, achieved, policy);
                }
                self.plan_next(now, seat, cause)
            }
            _ => vec![],
        }
    }

    /// Schedules the next child of a seat after a reaping, or records a failure.
    fn plan_next(&mut self, now: Duration, seat: SeatId, cause: &DeathCause) -> Effects {
        let life = self.seats.get_mut(seat);
        match (life.state(), life.role()) {
            (State::Unreapable { pid, .. }, _) => {
                let reason = format!(
                    "process {pid} survived SIGKILL for {} s and is stuck in the kernel: reboot the node",
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
        let has_successor = self.seats.have_active_child();
        let life = self.seats.get_mut(seat);
        if has_successor {
            // The other seat's child is active now, so this seat becomes the standby's.
            life.assign(Role::Standby);
            let next = self.standby.is_wanted();
            life.rest(now, next.then(|| now + delay.max(standby::PAUSE)));
            return vec![];
        }
        life.rest(now, Some(now + delay));
        match delay {
            Duration::ZERO => self.spawn_due(now, seat),
            _ => vec![],
        }
    }

    /// Spawns the scheduled child of a seat. A standby is spawned only beside a serving child.
    fn spawn_due(&mut self, now: Duration, seat: SeatId) -> Effects {
        let is_active = self.seats.get(seat).role() == Role::Active;
        if !is_active && !self.seats.foremost().state().takes_work() {
            // The next serving child schedules the standby again.
            self.seats.get_mut(seat).rest(now, None);
            return vec![];
        }
        self.failovers += u64::from(is_active);
        self.spawn(now, seat)
    }

    fn spawn(&mut self, now: Duration, seat: SeatId) -> Effects {
        let actions = self.seats.spawn(now, seat);
        self.follow(now, seat, actions)
    }

    // === standby and failover ===

    /// Replaces an ending child: by promotion of the standby, else, if the child served, by an early start of the next
    /// one.
    fn replace_dying(&mut self, now: Duration, dying: SeatId, served: bool) -> Effects {
        if self.is_closed {
            return vec![];
        }
        match self.seats.successor() {
            Some(successor) => self.promote(now, dying, successor),
            None if served && self.settings.overlap => self.start_successor(now, dying),
            None => vec![],
        }
    }

    fn promote(&mut self, now: Duration, predecessor: SeatId, successor: SeatId) -> Effects {
        self.failovers += 1;
        self.standby.progressed();
        let mut effects = vec![Effect::Failover {
            predecessor,
            successor,
        }];
        let actions = self.seats.get_mut(successor).promote(now);
        effects.extend(self.follow(now, successor, actions));
        effects
    }

    /// Starts the next child before the dying one is reaped, if the cause as known so far allows it. Without a standby
    /// this shortens the interruption. The reaping decides whether the device fails.
    fn start_successor(&mut self, now: Duration, predecessor: SeatId) -> Effects {
        let policy = self.settings.restart;
        let dying = self.seats.get(predecessor);
        let tally = self.ledger.tally(now, policy.window);
        let (cause, achieved) = (dying.state().cause_so_far(), dying.achieved());
        let verdict = match cause {
            Some(cause) if cause.is_weights_fault() || cause.is_memory_shortage() => return vec![],
            Some(cause) => {
                let tally = tally.and(Some(&cause), achieved);
                policy.judge(&cause, tally, self.has_served)
            }
            None => policy.judge_unknown(tally.and(None, achieved)),
        };
        let (Some(successor), Some(delay)) = (self.seats.spare(), verdict.delay()) else {
            return vec![];
        };
        let life = self.seats.get_mut(successor);
        life.assign(Role::Active);
        life.rest(now, Some(now + delay));
        let mut effects = vec![Effect::Failover {
            predecessor,
            successor,
        }];
        if delay.is_zero() {
            effects.extend(self.spawn_due(now, successor));
        }
        effects
    }

    /// Kills the other children of the device: they map the same weights, which one child has found changed.
    fn kill_others(&mut self, now: Duration, reporter: SeatId, cause: &DeathCause) -> Effects {
        let others = self.seats.ids().filter(|seat| *seat != reporter);
        others
            .flat_map(|seat| self.kill(now, seat, cause))
            .collect()
    }

    /// Kills the child of a seat, unless it is already ending.
    fn kill(&mut self, now: Duration, seat: SeatId, cause: &DeathCause) -> Effects {
        let life = self.seats.get_mut(seat);
        if !life.state().is_trusted() {
            return vec![];
        }
        let actions = life.kill(now, cause.clone());
        self.follow(now, seat, actions)
    }

    /// Schedules a standby for each empty standby seat, if one is wanted.
    fn schedule_standby(&mut self, now: Duration) {
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

    /// Replaces the serving child by a new one, once that is ready. A standby, which may run an older binary, is replaced
    /// first.
    pub(crate) fn replace(&mut self, now: Duration) -> Effects {
        if self.is_closed || !self.seats.foremost().state().takes_work() {
            return vec![];
        }
        self.standby.order_replacement();
        let standbys: Vec<_> = self.seats.with_role(Role::Standby).collect();
        let renew = |seat| match self.seats.get(seat).state() {
            State::Vacant { .. } => self.spawn_due(now, seat),
            _ => {
                let actions = self.seats.get_mut(seat).dismiss(now);
                self.follow(now, seat, actions)
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
        let actions = self.seats.get_mut(seat).dismiss(now);
        self.follow(now, seat, actions)
    }
}
