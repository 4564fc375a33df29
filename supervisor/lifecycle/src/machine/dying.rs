//! How a child goes: by itself, or made to; and what comes after it.

use super::{Effects, Machine};
use crate::death::{DeathCause, Exit};
use crate::effect::{Effect, EndReason, Signal};
use crate::event::{ChildEvent, Event};
use crate::exit::SupervisorExit;
use crate::ledger::Death;
use crate::restart_policy::{Failure, Verdict};
use crate::state::{KillStage, State};
use std::time::Duration;
use worker_orcd_ipc::Generation;

/// For descriptors to come back: clients' connections end all the time.
const STARVED_PAUSE: Duration = Duration::from_millis(250);

impl Machine {
    // === it dies by itself ===

    /// The exit may be seen before the words that the socket still holds.
    pub(super) fn last_words(&mut self, now: Duration, words: DeathCause) -> Effects {
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

    pub(super) fn exited(&mut self, now: Duration, exit: Exit) -> Effects {
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

    pub(super) fn link_closed(&mut self, now: Duration) -> Effects {
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

    pub(super) fn dying(
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

    pub(super) fn never_spawned(
        &mut self,
        now: Duration,
        message: String,
        permanent: bool,
    ) -> Effects {
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

    /// Nobody died: it is tried again, however often, until there is a descriptor.
    pub(super) fn starved(&mut self, now: Duration) -> Effects {
        if !matches!(self.state, State::Spawning { .. }) {
            self.stale_events += 1;
            return vec![];
        }
        match (self.ending, self.condemned.take()) {
            (Some(exit), _) => self.stop(now, exit),
            (None, Some(condemnation)) => self.fail(now, condemnation.into()),
            (None, None) => {
                self.state = State::Backoff {
                    since: now,
                    until: now + STARVED_PAUSE,
                };
                vec![]
            }
        }
    }

    // === it is made to die ===

    /// At once and without asking: a child that hangs or lies has nothing to say, and every
    /// millisecond of its life is one of its clients' pause.
    pub(super) fn kill(&mut self, now: Duration, cause: DeathCause) -> Effects {
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

    pub(super) fn terminate(&mut self, now: Duration, pid: u32, cause: DeathCause) -> Effects {
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

    pub(super) fn escalate(&mut self, now: Duration, reached: KillStage) -> Effects {
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
                let cause = cause.clone();
                let failure = Failure {
                    exit: SupervisorExit::Unreapable,
                    reason,
                };
                let mut effects = vec![self.record_death(now, cause)];
                effects.extend(self.fail(now, failure));
                return effects;
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

    fn record_death(&mut self, now: Duration, cause: DeathCause) -> Effect {
        let generation = self.generation;
        let death = Death {
            generation,
            at: now,
            cause: cause.clone(),
        };
        self.ledger.record(death, self.settings.restart.window);
        Effect::Bury { generation, cause }
    }

    pub(super) fn bury(&mut self, now: Duration, cause: DeathCause) -> Effects {
        let mut effects = vec![self.record_death(now, cause.clone())];
        effects.extend(match (self.ending, self.condemned.take()) {
            (Some(exit), _) => self.stop(now, exit),
            (None, Some(condemnation)) => self.fail(now, condemnation.into()),
            (None, None) => self.succeed(now, &cause),
        });
        effects
    }

    pub(super) fn succeed(&mut self, now: Duration, cause: &DeathCause) -> Effects {
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

    pub(super) fn spawn(&mut self, now: Duration) -> Effects {
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

    pub(super) fn stop(&mut self, now: Duration, exit: SupervisorExit) -> Effects {
        self.state = State::Stopped { since: now, exit };
        vec![Effect::End {
            exit,
            reason: exit.name().to_owned(),
        }]
    }

    pub(super) fn fail(&mut self, now: Duration, failure: Failure) -> Effects {
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

    pub(super) fn after_the_end(&mut self, event: Event) -> Effects {
        match event {
            Event::Child { generation, event } => self.stale(generation, &event),
            Event::Tick | Event::Gpu(_) | Event::Drain { .. } | Event::Idle | Event::StopNow => {
                vec![]
            }
        }
    }

    /// A late process must not live on; late words are only counted.
    pub(super) fn stale(&mut self, generation: Generation, event: &ChildEvent) -> Effects {
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
