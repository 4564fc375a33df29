//! The child speaks, or is seen to do something.

use super::{Effects, Machine};
use crate::death::{DeathCause, HandshakeRefusal};
use crate::effect::Effect;
use crate::event::ChildEvent;
use crate::state::{LoadProgress, State};
use crate::watchdog::Watch;
use std::time::Duration;

impl Machine {
    pub(super) fn child(&mut self, now: Duration, event: ChildEvent) -> Effects {
        match event {
            ChildEvent::Spawned { pid } => self.spawned(now, pid),
            ChildEvent::SpawnFailed { message, permanent } => {
                self.never_spawned(now, message, permanent)
            }
            ChildEvent::SpawnStarved => self.starved(now),
            ChildEvent::Exited(exit) => self.exited(now, exit),
            ChildEvent::LinkClosed => self.link_closed(now),
            ChildEvent::Fault(fault) => self.last_words(now, DeathCause::Said(fault)),
            // A child that is on its way out may still say things, or say them badly; its end
            // is decided already.
            _ if !self.child_is_trusted() => vec![],
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
        }
    }

    /// It exists and nothing is known against it.
    pub(super) fn child_is_trusted(&self) -> bool {
        matches!(
            self.state,
            State::Handshaking { .. }
                | State::Loading { .. }
                | State::Serving { .. }
                | State::Draining { .. }
        )
    }

    pub(super) fn spawned(&mut self, now: Duration, pid: u32) -> Effects {
        match (&self.state, self.ending) {
            (State::Spawning { .. }, None) => {
                let deadline = now + self.settings.deadlines.handshake;
                self.state = State::Handshaking {
                    since: now,
                    pid,
                    deadline,
                };
                match self.condemned.clone() {
                    Some(condemnation) => self.kill(now, DeathCause::Condemned(condemnation)),
                    None => vec![],
                }
            }
            (State::Spawning { .. }, Some(_)) => self.terminate(now, pid, DeathCause::Dismissed),
            // The spawn deadline had given it up.
            _ => self.stale(self.generation, &ChildEvent::Spawned { pid }),
        }
    }

    pub(super) fn hello(&mut self, now: Duration, said: u32, features: &[String]) -> Effects {
        let State::Handshaking { pid, .. } = self.state else {
            return self.kill(now, out_of_place("Hello", &self.state));
        };
        let refusal = if said != pid {
            Some(HandshakeRefusal::Pid { said, spawned: pid })
        } else {
            self.unacceptable(features).map(HandshakeRefusal::Features)
        };
        if let Some(refusal) = refusal {
            return self.kill(now, DeathCause::HandshakeRefused(refusal));
        }
        self.state = State::Loading {
            since: now,
            pid,
            watch: Watch::starting(now),
            progress: LoadProgress::starting(now),
        };
        vec![Effect::Load {
            generation: self.generation,
        }]
    }

    pub(super) fn unacceptable(&self, features: &[String]) -> Option<Vec<String>> {
        let accepted = &self.settings.accept_features;
        let unknown: Vec<_> = features
            .iter()
            .filter(|feature| !accepted.contains(feature))
            .cloned()
            .collect();
        (!unknown.is_empty()).then_some(unknown)
    }

    pub(super) fn load_progress(
        &mut self,
        now: Duration,
        bytes_done: u64,
        bytes_total: u64,
    ) -> Effects {
        match &mut self.state {
            State::Loading { progress, .. } => {
                progress.advance(now, bytes_done, bytes_total);
                vec![]
            }
            state => {
                let cause = out_of_place("LoadProgress", state);
                self.kill(now, cause)
            }
        }
    }

    pub(super) fn ready(&mut self, now: Duration) -> Effects {
        let State::Loading { pid, watch, .. } = self.state else {
            return self.kill(now, out_of_place("Ready", &self.state));
        };
        self.has_served = true;
        self.ledger.served();
        self.state = match self.drain_until {
            None => State::Serving {
                since: now,
                pid,
                watch,
            },
            Some(_) => State::Draining {
                since: now,
                pid,
                watch,
            },
        };
        vec![Effect::Serve {
            generation: self.generation,
        }]
    }

    pub(super) fn heartbeat(&mut self, now: Duration, step_elapsed: Option<Duration>) -> Effects {
        let deadlines = self.settings.deadlines;
        match &mut self.state {
            State::Loading { watch, .. }
            | State::Serving { watch, .. }
            | State::Draining { watch, .. } => {
                *watch = Watch {
                    heartbeat_at: now,
                    step_elapsed,
                };
                match watch.overdue(now, &deadlines) {
                    Some(cause) => self.kill(now, cause),
                    None => vec![],
                }
            }
            state => {
                let cause = out_of_place("Heartbeat", state);
                self.kill(now, cause)
            }
        }
    }
}

fn out_of_place(word: &str, state: &State) -> DeathCause {
    DeathCause::ProtocolViolation(format!("{word} while {}", state.name()))
}
