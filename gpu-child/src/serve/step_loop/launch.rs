//! A step in flight: launch, sampling, completion.

use super::super::Doing;
use super::{StepLoop, scheduler_fault, stop_trace};
use crate::device::{Batch, NoTap, Tap};
use crate::flight_recorder::{Watched, decodes, phase};
use crate::logprobs::{PromptRows, WantedRows};
use crate::pooling::HiddenRows;
use crate::scheduler::StepShape;
use crate::trace::LogitsTrace;
use std::time::Instant;
use worker_orcd_ipc::flight::{Moment, StepRequests};
use worker_orcd_ipc::{Fault, Finished, Scored, StepReport};

/// A step in flight.
pub(super) struct StepInFlight {
    pub step: u64,
    pub began: Instant,
    pub shape: StepShape,
    requests: StepRequests,
    /// The sampling is not launched yet.
    pub is_open: bool,
    wanted_rows: WantedRows,
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
        let wanted_rows = WantedRows::of(self.scheduler.logprobs_wanted());
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
        (self.last_end, self.last_took) = (now, took);
        self.pacer.observe(step.shape, took);
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
}

fn trace_or<'a>(trace: &'a mut Option<LogitsTrace>, none: &'a mut NoTap) -> &'a mut dyn Tap {
    match trace {
        Some(trace) => trace,
        None => none,
    }
}

#[cfg(test)]
mod tests;
