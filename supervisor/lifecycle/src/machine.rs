//! The transitions. Time and what happened go in; what to do comes out.
//!
//! `tests/golden/transitions.txt` is the whole table, written by a test that drives every event
//! through every state.

use crate::death::{DeathCause, Exit, HandshakeRefusal};
use crate::effect::{Effect, EndReason, Signal};
use crate::event::{ChildEvent, Event};
use crate::exit::SupervisorExit;
use crate::ledger::{Death, Ledger};
use crate::restart_policy::{Failure, RestartPolicy, Verdict};
use crate::state::{KillStage, LoadProgress, State};
use crate::watchdog::{Deadlines, OWN_ABSENCE, Watch};
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
    /// When the drain that was asked for must be over.
    drain_until: Option<Duration>,
    /// Decided already: what this ends with, once no process is left.
    ending: Option<SupervisorExit>,
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
            State::Loading { watch, progress, .. } => {
                watch.deadline(deadlines).min(progress.deadline(deadlines)).min(attentive)
            }
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

    // === being told to stop ===

    fn drain(&mut self, now: Duration, timeout: Duration) -> Effects {
        if self.is_draining() {
            return vec![];
        }
        self.drain_until = Some(now + timeout);
        if let State::Serving { pid, watch, .. } = self.state {
            self.state = State::Draining {
                since: now,
                pid,
                watch,
            };
        }
        vec![Effect::RefuseNewWork]
    }

    fn idle(&mut self, now: Duration) -> Effects {
        if self.drain_until.is_none() || self.ending.is_some() {
            return vec![];
        }
        self.leave(now, SupervisorExit::Clean)
    }

    /// Ends with `exit` as soon as no process is left.
    fn leave(&mut self, now: Duration, exit: SupervisorExit) -> Effects {
        self.ending = Some(exit);
        match self.state {
            State::Backoff { .. } => self.stop(now, exit),
            // Without a hello there may be nobody to read a command.
            State::Handshaking { pid, .. } => self.terminate(now, pid, DeathCause::Dismissed),
            State::Loading { pid, .. }
            | State::Serving { pid, .. }
            | State::Draining { pid, .. } => {
                let generation = self.generation;
                self.state = State::Killing {
                    since: now,
                    pid,
                    cause: DeathCause::Dismissed,
                    stage: KillStage::Asked,
                    deadline: now + self.settings.deadlines.dismiss,
                };
                vec![
                    Effect::Suspend { generation },
                    Effect::Dismiss { generation },
                ]
            }
            // What is under way ends in `bury` or `never_spawned`, which look at `ending`.
            State::Spawning { .. }
            | State::Killing { .. }
            | State::Reaping { .. }
            | State::Stopped { .. }
            | State::Failed { .. } => vec![],
        }
    }

    fn stop_now(&mut self, now: Duration) -> Effects {
        let exit = SupervisorExit::StoppedAtOnce;
        self.ending = Some(exit);
        let mut effects = vec![
            Effect::RefuseNewWork,
            Effect::EndRequests(EndReason::StoppedAtOnce),
        ];
        effects.extend(match &self.state {
            State::Spawning { .. } => vec![],
            State::Backoff { .. } | State::Stopped { .. } | State::Failed { .. } => {
                self.stop(now, exit)
            }
            State::Killing {
                stage: KillStage::Killed,
                ..
            } => vec![],
            State::Killing { cause, .. } => {
                let cause = cause.clone();
                self.kill(now, cause)
            }
            State::Handshaking { .. }
            | State::Loading { .. }
            | State::Serving { .. }
            | State::Draining { .. }
            | State::Reaping { .. } => self.kill(now, DeathCause::Dismissed),
        });
        effects
    }

    // === the child speaks, or is seen to do something ===

    fn child(&mut self, now: Duration, event: ChildEvent) -> Effects {
        match event {
            ChildEvent::Spawned { pid } => self.spawned(now, pid),
            ChildEvent::SpawnFailed { message, permanent } => {
                self.never_spawned(now, message, permanent)
            }
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
            ChildEvent::Heartbeat { step_elapsed } => self.heartbeat(now, step_elapsed),
            // Nobody asked it to go: its exit will say what this was.
            ChildEvent::Goodbye => self.dying(now, None, None, false),
            ChildEvent::Violation(reason) => self.kill(now, DeathCause::ProtocolViolation(reason)),
            ChildEvent::LinkStalled => self.kill(now, DeathCause::LinkStalled),
        }
    }

    /// It exists and nothing is known against it.
    fn child_is_trusted(&self) -> bool {
        matches!(
            self.state,
            State::Handshaking { .. }
                | State::Loading { .. }
                | State::Serving { .. }
                | State::Draining { .. }
        )
    }

    fn spawned(&mut self, now: Duration, pid: u32) -> Effects {
        match (&self.state, self.ending) {
            (State::Spawning { .. }, None) => {
                let deadline = now + self.settings.deadlines.handshake;
                self.state = State::Handshaking {
                    since: now,
                    pid,
                    deadline,
                };
                vec![]
            }
            (State::Spawning { .. }, Some(_)) => self.terminate(now, pid, DeathCause::Dismissed),
            // The spawn deadline had given it up.
            _ => self.stale(self.generation, &ChildEvent::Spawned { pid }),
        }
    }

    fn hello(&mut self, now: Duration, said: u32, features: &[String]) -> Effects {
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

    fn unacceptable(&self, features: &[String]) -> Option<Vec<String>> {
        let accepted = &self.settings.accept_features;
        let unknown: Vec<_> = features
            .iter()
            .filter(|feature| !accepted.contains(feature))
            .cloned()
            .collect();
        (!unknown.is_empty()).then_some(unknown)
    }

    fn load_progress(&mut self, now: Duration, bytes_done: u64, bytes_total: u64) -> Effects {
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

    fn ready(&mut self, now: Duration) -> Effects {
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

    fn heartbeat(&mut self, now: Duration, step_elapsed: Option<Duration>) -> Effects {
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

    // === it dies by itself ===

    /// The exit may be seen before the words that the socket still holds.
    fn last_words(&mut self, now: Duration, words: DeathCause) -> Effects {
        if let State::Reaping { said, .. } = &mut self.state {
            said.get_or_insert(words);
            return vec![];
        }
        if self.child_is_trusted() {
            self.dying(now, Some(words), None, false)
        } else {
            vec![]
        }
    }

    fn exited(&mut self, now: Duration, exit: Exit) -> Effects {
        match &mut self.state {
            State::Reaping {
                said,
                link_closed: true,
                ..
            } => {
                let cause = said.clone().unwrap_or_else(|| DeathCause::of_exit(exit));
                self.bury(now, cause)
            }
            State::Reaping {
                exit: known,
                deadline,
                ..
            } => {
                *known = Some(exit);
                *deadline = now + self.settings.deadlines.reap;
                vec![]
            }
            State::Killing { cause, .. } => {
                let cause = cause.clone();
                self.bury(now, cause)
            }
            State::Handshaking { .. }
            | State::Loading { .. }
            | State::Serving { .. }
            | State::Draining { .. } => self.dying(now, None, Some(exit), false),
            State::Spawning { .. }
            | State::Backoff { .. }
            | State::Stopped { .. }
            | State::Failed { .. } => self.stale(self.generation, &ChildEvent::Exited(exit)),
        }
    }

    fn link_closed(&mut self, now: Duration) -> Effects {
        match &mut self.state {
            State::Reaping {
                said,
                exit: Some(exit),
                ..
            } => {
                let cause = said.clone().unwrap_or_else(|| DeathCause::of_exit(*exit));
                self.bury(now, cause)
            }
            State::Reaping { link_closed, .. } => {
                *link_closed = true;
                vec![]
            }
            State::Handshaking { .. }
            | State::Loading { .. }
            | State::Serving { .. }
            | State::Draining { .. } => self.dying(now, None, None, true),
            // Its end is decided, or there is none.
            State::Killing { .. }
            | State::Spawning { .. }
            | State::Backoff { .. }
            | State::Stopped { .. }
            | State::Failed { .. } => vec![],
        }
    }

    fn dying(
        &mut self,
        now: Duration,
        said: Option<DeathCause>,
        exit: Option<Exit>,
        link_closed: bool,
    ) -> Effects {
        let Some(pid) = self.state.pid() else {
            return vec![];
        };
        let deadline = now + self.settings.deadlines.reap;
        self.state = State::Reaping {
            since: now,
            pid,
            said,
            exit,
            link_closed,
            deadline,
        };
        vec![Effect::Suspend {
            generation: self.generation,
        }]
    }

    fn never_spawned(&mut self, now: Duration, message: String, permanent: bool) -> Effects {
        match self.state {
            State::Spawning { .. } => {
                self.bury(now, DeathCause::SpawnFailed { message, permanent })
            }
            _ => {
                self.stale_events += 1;
                vec![]
            }
        }
    }

    // === it is made to die ===

    /// At once and without asking: a child that hangs or lies has nothing to say, and every
    /// millisecond of its life is one of its clients' pause.
    fn kill(&mut self, now: Duration, cause: DeathCause) -> Effects {
        let Some(pid) = self.state.pid() else {
            return vec![];
        };
        let generation = self.generation;
        self.state = State::Killing {
            since: now,
            pid,
            cause,
            stage: KillStage::Killed,
            deadline: now + self.settings.deadlines.kill,
        };
        vec![
            Effect::Suspend { generation },
            Effect::Kill {
                generation,
                signal: Signal::Kill,
            },
        ]
    }

    fn terminate(&mut self, now: Duration, pid: u32, cause: DeathCause) -> Effects {
        self.state = State::Killing {
            since: now,
            pid,
            cause,
            stage: KillStage::Terminated,
            deadline: now + self.settings.deadlines.terminate,
        };
        vec![Effect::Kill {
            generation: self.generation,
            signal: Signal::Term,
        }]
    }

    fn escalate(&mut self, now: Duration, reached: KillStage) -> Effects {
        let State::Killing {
            stage,
            deadline,
            pid,
            ..
        } = &mut self.state
        else {
            return vec![];
        };
        let (next, patience, signal) = match reached {
            KillStage::Asked => (
                KillStage::Terminated,
                self.settings.deadlines.terminate,
                Signal::Term,
            ),
            KillStage::Terminated => (
                KillStage::Killed,
                self.settings.deadlines.kill,
                Signal::Kill,
            ),
            KillStage::Killed => {
                let reason = format!(
                    "process {pid} survived SIGKILL for {} s: it is stuck in the kernel, and the \
                     node needs a reboot",
                    self.settings.deadlines.kill.as_secs()
                );
                return self.fail(
                    now,
                    Failure {
                        exit: SupervisorExit::Unreapable,
                        reason,
                    },
                );
            }
        };
        *stage = next;
        *deadline = now + patience;
        vec![Effect::Kill {
            generation: self.generation,
            signal,
        }]
    }

    // === after it ===

    fn bury(&mut self, now: Duration, cause: DeathCause) -> Effects {
        let generation = self.generation;
        let window = self.settings.restart.window;
        self.ledger.record(
            Death {
                generation,
                at: now,
                cause: cause.clone(),
            },
            window,
        );
        let mut effects = vec![Effect::Bury {
            generation,
            cause: cause.clone(),
        }];
        effects.extend(match self.ending {
            Some(exit) => self.stop(now, exit),
            None => self.succeed(now, &cause),
        });
        effects
    }

    fn succeed(&mut self, now: Duration, cause: &DeathCause) -> Effects {
        let policy = self.settings.restart;
        let deaths = self.ledger.intensity(now, policy.window);
        match policy.judge(cause, deaths, self.has_served) {
            Verdict::RestartNow => self.spawn(now),
            Verdict::RestartAfter(delay) => {
                self.state = State::Backoff {
                    since: now,
                    until: now + delay,
                };
                vec![]
            }
            Verdict::Fail(failure) => self.fail(now, failure),
        }
    }

    fn spawn(&mut self, now: Duration) -> Effects {
        self.generation = self.generation.next();
        let deadline = now + self.settings.deadlines.spawn;
        self.state = State::Spawning {
            since: now,
            deadline,
        };
        vec![Effect::Spawn {
            generation: self.generation,
        }]
    }

    fn stop(&mut self, now: Duration, exit: SupervisorExit) -> Effects {
        self.state = State::Stopped { since: now, exit };
        vec![Effect::End {
            exit,
            reason: exit.name().to_owned(),
        }]
    }

    fn fail(&mut self, now: Duration, failure: Failure) -> Effects {
        let Failure { exit, reason } = failure.clone();
        self.state = State::Failed {
            since: now,
            failure,
        };
        vec![
            Effect::RefuseNewWork,
            Effect::EndRequests(EndReason::Failed),
            Effect::End { exit, reason },
        ]
    }

    fn after_the_end(&mut self, event: Event) -> Effects {
        match event {
            Event::Child { generation, event } => self.stale(generation, &event),
            Event::Tick | Event::Drain { .. } | Event::Idle | Event::StopNow => vec![],
        }
    }

    /// A late process must not live on; late words are only counted.
    fn stale(&mut self, generation: Generation, event: &ChildEvent) -> Effects {
        self.stale_events += 1;
        match event {
            ChildEvent::Spawned { .. } => {
                vec![Effect::Kill {
                    generation,
                    signal: Signal::Kill,
                }]
            }
            _ => vec![],
        }
    }
}

fn out_of_place(word: &str, state: &State) -> DeathCause {
    DeathCause::ProtocolViolation(format!("{word} while {}", state.name()))
}
