//! The transitions. Time and what happened go in; what to do comes out.
//!
//! `tests/golden/transitions.txt` is the whole table, written by a test that drives every event
//! through every state.
//!
//! Here are the machine itself and the passing of time; [`words`] is the child speaking,
//! [`dying`] its end, [`condemning`] its device's, [`stopping`] the supervisor's.

mod condemning;
mod dying;
mod stopping;
mod words;

use crate::death::DeathCause;
use crate::effect::{Effect, EndReason};
use crate::event::Event;
use crate::exit::SupervisorExit;
use crate::gpu::Condemnation;
use crate::ledger::Ledger;
use crate::restart_policy::RestartPolicy;
use crate::state::State;
use crate::watchdog::{Deadlines, OWN_ABSENCE};
use std::time::Duration;
use worker_orcd_ipc::Generation;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Settings {
    pub deadlines: Deadlines,
    pub restart: RestartPolicy,
    /// Compile-time features of a child that are acceptable.
    pub accept_features: Vec<String>,
}

#[derive(Debug)]
pub struct Machine {
    settings: Settings,
    state: State,
    generation: Generation,
    /// When the drain that was asked for must be over: the soonest, if it was asked for twice.
    drain_until: Option<Duration>,
    /// Decided already: what this ends with, once no process is left.
    ending: Option<SupervisorExit>,
    /// Decided as well: no child follows on this device.
    condemned: Option<Condemnation>,
    has_served: bool,
    ledger: Ledger,
    stale_events: u64,
    last_called: Duration,
}

type Effects = Vec<Effect>;

impl Machine {
    /// Spawns the first child.
    #[must_use]
    pub fn start(now: Duration, settings: Settings) -> (Self, Effects) {
        let generation = Generation::FIRST;
        let deadline = now + settings.deadlines.spawn;
        let machine = Self {
            settings,
            state: State::Spawning {
                since: now,
                deadline,
            },
            generation,
            drain_until: None,
            ending: None,
            condemned: None,
            has_served: false,
            ledger: Ledger::default(),
            stale_events: 0,
            last_called: now,
        };
        (machine, vec![Effect::Spawn { generation }])
    }

    pub fn handle(&mut self, now: Duration, event: Event) -> Effects {
        self.forgive_own_absence(now);
        if self.state.is_final() {
            return self.after_the_end(event);
        }
        match event {
            Event::Tick => self.tick(now),
            Event::Gpu(testimony) => self.testimony(now, &testimony),
            Event::Drain { timeout } => self.drain(now, timeout),
            Event::Idle => self.idle(now),
            Event::StopNow => self.stop_now(now),
            Event::Child { generation, event } if generation == self.generation => {
                self.child(now, event)
            }
            Event::Child { generation, event } => self.stale(generation, &event),
        }
    }

    /// When [`Event::Tick`] is needed next. `None` only in the final states.
    #[must_use]
    pub fn poll_deadline(&self) -> Option<Duration> {
        let deadlines = &self.settings.deadlines;
        // Whoever measures a child's silence must be able to prove that it was listening.
        let attentive = self.last_called + OWN_ABSENCE / 2;
        let own = match &self.state {
            State::Spawning { deadline, .. }
            | State::Handshaking { deadline, .. }
            | State::Killing { deadline, .. }
            | State::Reaping { deadline, .. } => *deadline,
            State::Loading {
                watch, progress, ..
            } => watch
                .deadline(deadlines)
                .min(progress.deadline(deadlines))
                .min(attentive),
            State::Serving { watch, .. } | State::Draining { watch, .. } => {
                watch.deadline(deadlines).min(attentive)
            }
            State::Backoff { until, .. } => *until,
            State::Stopped { .. } | State::Failed { .. } => return None,
        };
        match self.drain_until.filter(|_| self.ending.is_none()) {
            Some(drain) => Some(own.min(drain)),
            None => Some(own),
        }
    }

    // === looking ===

    #[must_use]
    pub fn state(&self) -> &State {
        &self.state
    }

    #[must_use]
    pub fn generation(&self) -> Generation {
        self.generation
    }

    #[must_use]
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.drain_until.is_some() || self.ending.is_some()
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

    fn tick(&mut self, now: Duration) -> Effects {
        if self.ending.is_none() && self.drain_until.is_some_and(|until| now >= until) {
            let mut effects = vec![Effect::EndRequests(EndReason::DrainDeadline)];
            effects.extend(self.leave(now, SupervisorExit::DrainIncomplete));
            return effects;
        }
        let deadlines = self.settings.deadlines;
        match &self.state {
            State::Spawning { since, deadline } if now >= *deadline => {
                let message = format!("no process after {} ms", (now - *since).as_millis());
                self.never_spawned(now, message, false)
            }
            State::Handshaking { deadline, .. } if now >= *deadline => {
                let after = deadlines.handshake;
                self.kill(now, DeathCause::HandshakeDeadline { after })
            }
            State::Loading {
                watch, progress, ..
            } => {
                let overdue = watch.overdue(now, &deadlines);
                match overdue.or_else(|| progress.overdue(now, &deadlines)) {
                    Some(cause) => self.kill(now, cause),
                    None => vec![],
                }
            }
            State::Serving { watch, .. } | State::Draining { watch, .. } => {
                match watch.overdue(now, &deadlines) {
                    Some(cause) => self.kill(now, cause),
                    None => vec![],
                }
            }
            State::Killing {
                stage, deadline, ..
            } if now >= *deadline => self.escalate(now, *stage),
            State::Reaping {
                said,
                exit,
                deadline,
                ..
            } if now >= *deadline => match exit {
                // Somebody else holds the dead child's socket; its words are not worth waiting.
                Some(exit) => {
                    let cause = said.clone().unwrap_or_else(|| DeathCause::of_exit(*exit));
                    self.bury(now, cause)
                }
                None => {
                    let cause = said.clone().unwrap_or(DeathCause::SocketClosed);
                    self.kill(now, cause)
                }
            },
            State::Backoff { until, .. } if now >= *until => self.spawn(now),
            State::Spawning { .. }
            | State::Handshaking { .. }
            | State::Killing { .. }
            | State::Reaping { .. }
            | State::Backoff { .. }
            | State::Stopped { .. }
            | State::Failed { .. } => vec![],
        }
    }

    fn forgive_own_absence(&mut self, now: Duration) {
        let absent = now.saturating_sub(self.last_called);
        self.last_called = self.last_called.max(now);
        if absent < OWN_ABSENCE {
            return;
        }
        match &mut self.state {
            State::Loading {
                watch, progress, ..
            } => {
                watch.heartbeat_at += absent;
                progress.advanced_at += absent;
            }
            State::Serving { watch, .. } | State::Draining { watch, .. } => {
                watch.heartbeat_at += absent;
            }
            _ => {}
        }
    }
}
