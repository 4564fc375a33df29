//! Being told to stop: draining, having nothing left to do, and stopping at once.

use super::{Effects, Machine};
use crate::death::DeathCause;
use crate::effect::{Effect, EndReason};
use crate::exit::SupervisorExit;
use crate::state::{KillStage, State};
use std::time::Duration;

impl Machine {
    pub(super) fn drain(&mut self, now: Duration, timeout: Duration) -> Effects {
        let until = now + timeout;
        if self.is_draining() {
            // Told again: whoever is in more of a hurry decides.
            self.drain_until = self.drain_until.map(|before| before.min(until));
            return vec![];
        }
        self.drain_until = Some(until);
        if let State::Serving { pid, watch, .. } = self.state {
            self.state = State::Draining {
                since: now,
                pid,
                watch,
            };
        }
        vec![Effect::RefuseNewWork]
    }

    pub(super) fn idle(&mut self, now: Duration) -> Effects {
        if self.drain_until.is_none() || self.ending.is_some() {
            return vec![];
        }
        self.leave(now, SupervisorExit::Clean)
    }

    /// Ends with `exit` as soon as no process is left.
    pub(super) fn leave(&mut self, now: Duration, exit: SupervisorExit) -> Effects {
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

    pub(super) fn stop_now(&mut self, now: Duration) -> Effects {
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
}
