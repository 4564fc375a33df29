//! Steps in flight: the one that the host waits for, and the next.
//!
//! The inputs and results of a step use one of two pinned buffers. Everything in between is in stream order, so it
//! needs only one buffer. The tokens of a step stay on the device until the inputs of the next one have read
//! them.

use super::context::{Context, StreamEvent};
use super::kernels::DrawnTokens;
use super::sample::{Draws, NOT_FINITE};
use std::collections::VecDeque;
use worker_orcd_ipc::{Drawn, Fault, RequestId, TokenId};

/// Maximum number of steps in flight.
pub const STEPS: usize = 2;

#[derive(Debug)]
struct LaunchedStep {
    step: u64,
    /// Rows that may draw; the tokens of those that do are pending.
    drawn: Vec<Option<Drawn>>,
}

#[derive(Debug)]
pub struct StepQueue {
    queue: VecDeque<LaunchedStep>,
    begun: usize,
    events: [StreamEvent; STEPS],
    /// Tokens of the latest launched step, ended or not.
    previous: DrawnTokens,
    requests: Vec<RequestId>,
}

impl StepQueue {
    /// # Errors
    /// If NVIDIA's driver returns an error.
    pub fn new() -> Result<Self, Fault> {
        Ok(Self {
            queue: VecDeque::new(),
            begun: 0,
            events: [StreamEvent::new()?, StreamEvent::new()?],
            previous: DrawnTokens::NONE,
            requests: Vec::new(),
        })
    }

    /// Events at the end of each step in flight; without steps they are already complete.
    #[must_use]
    pub fn ends(&self) -> [StreamEvent; STEPS] {
        self.events
    }

    /// Buffers of the next step.
    ///
    /// # Panics
    /// If the maximum number of steps is in flight.
    #[must_use]
    pub fn slot(&self) -> usize {
        assert!(self.queue.len() < STEPS, "a step too far ahead");
        self.begun % STEPS
    }

    /// Drawn tokens of the previous step, and the requests of its rows that may draw.
    #[must_use]
    pub fn previous(&self) -> (DrawnTokens, &[RequestId]) {
        (self.previous, &self.requests)
    }

    /// Records a completely launched step. `requests` are those of its rows that may draw, and `drawn` has an
    /// entry for each row that does.
    ///
    /// # Errors
    /// If NVIDIA's driver returns an error.
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
    /// The error of the step.
    ///
    /// # Panics
    /// If no step is in flight.
    pub fn wait(&mut self) -> Result<EndedStep, Fault> {
        let slot = (self.begun - self.queue.len()) % STEPS;
        let step = self.queue.pop_front().expect("a step on its way");
        self.events[slot].wait("a step")?;
        Ok(EndedStep { slot, step })
    }
}

/// Ended step. Its buffers stay reserved until the next launch.
#[derive(Debug)]
pub struct EndedStep {
    pub slot: usize,
    step: LaunchedStep,
}

impl EndedStep {
    /// Returns the drawn tokens.
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
