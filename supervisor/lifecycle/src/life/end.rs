//! End of one child: dismissed or killed by the supervisor, or by its own exit.

use super::{ChildActions, Life};
use crate::death::DeathCause;
use crate::effect::{ChildAction, Signal};
use crate::state::{KillStage, State};
use std::time::Duration;
use worker_orcd_ipc::Exit;

impl Life {
    // === ended by the supervisor ===

    /// Ends a child that is no longer needed: `Command::Shutdown`, then SIGTERM, then SIGKILL.
    pub fn dismiss(&mut self, now: Duration) -> ChildActions {
        let (stage, timeout) = match &self.state {
            // Before its `Hello` the child may not read commands yet.
            State::Handshaking { .. } => (KillStage::Terminated, self.deadlines.terminate),
            state if state.is_watched() => (KillStage::Asked, self.deadlines.dismiss),
            // Without a process, `Spawned` is awaited. An ending child needs no second order.
            _ => return vec![],
        };
        let killing = State::Killing {
            since: now,
            pid: self.state.pid().unwrap_or_default(),
            cause: DeathCause::Dismissed,
            stage,
            deadline: now + timeout,
        };
        let suspend = self.end_in(killing);
        match stage {
            KillStage::Asked => vec![suspend, ChildAction::Dismiss, ChildAction::Release],
            KillStage::Terminated | KillStage::Killed => vec![ChildAction::Kill(Signal::Term)],
        }
    }

    /// Kills the child with SIGKILL, without an orderly shutdown: no valid message is expected of it, and each
    /// millisecond until its death delays its clients' streams.
    pub fn kill(&mut self, now: Duration, cause: DeathCause) -> ChildActions {
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
        vec![
            suspend,
            ChildAction::Kill(Signal::Kill),
            ChildAction::Release,
        ]
    }

    /// Kills the child when the worker stops at once. Its cause of death stays the earlier one, if any.
    pub fn end_at_once(&mut self, now: Duration) -> ChildActions {
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

    /// Continues a dismissal with its next stage, after a timeout.
    pub(super) fn escalate(&mut self, now: Duration) -> ChildActions {
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
        let (next, timeout, signal) = match stage {
            KillStage::Asked => (KillStage::Terminated, deadlines.terminate, Signal::Term),
            KillStage::Terminated => (KillStage::Killed, deadlines.kill, Signal::Kill),
            KillStage::Killed => {
                let (pid, cause) = (*pid, cause.clone());
                self.state = State::Unreapable { since: now, pid };
                return vec![ChildAction::Reap(cause)];
            }
        };
        (*stage, *deadline) = (next, now + timeout);
        vec![ChildAction::Kill(signal)]
    }

    /// Decides a death of which only one sign, exit or closed socket, came within the deadline.
    pub(super) fn reap_deadline_passed(&mut self, now: Duration) -> ChildActions {
        let State::Reaping { reported, exit, .. } = &self.state else {
            return vec![];
        };
        let reported = reported.clone();
        match *exit {
            // Another process holds the dead child's socket open. The exit status is cause enough.
            Some(exit) => self.reap(now, reported.unwrap_or_else(|| DeathCause::of_exit(exit))),
            None => self.kill(now, reported.unwrap_or(DeathCause::SocketClosed)),
        }
    }

    // === own exit ===

    /// Applies a reported fault. The exit may precede it, while the message is still in the socket.
    pub(super) fn fault(&mut self, now: Duration, cause: DeathCause) -> ChildActions {
        let mut actions = match cause.is_weights_fault() {
            true => vec![ChildAction::InvalidateWeights(cause.clone())],
            false => vec![],
        };
        if let State::Reaping { reported, .. } = &mut self.state {
            reported.get_or_insert(cause);
            return actions;
        }
        if !self.state.is_trusted() {
            return vec![];
        }
        actions.extend(self.dying(now, Some(cause), None, false));
        actions
    }

    pub(super) fn exited(&mut self, now: Duration, exit: Exit) -> Option<ChildActions> {
        let reap = self.deadlines.reap;
        Some(match &mut self.state {
            State::Reaping {
                reported,
                link_closed: true,
                ..
            } => {
                let cause = reported.take().unwrap_or_else(|| DeathCause::of_exit(exit));
                self.reap(now, cause)
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
                self.reap(now, cause)
            }
            state if state.is_trusted() => self.dying(now, None, Some(exit), false),
            _ => return None,
        })
    }

    pub(super) fn link_closed(&mut self, now: Duration) -> ChildActions {
        match &mut self.state {
            State::Reaping {
                reported,
                exit: Some(exit),
                ..
            } => {
                let exit = *exit;
                let cause = reported.take();
                self.reap(now, cause.unwrap_or_else(|| DeathCause::of_exit(exit)))
            }
            State::Reaping { link_closed, .. } => {
                *link_closed = true;
                vec![ChildAction::Release]
            }
            state if state.is_trusted() => self.dying(now, None, None, true),
            // The end is already decided, or there is no process.
            _ => vec![],
        }
    }

    /// Starts to wait for the remaining signs of a death.
    pub(super) fn dying(
        &mut self,
        now: Duration,
        reported: Option<DeathCause>,
        exit: Option<Exit>,
        link_closed: bool,
    ) -> ChildActions {
        let Some(pid) = self.state.pid() else {
            return vec![];
        };
        let release = (link_closed || reported.is_some()).then_some(ChildAction::Release);
        let suspend = self.end_in(State::Reaping {
            since: now,
            pid,
            reported,
            exit,
            link_closed,
            deadline: now + self.deadlines.reap,
        });
        [Some(suspend), release].into_iter().flatten().collect()
    }

    /// Enters a state of the child's end, from another such state too.
    fn end_in(&mut self, state: State) -> ChildAction {
        let previous_state = std::mem::replace(&mut self.state, state);
        ChildAction::Suspend { previous_state }
    }

    pub(super) fn reap(&mut self, now: Duration, cause: DeathCause) -> ChildActions {
        self.rest(now, None);
        vec![ChildAction::Reap(cause)]
    }
}
