//! Steps on their way: the one that the host waits for, and one behind it.
//!
//! A step leaves with its inputs in one of two pinned buffers and comes back through the same; what
//! lies between is in stream order, so all else is there once. The tokens of the step before stay on
//! the device until the next one's inputs have taken them over.

use super::context::{Context, StreamEvent};
use super::kernels::DrawnTokens;
use super::sample::{Draws, NOT_FINITE};
use std::collections::VecDeque;
use worker_orcd_ipc::{Drawn, Fault, RequestId, TokenId};

/// Steps in flight, at most.
pub const STEPS: usize = 2;

#[derive(Debug)]
struct LaunchedStep {
    step: u64,
    /// Rows that may draw; the tokens of those that do are still to come.
    drawn: Vec<Option<Drawn>>,
}

#[derive(Debug)]
pub struct StepQueue {
    queue: VecDeque<LaunchedStep>,
    begun: usize,
    events: [StreamEvent; STEPS],
    /// Tokens of the step that was launched last, whether or not it has ended.
    previous: DrawnTokens,
    requests: Vec<RequestId>,
}

impl StepQueue {
    /// # Errors
    /// When NVIDIA's driver refuses.
    pub fn new() -> Result<Self, Fault> {
        Ok(Self {
            queue: VecDeque::new(),
            begun: 0,
            events: [StreamEvent::new()?, StreamEvent::new()?],
            previous: DrawnTokens::NONE,
            requests: Vec::new(),
        })
    }

    /// Events that are reached when the steps in flight have ended, and as long as there are none.
    #[must_use]
    pub fn ends(&self) -> [StreamEvent; STEPS] {
        self.events
    }

    /// The buffers that the next step takes.
    ///
    /// # Panics
    /// When as many as there can be are on their way.
    #[must_use]
    pub fn slot(&self) -> usize {
        assert!(self.queue.len() < STEPS, "a step too far ahead");
        self.begun % STEPS
    }

    /// Tokens that the step before drew, and the requests of its rows that might.
    #[must_use]
    pub fn previous(&self) -> (DrawnTokens, &[RequestId]) {
        (self.previous, &self.requests)
    }

    /// Everything of a step is launched. Its rows that may draw are of these requests, and `drawn` has an
    /// answer for each that does.
    ///
    /// # Errors
    /// When NVIDIA's driver refuses.
    pub fn launched(
        &mut self,
        context: &Context,
        step: u64,
        requests: impl Iterator<Item = RequestId>,
        drawn: Vec<Option<Drawn>>,
        drawn_tokens: DrawnTokens,
    ) -> Result<(), Fault> {
        self.events[self.slot()].record(context)?;
        self.begun += 1;
        self.previous = drawn_tokens;
        self.requests.clear();
        self.requests.extend(requests);
        self.queue.push_back(LaunchedStep { step, drawn });
        Ok(())
    }

    /// Waits for the oldest step.
    ///
    /// # Errors
    /// What the step ended with.
    ///
    /// # Panics
    /// When none is on its way.
    pub fn wait(&mut self) -> Result<EndedStep, Fault> {
        let slot = (self.begun - self.queue.len()) % STEPS;
        let step = self.queue.pop_front().expect("a step on its way");
        self.events[slot].wait("a step")?;
        Ok(EndedStep { slot, step })
    }
}

/// A step that has ended, whose buffers no other one has before the next is launched.
#[derive(Debug)]
pub struct EndedStep {
    pub slot: usize,
    step: LaunchedStep,
}

impl EndedStep {
    /// What it drew.
    ///
    /// # Errors
    /// [`Fault::NonFiniteLogits`].
    pub fn drawn(self, draws: &mut Draws) -> Result<Vec<Drawn>, Fault> {
        let LaunchedStep { step, mut drawn } = self.step;
        let ids = draws.drawn(self.slot, drawn.len());
        for (row, id) in drawn.iter_mut().zip(ids) {
            let Some(row) = row else {
                continue;
            };
            if id == NOT_FINITE {
                let request = row.request;
                return Err(Fault::NonFiniteLogits { step, request });
            }
            row.token = TokenId(id);
        }
        Ok(drawn.into_iter().flatten().collect())
    }
}
