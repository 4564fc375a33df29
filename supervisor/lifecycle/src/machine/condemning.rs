//! The device is called unfit: what lives on it is killed, and nothing follows.

use super::{Effects, Machine};
use crate::death::DeathCause;
use crate::exit::SupervisorExit;
use crate::gpu::{Condemnation, Need, Testimony};
use crate::restart_policy::Failure;
use crate::state::State;
use std::time::Duration;

impl Machine {
    pub(super) fn testimony(&mut self, now: Duration, testimony: &Testimony) -> Effects {
        if self.ending.is_some() || self.condemned.is_some() {
            return vec![];
        }
        let Some(condemnation) = testimony.condemns() else {
            return vec![];
        };
        match self.state {
            State::Backoff { .. } => self.fail(now, condemnation.into()),
            // A child there is may hang in NVIDIA's driver, or compute nonsense; both end here.
            State::Handshaking { .. }
            | State::Loading { .. }
            | State::Serving { .. }
            | State::Draining { .. } => {
                self.condemned = Some(condemnation.clone());
                self.kill(now, DeathCause::Condemned(condemnation))
            }
            // What is under way ends in `spawned`, `never_spawned` or `bury`, which look at
            // `condemned`.
            State::Spawning { .. }
            | State::Killing { .. }
            | State::Reaping { .. }
            | State::Stopped { .. }
            | State::Failed { .. } => {
                self.condemned = Some(condemnation);
                vec![]
            }
        }
    }
}

impl From<Condemnation> for Failure {
    fn from(condemnation: Condemnation) -> Self {
        Self {
            exit: match condemnation.need {
                Need::GpuReset => SupervisorExit::GpuNeedsReset,
                Need::NodeReboot => SupervisorExit::NodeNeedsReboot,
            },
            reason: condemnation.to_string(),
        }
    }
}
