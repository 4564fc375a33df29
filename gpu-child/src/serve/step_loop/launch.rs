//! A step in flight: launch, the masks of its sampling, the rows that embeddings and log probabilities of prompts consume,
//! completion.

use super::super::Doing;
use super::{StepLoop, scheduler_fault, stop_trace};
use crate::device::{Batch, NoTap, Tap};
use crate::flight_recorder::{Watched, decodes, phase};
use crate::grammars::Answer;
use crate::logprobs::{LogprobRows, PromptRows};
use crate::pooling::HiddenRows;
use crate::scheduler::StepShape;
use crate::trace::LogitsTrace;
use std::time::{Duration, Instant};
use worker_orcd_ipc::flight::{Moment, StepRequests};
use worker_orcd_ipc::{Fault, Finished, RequestId, Scored, StepReport};

/// Wait for masks of some rows while others could sample. Usually a mask takes less. A row takes more, so recomputing
/// one is worse. A late mask is not waited for again.
const MASK_PATIENCE: Duration = Duration::from_micros(300);

/// Wait if no other row samples or the device still computes; then commands are handled.
const ALONE_PATIENCE: Duration = Duration::from_millis(10);

/// Wait if there is nothing to compute.
const IDLE_PATIENCE: Duration = Duration::from_millis(1);

/// A step in flight.
pub(super) struct StepInFlight {
    pub step: u64,
    pub began: Instant,
    pub shape: StepShape,
    requests: StepRequests,
    /// The sampling is not launched yet.
    pub is_open: bool,
    wanted_rows: LogprobRows,
    /// Log probabilities of prompts from its rows.
    scored: Vec<Scored>,
}

impl StepLoop<'_> {
    /// Launches the planned step, up to its sampling. A synchronous device has computed it on return.
    pub(super) fn launch(&mut self) -> Result<(), Fault> {
        self.step += 1;
        let began = Instant::now();
        let shape = self.scheduler.planned_shape();
        if self.in_flight.is_empty() {
            self.status.step_begins(self.step, began);
        }
        let patience = self.step_times.patience(shape);
        self.status.calls_device(Doing::Computes, patience);
        let sequences = self.scheduler.work();
        let batch = Batch {
            step: self.step,
            sequences: &sequences,
        };
        let tokens = sequences
            .iter()
            .map(|work| work.tokens.len())
            .sum::<usize>() as u32;
        let requests = StepRequests::new(sequences.iter().map(|work| work.request));
        let note = |moment| self.recorder.record(self.step, moment, requests);
        note(Moment::StepBegin { tokens });
        for work in sequences.iter().filter(|work| !decodes(work)) {
            let end = work.first_position + work.tokens.len() as u32;
            let requests = StepRequests::new([work.request].into_iter());
            self.recorder
                .record(self.step, Moment::Prompt { end }, requests);
        }
        note(Moment::Phase(phase(&sequences)));
        let wanted_rows = LogprobRows::of(self.scheduler.logprobs_wanted());
        let mut hidden_rows = HiddenRows::of(self.scheduler.hidden_wanted());
        let mut prompt_rows = PromptRows::of(self.scheduler.prompt_rows_wanted());
        let is_wanted = hidden_rows.is_wanted() || prompt_rows.is_wanted();
        // An asynchronous device does not report its progress.
        let is_seen = !self.executor.is_ahead() || self.trace.is_some() || is_wanted;
        if !is_seen {
            self.executor.begin(&batch, &mut NoTap)?;
        } else {
            let mut none = NoTap;
            let mut tap = hidden_rows.keep(trace_or(&mut self.trace, &mut none));
            let mut tap = prompt_rows.read(&mut tap);
            let mut tap = Watched::new(&mut tap, &self.recorder, self.step, requests);
            self.executor.begin(&batch, &mut tap)?;
        }
        self.pool(hidden_rows)?;
        let scored = self.score(prompt_rows)?;
        self.scheduler.launched();
        self.in_flight.push_back(StepInFlight {
            step: self.step,
            began,
            shape,
            requests,
            is_open: true,
            wanted_rows,
            scored,
        });
        Ok(())
    }

    /// Launches the sampling of the last step, with the masks that have arrived.
    pub(super) fn draw(&mut self) -> Result<(), Fault> {
        let Some(step) = self.in_flight.back_mut() else {
            return Ok(());
        };
        let patience = self.step_times.patience(step.shape);
        self.status.calls_device(Doing::Computes, patience);
        self.scheduler.settle_draws();
        let mut none = NoTap;
        let trace = trace_or(&mut self.trace, &mut none);
        let mut tap = step.wanted_rows.keep(trace);
        let mut tap = Watched::new(&mut tap, &self.recorder, step.step, step.requests);
        self.executor.draw(&self.scheduler.draws(), &mut tap)?;
        self.scheduler.drawn();
        step.is_open = false;
        Ok(())
    }

    /// Drops log probabilities that steps in flight computed for ended requests: no report names a request after its
    /// end.
    pub(super) fn drop_scores_of(&mut self, ended: &[Finished]) {
        for step in &mut self.in_flight {
            let has_ended = |part: &Scored| ended.iter().any(|it| it.request == part.request);
            step.scored.retain(|part| !has_ended(part));
        }
    }

    /// Waits for the oldest step with launched sampling.
    pub(super) fn wait(&mut self, mut step: StepInFlight) -> Result<StepReport, Fault> {
        let patience = self.step_times.patience(step.shape);
        self.status.calls_device(Doing::WaitsForDevice, patience);
        let mut none = NoTap;
        let trace = trace_or(&mut self.trace, &mut none);
        let drawn = self.executor.finish(&mut step.wanted_rows.keep(trace))?;
        self.recorder
            .record(step.step, Moment::StepEnd, step.requests);
        if let Some(trace) = &mut self.trace
            && let Err(error) = trace.check()
        {
            // A trace with gaps would prove nothing.
            self.trace = None;
            stop_trace(self.link, &error);
        }
        let now = Instant::now();
        let took = now.duration_since(step.began.max(self.last_end));
        let (is_ahead, with_host) = (step.began < self.last_end, now - self.last_end);
        (self.last_end, self.last_took) = (now, took);
        self.pacer.observe(step.shape, took);
        self.pacer.observe_rows(step.shape, is_ahead, with_host);
        self.step_times.observe(step.shape, took);
        let report = self.scheduler.complete(step.step, drawn);
        let report = report.map_err(scheduler_fault)?;
        self.ask_for_masks()?;
        Ok(StepReport {
            scored: step.scored,
            logprobs: step.wanted_rows.answer(&report.drawn),
            sealed: self.seal()?,
            ..report
        })
    }

    // === rows ===

    /// Adds the rows of a step to embeddings.
    fn pool(&mut self, rows: HiddenRows) -> Result<(), Fault> {
        for row in rows.into_rows() {
            if !row.is_finite() {
                return Err(self.not_finite(row.request));
            }
            self.scheduler.pool(&row);
        }
        Ok(())
    }

    /// Log probabilities of prompts from the rows of a step.
    fn score(&mut self, rows: PromptRows) -> Result<Vec<Scored>, Fault> {
        let scored = rows.answer().map_err(|request| self.not_finite(request))?;
        self.scheduler.score(&scored);
        Ok(scored)
    }

    fn not_finite(&self, request: RequestId) -> Fault {
        Fault::NonFiniteLogits {
            step: self.step,
            request,
        }
    }

    // === masks ===

    /// Applies the masks that have arrived.
    pub(super) fn hear_masks(&mut self) -> Result<(), Fault> {
        self.ask_for_masks()?;
        let now = Instant::now();
        while self.hear_a_mask_by(now) {}
        self.ask_for_masks()
    }

    /// Waits for the masks of the last launched step. Rows with late masks do not sample. Those of drafts are worth no
    /// wait beyond the time of the device.
    pub(super) fn wait_for_draws(&mut self) -> Result<(), Fault> {
        let beside_others = match self.executor.is_ahead() {
            false => MASK_PATIENCE,
            // The step takes about as long as the last one, and no row samples before its end.
            true => MASK_PATIENCE.max(self.last_took / 2).min(ALONE_PATIENCE),
        };
        let patience = match self.scheduler.others_draw() {
            false => ALONE_PATIENCE,
            true => beside_others,
        };
        self.status.does(Doing::WaitsForMasks);
        let now = Instant::now();
        while self.scheduler.draws_wait() && self.hear_a_mask_by(now + patience) {}
        while self.scheduler.drafts_wait() && self.hear_a_mask_by(now + beside_others) {}
        self.ask_for_masks()
    }

    fn hear_a_mask_by(&mut self, deadline: Instant) -> bool {
        match self.grammars.answer_by(deadline) {
            None => return false,
            Some(Answer::Next {
                ticket,
                forced,
                mask,
            }) => self.scheduler.hear_mask(ticket, &forced, mask),
            Some(Answer::Drafted { ticket, mask }) => self.scheduler.hear_drafted(ticket, mask),
        }
        true
    }

    /// Waits for a mask while there is nothing else to compute.
    pub(super) fn wait_for_a_mask(&mut self) {
        self.hear_a_mask_by(Instant::now() + IDLE_PATIENCE);
    }

    /// Sends the scheduler's requests to the grammar threads.
    pub(super) fn ask_for_masks(&mut self) -> Result<(), Fault> {
        let mut mask_requests = self.scheduler.take_mask_requests().into_iter();
        let heard = mask_requests.try_for_each(|mask_request| self.grammars.hear(mask_request));
        heard.map_err(|error| Fault::Io {
            message: format!("a thread cannot be started: {error}"),
        })
    }
}

fn trace_or<'a>(trace: &'a mut Option<LogitsTrace>, none: &'a mut NoTap) -> &'a mut dyn Tap {
    match trace {
        Some(trace) => trace,
        None => none,
    }
}

#[cfg(test)]
mod masks_tests;
#[cfg(test)]
mod tests;
