//! The life of one child, from an empty seat to an empty seat. Of drains, exits and the next child
//! the [worker](crate::worker) knows.
//!
//! `tests/golden/life.txt` is the whole table.

use crate::death::{DeathCause, Exit, HandshakeRefusal};
use crate::effect::{Deed, Signal};
use crate::event::ChildEvent;
use crate::state::{KillStage, LoadProgress, State};
use crate::watchdog::{Deadlines, STARVED_PAUSE, Watch};
use crate::worker::Settings;
use std::time::Duration;
use worker_orcd_ipc::{Generation, Role};

pub type Deeds = Vec<Deed>;

#[derive(Debug)]
pub struct Life {
    deadlines: Deadlines,
    /// Compile-time features of a child that are acceptable.
    accept_features: Vec<String>,
    /// Generation of the child that is or was here last; 0 before the first.
    generation: Generation,
    role: Role,
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

    pub fn spawn(&mut self, now: Duration, generation: Generation) -> Deeds {
        self.generation = generation;
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

    /// Asks a child that is not needed any more to go, and makes it if it does not.
    pub fn dismiss(&mut self, now: Duration) -> Deeds {
        let (stage, patience) = match &self.state {
            // Without a hello there may be nobody to read a command.
            State::Handshaking { .. } => (KillStage::Terminated, self.deadlines.terminate),
            state if state.is_watched() => (KillStage::Asked, self.deadlines.dismiss),
            // It is spawned before it can go, or goes already.
            _ => return vec![],
        };
        let killing = State::Killing {
            since: now,
            pid: self.state.pid().unwrap_or_default(),
            cause: DeathCause::Dismissed,
            stage,
            deadline: now + patience,
        };
        let suspend = self.end_in(killing);
        match stage {
            KillStage::Asked => vec![suspend, Deed::Dismiss, Deed::Release],
            KillStage::Terminated | KillStage::Killed => vec![Deed::Kill(Signal::Term)],
        }
    }

    /// Kills at once and without asking: a child that hangs or lies has nothing to say, and every
    /// millisecond of its life is one of its clients' pause.
    pub fn kill(&mut self, now: Duration, cause: DeathCause) -> Deeds {
        let Some(pid) = self.state.pid() else {
            return vec![];
        };
        let suspend = self.end_in(State::Killing {
            since: now,
            pid,
            cause,
            stage: KillStage::Killed,
            deadline: now + self.deadlines.kill,
        });
        vec![suspend, Deed::Kill(Signal::Kill), Deed::Release]
    }

    /// Ends a child that nobody waits for any more.
    pub fn end_at_once(&mut self, now: Duration) -> Deeds {
        match &self.state {
            State::Killing {
                stage: KillStage::Killed,
                ..
            } => vec![],
            State::Killing { cause, .. } => {
                let cause = cause.clone();
                self.kill(now, cause)
            }
            _ => self.kill(now, DeathCause::Dismissed),
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

    fn escalate(&mut self, now: Duration) -> Deeds {
        let deadlines = self.deadlines;
        let State::Killing {
            stage,
            deadline,
            pid,
            cause,
            ..
        } = &mut self.state
        else {
            return vec![];
        };
        let (next, patience, signal) = match stage {
            KillStage::Asked => (KillStage::Terminated, deadlines.terminate, Signal::Term),
            KillStage::Terminated => (KillStage::Killed, deadlines.kill, Signal::Kill),
            KillStage::Killed => {
                let (pid, cause) = (*pid, cause.clone());
                self.state = State::Unreapable { since: now, pid };
                return vec![Deed::Bury(cause)];
            }
        };
        (*stage, *deadline) = (next, now + patience);
        vec![Deed::Kill(signal)]
    }

    /// One of the two signs of its death did not come.
    fn reap_late(&mut self, now: Duration) -> Deeds {
        let State::Reaping { said, exit, .. } = &self.state else {
            return vec![];
        };
        let said = said.clone();
        match *exit {
            // Somebody else holds the dead child's socket; its words are not worth waiting.
            Some(exit) => self.bury(now, said.unwrap_or_else(|| DeathCause::of_exit(exit))),
            None => self.kill(now, said.unwrap_or(DeathCause::SocketClosed)),
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
        self.state = State::Loading {
            since: now,
            pid,
            watch: Watch::starting(now),
            progress: LoadProgress::starting(now),
            role: self.role,
        };
        vec![Deed::Load(self.role)]
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
            (Role::Active, _) => vec![Deed::Serve],
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

    fn out_of_place(&mut self, now: Duration, word: &str) -> Deeds {
        let violation = format!("{word} while {}", self.state.name());
        self.kill(now, DeathCause::ProtocolViolation(violation))
    }

    // === it dies by itself ===

    /// The exit may be seen before the words that the socket still holds.
    fn last_words(&mut self, now: Duration, words: DeathCause) -> Deeds {
        if let State::Reaping { said, .. } = &mut self.state {
            said.get_or_insert(words);
            return vec![];
        }
        match self.state.is_trusted() {
            true => self.dying(now, Some(words), None, false),
            false => vec![],
        }
    }

    fn exited(&mut self, now: Duration, exit: Exit) -> Option<Deeds> {
        let reap = self.deadlines.reap;
        Some(match &mut self.state {
            State::Reaping {
                said,
                link_closed: true,
                ..
            } => {
                let cause = said.take().unwrap_or_else(|| DeathCause::of_exit(exit));
                self.bury(now, cause)
            }
            State::Reaping {
                exit: known,
                deadline,
                ..
            } => {
                *known = Some(exit);
                *deadline = now + reap;
                vec![]
            }
            State::Killing { cause, .. } => {
                let cause = cause.clone();
                self.bury(now, cause)
            }
            state if state.is_trusted() => self.dying(now, None, Some(exit), false),
            _ => return None,
        })
    }

    fn link_closed(&mut self, now: Duration) -> Deeds {
        match &mut self.state {
            State::Reaping {
                said,
                exit: Some(exit),
                ..
            } => {
                let exit = *exit;
                let cause = said.take();
                self.bury(now, cause.unwrap_or_else(|| DeathCause::of_exit(exit)))
            }
            State::Reaping { link_closed, .. } => {
                *link_closed = true;
                vec![Deed::Release]
            }
            state if state.is_trusted() => self.dying(now, None, None, true),
            // Its end is decided, or there is none.
            _ => vec![],
        }
    }

    fn dying(
        &mut self,
        now: Duration,
        said: Option<DeathCause>,
        exit: Option<Exit>,
        link_closed: bool,
    ) -> Deeds {
        let Some(pid) = self.state.pid() else {
            return vec![];
        };
        let release = (link_closed || said.is_some()).then_some(Deed::Release);
        let suspend = self.end_in(State::Reaping {
            since: now,
            pid,
            said,
            exit,
            link_closed,
            deadline: now + self.deadlines.reap,
        });
        [Some(suspend), release].into_iter().flatten().collect()
    }

    /// Begins the child's end, or goes on with it in another way.
    fn end_in(&mut self, state: State) -> Deed {
        let noticed_in = std::mem::replace(&mut self.state, state);
        Deed::Suspend { noticed_in }
    }

    fn bury(&mut self, now: Duration, cause: DeathCause) -> Deeds {
        self.rest(now, None);
        vec![Deed::Bury(cause)]
    }
}
