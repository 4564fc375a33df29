//! The life of one child, from an empty seat to an empty seat; [`end`] is how it ends. Of drains, exits and the
//! next child the [worker](crate::worker) knows.
//!
//! `tests/golden/life.txt` is the whole table.

mod end;

use crate::death::{DeathCause, HandshakeRefusal};
use crate::effect::Deed;
use crate::event::ChildEvent;
use crate::state::{LoadProgress, State};
use crate::watchdog::{Deadlines, STARVED_PAUSE, Watch};
use crate::worker::Settings;
use std::time::Duration;
use worker_orcd_ipc::{Generation, Role};

pub type Deeds = Vec<Deed>;

/// How far a child has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Achieved {
    Nothing,
    Service,
    /// See [`ChildEvent::Progress`].
    Progress,
}

#[derive(Debug)]
pub struct Life {
    deadlines: Deadlines,
    /// Compile-time features of a child that are acceptable.
    accept_features: Vec<String>,
    /// Generation of the child that is or was here last; 0 before the first.
    generation: Generation,
    role: Role,
    /// How its child loads, if not as what it is to be.
    loads_as: Option<Role>,
    achieved: Achieved,
    state: State,
}

impl Life {
    /// An empty seat.
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

    /// The role of the child that is or was here last, or of the one that the seat waits for.
    #[must_use]
    pub fn role(&self) -> Role {
        self.role
    }

    /// How far the child that is or was here last has come.
    #[must_use]
    pub fn achieved(&self) -> Achieved {
        self.achieved
    }

    /// The moment at which [`Life::tick`] has something to do.
    #[must_use]
    pub fn deadline(&self) -> Option<Duration> {
        self.state.deadline(&self.deadlines)
    }

    /// The supervisor did not run for so long: silence in that time proves nothing.
    pub(crate) fn forgive(&mut self, absent: Duration) {
        if let Some(watch) = self.state.watch_mut() {
            watch.heartbeat_at += absent;
        }
        if let State::Loading { progress, .. } = &mut self.state {
            progress.advanced_at += absent;
        }
    }

    // === what the worker wants ===

    pub fn spawn(
        &mut self,
        now: Duration,
        generation: Generation,
        loads_as: Option<Role>,
    ) -> Deeds {
        (self.generation, self.loads_as) = (generation, loads_as);
        self.achieved = Achieved::Nothing;
        self.state = State::Spawning {
            since: now,
            deadline: now + self.deadlines.spawn,
        };
        vec![Deed::Spawn]
    }

    /// The role of the next child.
    pub fn assign(&mut self, role: Role) {
        self.role = role;
    }

    /// Makes a standby serve, as soon as it can.
    pub fn promote(&mut self, now: Duration) -> Deeds {
        self.role = Role::Active;
        let State::StandingBy { pid, watch, .. } = self.state else {
            return vec![];
        };
        let since = now;
        self.state = State::Serving { since, pid, watch };
        self.achieved = Achieved::Service;
        vec![Deed::Promote, Deed::Serve]
    }

    /// The seat is empty, and stays so until then.
    pub fn rest(&mut self, now: Duration, spawn_at: Option<Duration>) {
        self.state = State::Vacant {
            since: now,
            spawn_at,
        };
    }

    /// Lets no further child follow here.
    pub fn stay_empty(&mut self) {
        if let State::Vacant { spawn_at, .. } = &mut self.state {
            *spawn_at = None;
        }
    }

    // === time passes ===

    pub fn tick(&mut self, now: Duration) -> Deeds {
        let deadlines = self.deadlines;
        match &self.state {
            State::Spawning { since, deadline } if now >= *deadline => {
                let message = format!("no process after {} ms", (now - *since).as_millis());
                let permanent = false;
                self.bury(now, DeathCause::SpawnFailed { message, permanent })
            }
            State::Handshaking { deadline, .. } if now >= *deadline => {
                let after = deadlines.handshake;
                self.kill(now, DeathCause::HandshakeDeadline { after })
            }
            State::Killing { deadline, .. } if now >= *deadline => self.escalate(now),
            State::Reaping { deadline, .. } if now >= *deadline => self.reap_late(now),
            state => {
                let overdue = state.overdue(now, &deadlines);
                overdue.map_or(vec![], |cause| self.kill(now, cause))
            }
        }
    }

    // === what is seen and heard of it ===

    /// `None`: it comes from a child that is gone, or from nowhere.
    pub fn tell(&mut self, now: Duration, event: ChildEvent) -> Option<Deeds> {
        Some(match event {
            ChildEvent::Spawned { pid } => return self.spawned(now, pid),
            ChildEvent::SpawnFailed { message, permanent } => {
                let cause = DeathCause::SpawnFailed { message, permanent };
                return self.state.is_spawning().then(|| self.bury(now, cause));
            }
            ChildEvent::SpawnStarved => return self.starved(now),
            ChildEvent::Exited(exit) => return self.exited(now, exit),
            ChildEvent::Progress => self.progress(),
            ChildEvent::LinkClosed => self.link_closed(now),
            ChildEvent::Fault(fault) => self.last_words(now, DeathCause::Said(fault)),
            // A child that is on its way out may still say things, or say them badly; its end
            // is decided already.
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
            // Nobody asked it to go: its exit will say what this was.
            ChildEvent::Goodbye => self.dying(now, None, None, false),
            ChildEvent::Violation(reason) => self.kill(now, DeathCause::ProtocolViolation(reason)),
            ChildEvent::LinkStalled => self.kill(now, DeathCause::LinkStalled),
        })
    }

    /// Nobody died: it is tried again, however often, until there is a descriptor.
    fn starved(&mut self, now: Duration) -> Option<Deeds> {
        self.state.is_spawning().then(|| {
            self.rest(now, Some(now + STARVED_PAUSE));
            vec![]
        })
    }

    fn spawned(&mut self, now: Duration, pid: u32) -> Option<Deeds> {
        // The spawn deadline may have given it up.
        self.state.is_spawning().then(|| {
            self.state = State::Handshaking {
                since: now,
                pid,
                deadline: now + self.deadlines.handshake,
            };
            vec![]
        })
    }

    fn hello(&mut self, now: Duration, said: u32, features: &[String]) -> Deeds {
        let State::Handshaking { pid, .. } = self.state else {
            return self.out_of_place(now, "Hello");
        };
        let refusal = HandshakeRefusal::of_hello(pid, said, features, &self.accept_features);
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
        vec![Deed::Load(role)]
    }

    fn load_progress(&mut self, now: Duration, bytes_done: u64, bytes_total: u64) -> Deeds {
        let State::Loading { progress, .. } = &mut self.state else {
            return self.out_of_place(now, "LoadProgress");
        };
        progress.advance(now, bytes_done, bytes_total);
        vec![]
    }

    fn ready(&mut self, now: Duration) -> Deeds {
        let State::Loading {
            pid, watch, role, ..
        } = self.state
        else {
            return self.out_of_place(now, "Ready");
        };
        let since = now;
        self.state = match role {
            Role::Active => State::Serving { since, pid, watch },
            Role::Standby => State::StandingBy { since, pid, watch },
        };
        match (role, self.role) {
            (Role::Active, _) => {
                self.achieved = Achieved::Service;
                vec![Deed::Serve]
            }
            (Role::Standby, Role::Standby) => vec![Deed::StandBy],
            (Role::Standby, Role::Active) => self.promote(now),
        }
    }

    fn heartbeat(&mut self, now: Duration, step_elapsed: Option<Duration>) -> Deeds {
        let deadlines = self.deadlines;
        let Some(watch) = self.state.watch_mut() else {
            return self.out_of_place(now, "Heartbeat");
        };
        *watch = Watch {
            heartbeat_at: now,
            step_elapsed,
        };
        let overdue = watch.overdue(now, &deadlines);
        overdue.map_or(vec![], |cause| self.kill(now, cause))
    }

    fn progress(&mut self) -> Deeds {
        if self.state.believes_tokens() && self.achieved == Achieved::Service {
            self.achieved = Achieved::Progress;
        }
        vec![]
    }

    fn out_of_place(&mut self, now: Duration, word: &str) -> Deeds {
        let violation = format!("{word} while {}", self.state.name());
        self.kill(now, DeathCause::ProtocolViolation(violation))
    }
}
