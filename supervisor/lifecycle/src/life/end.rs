//! The end of one child: it is asked or made to go, or it dies by itself.

use super::{Deeds, Life};
use crate::death::{DeathCause, Exit};
use crate::effect::{Deed, Signal};
use crate::state::{KillStage, State};
use std::time::Duration;

impl Life {
    // === it is to go ===

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

    pub(super) fn escalate(&mut self, now: Duration) -> Deeds {
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
    pub(super) fn reap_late(&mut self, now: Duration) -> Deeds {
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

    // === it dies by itself ===

    /// The exit may be seen before the words that the socket still holds.
    pub(super) fn last_words(&mut self, now: Duration, words: DeathCause) -> Deeds {
        let mut deeds = match words.is_of_kept_weights() {
            true => vec![Deed::DoubtWeights(words.clone())],
            false => vec![],
        };
        if let State::Reaping { said, .. } = &mut self.state {
            said.get_or_insert(words);
            return deeds;
        }
        if !self.state.is_trusted() {
            return vec![];
        }
        deeds.extend(self.dying(now, Some(words), None, false));
        deeds
    }

    pub(super) fn exited(&mut self, now: Duration, exit: Exit) -> Option<Deeds> {
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

    pub(super) fn link_closed(&mut self, now: Duration) -> Deeds {
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

    pub(super) fn dying(
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

    pub(super) fn bury(&mut self, now: Duration, cause: DeathCause) -> Deeds {
        self.rest(now, None);
        vec![Deed::Bury(cause)]
    }
}
