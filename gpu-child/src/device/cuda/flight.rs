//! Steps on their way: the one that the host waits for, and one behind it.
//!
//! A step leaves with its inputs in one of two pinned buffers and comes back through the same; what
//! lies between is in stream order, so all else is there once. The tokens of the step before stay on
//! the device until the next one's inputs have taken them over.

use super::driver::{Driver, Event};
use super::kernels::Answers;
use super::plan::Plan;
use super::sample::{Draws, NOT_FINITE};
use crate::device::TO_BE_DRAWN;
use std::collections::VecDeque;
use worker_orcd_ipc::{Drawn, Fault, RequestId, TokenId};

/// On their way at a time.
pub const STEPS: usize = 2;

#[derive(Debug)]
struct Flight {
    step: u64,
    /// Its answer, whose tokens are [`TO_BE_DRAWN`] still.
    drawn: Vec<Drawn>,
}

#[derive(Debug)]
pub struct Flights {
    under_way: VecDeque<Flight>,
    begun: usize,
    events: [Event; STEPS],
    /// Of the step that left last, whether or not it came back.
    before: Answers,
    requests: Vec<RequestId>,
}

impl Flights {
    /// # Errors
    /// When the driver refuses.
    pub fn new() -> Result<Self, Fault> {
        Ok(Self {
            under_way: VecDeque::new(),
            begun: 0,
            events: [Event::new()?, Event::new()?],
            before: Answers::NONE,
            requests: Vec::new(),
        })
    }

    /// Reached when the steps on their way have ended, and as long as there are none.
    #[must_use]
    pub fn ends(&self) -> [Event; STEPS] {
        self.events
    }

    /// The buffers that the next step takes.
    ///
    /// # Panics
    /// When as many as there can be are on their way.
    #[must_use]
    pub fn slot(&self) -> usize {
        assert!(self.under_way.len() < STEPS, "a step too far ahead");
        self.begun % STEPS
    }

    /// What the step before drew, and for whom.
    #[must_use]
    pub fn before(&self) -> (Answers, &[RequestId]) {
        (self.before, &self.requests)
    }

    /// Everything of a step is launched.
    ///
    /// # Errors
    /// When the driver refuses.
    pub fn depart(
        &mut self,
        driver: &Driver,
        step: u64,
        plan: &Plan<'_>,
        answers: Answers,
    ) -> Result<(), Fault> {
        self.events[self.slot()].record(driver)?;
        self.begun += 1;
        let of = |(_, sequence): &(usize, usize)| plan.sequences[*sequence].drawn(TO_BE_DRAWN);
        let drawn: Vec<_> = plan.drawing.iter().filter_map(of).collect();
        self.before = answers;
        self.requests.clear();
        self.requests.extend(drawn.iter().map(|row| row.request));
        self.under_way.push_back(Flight { step, drawn });
        Ok(())
    }

    /// Waits for the oldest step.
    ///
    /// # Errors
    /// What the step ended with, or [`Fault::NonFiniteLogits`].
    ///
    /// # Panics
    /// When none is on its way.
    pub fn land(&mut self, draws: &mut Draws) -> Result<Vec<Drawn>, Fault> {
        let slot = (self.begun - self.under_way.len()) % STEPS;
        let Flight { step, mut drawn } = self.under_way.pop_front().expect("a step on its way");
        self.events[slot].wait("a step")?;
        let ids = draws.answers(slot, drawn.len());
        for (row, id) in drawn.iter_mut().zip(ids) {
            if id == NOT_FINITE {
                let request = row.request;
                return Err(Fault::NonFiniteLogits { step, request });
            }
            row.token = TokenId(id);
        }
        Ok(drawn)
    }
}
