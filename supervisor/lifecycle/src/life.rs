//! State machine of one seat: from an empty seat through one child to an empty seat. [`end`] has the transitions of a
//! child's end. Drains, exit codes and the choice of the next child are the [worker](crate::worker)'s.
//!
//! `tests/golden/life.txt` is the complete transition table.

mod end;

use crate::death::{DeathCause, HandshakeRefusal};
use crate::effect::ChildAction;
use crate::event::ChildEvent;
use crate::state::{LoadProgress, State};
use crate::watchdog::{Deadlines, STARVED_PAUSE, Watch};
use crate::worker::Settings;
use std::time::Duration;
use worker_orcd_ipc::{Generation, Role};

/// Actions on the child of one seat, in order.
pub type ChildActions = Vec<ChildAction>;

/// Latest milestone of a child.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Achieved {
    /// The child never served.
    Nothing,
    /// The child has served.
    Service,
    /// The child has made progress; see [`ChildEvent::Progress`].
    Progress,
}

/// State machine of one seat.
#[derive(Debug)]
pub struct Life {
    deadlines: Deadlines,
    /// Accepted compile-time features of a child.
    accept_features: Vec<String>,
    /// Generation of the current or latest child; 0 before the first.
    generation: Generation,
    role: Role,
    /// Role in `Command::Load`, if it differs from `role`.
    loads_as: Option<Role>,
    achieved: Achieved,
    state: State,
}

impl Life {
    /// Creates an empty seat without a scheduled spawn.
    #[must_use]
    pub fn new(now: Duration, role: Role, settings: &Settings) -> Self {
        Self {
            role,
            deadlines: settings.deadlines,
            accept_features: settings.accept_features.clone(),
            generation: Generation(0),
            loads_as: None,
            achieved: Achieved::Nothing,
            state: State::Vacant {
                since: now,
                spawn_at: None,
            },
        }
    }

    #[must_use]
    pub fn state(&self) -> &State {
        &self.state
    }

    #[must_use]
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// Role of the current child, else of the next one.
    #[must_use]
    pub fn role(&self) -> Role {
        self.role
    }

    /// Milestone of the current or latest child.
    #[must_use]
    pub fn achieved(&self) -> Achieved {
        self.achieved
    }

    /// Time at which [`Life::tick`] must be called. `None`: nothing is scheduled.
    #[must_use]
    pub fn deadline(&self) -> Option<Duration> {
        self.state.deadline(&self.deadlines)
    }

    /// Extends the heartbeat and load deadlines by a pause of the supervisor itself: no message could be received in it.
    pub(crate) fn extend_deadlines(&mut self, pause: Duration) {
        if let Some(watch) = self.state.watch_mut() {
            watch.heartbeat_at += pause;
        }
        if let State::Loading { progress, .. } = &mut self.state {
            progress.advanced_at += pause;
        }
    }

    // === orders of the worker ===

    /// Starts a child. `loads_as`: role in `Command::Load`, if it differs from the seat's role.
    pub fn spawn(
        &mut self,
        now: Duration,
        generation: Generation,
        loads_as: Option<Role>,
    ) -> ChildActions {
        (self.generation, self.loads_as) = (generation, loads_as);
        self.achieved = Achieved::Nothing;
        self.state = State::Spawning {
            since: now,
            deadline: now + self.deadlines.spawn,
        };
        vec![ChildAction::Spawn]
    }

    /// Sets the role of the next child.
    pub fn assign(&mut self, role: Role) {
        self.role = role;
    }

    /// Promotes the standby: immediately if it stands by, otherwise once it is ready.
    pub fn promote(&mut self, now: Duration) -> ChildActions {
        self.role = Role::Active;
        let State::StandingBy { pid, watch, .. } = self.state else {
            return vec![];
        };
        let since = now;
        self.state = State::Serving { since, pid, watch };
        self.achieved = Achieved::Service;
        vec![ChildAction::Promote, ChildAction::Serve]
    }

    /// Empties the seat and schedules the next spawn. `None`: none is scheduled.
    pub fn rest(&mut self, now: Duration, spawn_at: Option<Duration>) {
        self.state = State::Vacant {
            since: now,
            spawn_at,
        };
    }

    /// Cancels a scheduled spawn.
    pub fn stay_empty(&mut self) {
        if let State::Vacant { spawn_at, .. } = &mut self.state {
            *spawn_at = None;
        }
    }

    // === passage of time ===

    /// Acts on deadlines that have passed at `now`.
    pub fn tick(&mut self, now: Duration) -> ChildActions {
        let deadlines = self.deadlines;
        match &self.state {
            State::Spawning { since, deadline } if now >= *deadline => {
                let message = format!("no process after {} ms", (now - *since).as_millis());
                let permanent = false;
                self.reap(now, DeathCause::SpawnFailed { message, permanent })
            }
            State::Handshaking { deadline, .. } if now >= *deadline => {
                let after = deadlines.handshake;
                self.kill(now, DeathCause::HandshakeDeadline { after })
            }
            State::Killing { deadline, .. } if now >= *deadline => self.escalate(now),
            State::Reaping { deadline, .. } if now >= *deadline => self.reap_deadline_passed(now),
            state => {
                let overdue = state.overdue(now, &deadlines);
                overdue.map_or(vec![], |cause| self.kill(now, cause))
            }
        }
    }

    // === events of the child ===

    /// Applies an event of the seat's current child. `None`: the event is stale, because the seat has no child that
    /// could have caused it.
    pub fn handle(&mut self, now: Duration, event: ChildEvent) -> Option<ChildActions> {
        Some(match event {
            ChildEvent::Spawned { pid } => return self.spawned(now, pid),
            ChildEvent::SpawnFailed { message, permanent } => {
                let cause = DeathCause::SpawnFailed { message, permanent };
                return self.state.is_spawning().then(|| self.reap(now, cause));
            }
            ChildEvent::SpawnStarved => return self.starved(now),
            ChildEvent::Exited(exit) => return self.exited(now, exit),
            ChildEvent::Progress => self.progress(),
            ChildEvent::LinkClosed => self.link_closed(now),
            ChildEvent::Fault(fault) => self.fault(now, DeathCause::Reported(fault)),
            // Later messages of an ending child, valid or not, change nothing: its end is already decided.
            _ if !self.state.is_trusted() => vec![],
            ChildEvent::Hello { pid, features } => self.hello(now, pid, &features),
            ChildEvent::HandshakeRefused(refusal) => {
                self.kill(now, DeathCause::HandshakeRefused(refusal))
            }
            ChildEvent::LoadProgress {
                bytes_done,
                bytes_total,
            } => self.load_progress(now, bytes_done, bytes_total),
            ChildEvent::Ready => self.ready(now),
            ChildEvent::Unservable(message) => self.kill(now, DeathCause::Unservable(message)),
            ChildEvent::ModelChanged => self.kill(now, DeathCause::ModelChanged),
            ChildEvent::Heartbeat { step_elapsed } => self.heartbeat(now, step_elapsed),
            // The child was not asked to shut down. Its exit status gives the cause.
            ChildEvent::Goodbye => self.dying(now, None, None, false),
            ChildEvent::Violation(reason) => self.kill(now, DeathCause::ProtocolViolation(reason)),
            ChildEvent::LinkStalled => self.kill(now, DeathCause::LinkStalled),
        })
    }

    /// Schedules another spawn without counting a death, until a descriptor is free.
    fn starved(&mut self, now: Duration) -> Option<ChildActions> {
        self.state.is_spawning().then(|| {
            self.rest(now, Some(now + STARVED_PAUSE));
            vec![]
        })
    }

    fn spawned(&mut self, now: Duration, pid: u32) -> Option<ChildActions> {
        // After the spawn deadline the process is stale.
        self.state.is_spawning().then(|| {
            self.state = State::Handshaking {
                since: now,
                pid,
                deadline: now + self.deadlines.handshake,
            };
            vec![]
        })
    }

    fn hello(&mut self, now: Duration, reported: u32, features: &[String]) -> ChildActions {
        let State::Handshaking { pid, .. } = self.state else {
            return self.unexpected_message(now, "Hello");
        };
        let refusal = HandshakeRefusal::of_hello(pid, reported, features, &self.accept_features);
        if let Some(refusal) = refusal {
            return self.kill(now, DeathCause::HandshakeRefused(refusal));
        }
        let role = self.loads_as.unwrap_or(self.role);
        self.state = State::Loading {
            since: now,
            pid,
            watch: Watch::starting(now),
            progress: LoadProgress::starting(now),
            role,
        };
        vec![ChildAction::Load(role)]
    }

    fn load_progress(&mut self, now: Duration, bytes_done: u64, bytes_total: u64) -> ChildActions {
        let State::Loading { progress, .. } = &mut self.state else {
            return self.unexpected_message(now, "LoadProgress");
        };
        progress.advance(now, bytes_done, bytes_total);
        vec![]
    }

    fn ready(&mut self, now: Duration) -> ChildActions {
        let State::Loading {
            pid, watch, role, ..
        } = self.state
        else {
            return self.unexpected_message(now, "Ready");
        };
        let since = now;
        self.state = match role {
            Role::Active => State::Serving { since, pid, watch },
            Role::Standby => State::StandingBy { since, pid, watch },
        };
        match (role, self.role) {
            (Role::Active, _) => {
                self.achieved = Achieved::Service;
                vec![ChildAction::Serve]
            }
            (Role::Standby, Role::Standby) => vec![ChildAction::StandBy],
            (Role::Standby, Role::Active) => self.promote(now),
        }
    }

    fn heartbeat(&mut self, now: Duration, step_elapsed: Option<Duration>) -> ChildActions {
        let deadlines = self.deadlines;
        let Some(watch) = self.state.watch_mut() else {
            return self.unexpected_message(now, "Heartbeat");
        };
        *watch = Watch {
            heartbeat_at: now,
            step_elapsed,
        };
        let overdue = watch.overdue(now, &deadlines);
        overdue.map_or(vec![], |cause| self.kill(now, cause))
    }

    fn progress(&mut self) -> ChildActions {
        if self.state.accepts_tokens() && self.achieved == Achieved::Service {
            self.achieved = Achieved::Progress;
        }
        vec![]
    }

    fn unexpected_message(&mut self, now: Duration, message: &str) -> ChildActions {
        let violation = format!("{message} while {}", self.state.name());
        self.kill(now, DeathCause::ProtocolViolation(violation))
    }
}
