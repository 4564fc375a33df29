//! Turns of the draft model, before the plan of a step and while none is in flight. Both models use the whole device, so
//! they never compute at the same time.
//!
//! In the flight recorder a turn is a step of its own, with the phase of drafts and all of its requests.
//!
//! A draft changes no token, so no stream ends for lack of drafts: a draft model that computes no numbers, or finds no memory
//! at a promotion, is out of use for the rest of the child's life.

use super::super::pacer::{Pacer, TARGET};
use super::super::{Doing, LoadedDraft, Status};
use super::scheduler_fault;
use crate::device::{Batch, Executor, NoTap};
use crate::flight_recorder::FlightRecorder;
use crate::scheduler::Scheduler;
use std::time::{Duration, Instant};
use worker_orcd_ipc::flight::{Moment, Phase, REQUESTS_PER_RECORD, StepRequests};
use worker_orcd_ipc::{Fault, MemoryReport, RequestId};

/// Tokens in a step of a sequence that the model follows from afar, at least.
const LEAST_CHUNK: usize = 8;

/// The draft model of a child.
pub(super) struct Drafting {
    pub executor: Box<dyn Executor>,
    pub name: String,
    /// Tokens of sequences that it follows from afar, in one turn: about as long as a step of the served model.
    chunk: usize,
}

impl Drafting {
    pub(super) fn of(loaded: LoadedDraft) -> Self {
        let LoadedDraft { executor, name, .. } = loaded;
        let chunk = executor.first_prompt_tokens() as usize;
        Self {
            executor,
            name,
            chunk,
        }
    }

    /// Adapts the chunk to a step of this many rows, and to one of the served model.
    fn observe_chunk(&mut self, rows: usize, took: Duration, served_took: Duration) {
        let most = self.executor.max_batch_tokens() as usize;
        self.chunk = next_chunk(self.chunk, rows, took, served_took).min(most);
    }
}

/// Size of the chunk after a step of this many rows. A step with less than a chunk shows nothing about a larger one.
fn next_chunk(chunk: usize, rows: usize, took: Duration, served_took: Duration) -> usize {
    let ratio = served_took.min(TARGET).as_secs_f64() / took.as_secs_f64().max(1e-6);
    let wanted = (rows as f64 * ratio.clamp(0.5, 2.0)) as usize;
    match rows >= chunk {
        true => wanted.max(LEAST_CHUNK),
        false if ratio < 1.0 => wanted.clamp(LEAST_CHUNK.min(chunk), chunk),
        false => chunk,
    }
}

/// Memory of both models: what the draft model takes is one purpose of the child's.
pub(super) fn memory_of(executor: &dyn Executor, draft: Option<&Drafting>) -> MemoryReport {
    let of_draft = draft.map_or(0, |it| it.executor.memory().known_bytes());
    let memory = executor.memory();
    MemoryReport {
        draft_bytes: of_draft,
        ..memory
    }
}

/// The parts of the loop that a turn uses.
pub(super) struct Around<'a> {
    pub scheduler: &'a mut Scheduler,
    pub pacer: &'a mut Pacer,
    pub recorder: &'a FlightRecorder,
    pub status: &'a Status,
    /// Number of the turn among the steps.
    pub step: u64,
    /// Duration of the last step of the served model.
    pub served_took: Duration,
}

impl Drafting {
    /// Runs a turn. False if the model has no work.
    pub(super) fn turn(&mut self, around: Around<'_>) -> Result<bool, Fault> {
        let Around {
            scheduler,
            pacer,
            recorder,
            status,
            step,
            served_took,
        } = around;
        let Some(mut turn) = scheduler.draft_turn() else {
            return Ok(false);
        };
        if !turn.begin(self.chunk) {
            return Ok(false);
        }
        status.calls_device(Doing::Drafts, None);
        let requests: Vec<RequestId> = turn.requests().collect();
        let mut is_first = true;
        loop {
            let sequences = turn.work();
            if sequences.is_empty() {
                break;
            }
            let rows: usize = sequences.iter().map(|work| work.tokens.len()).sum();
            if is_first {
                record_begin(recorder, step, rows, &requests);
            }
            let batch = Batch {
                step,
                sequences: &sequences,
            };
            let began = Instant::now();
            // The deadline of a step is that of each of the turn's.
            status.step_begins(step, began);
            let drawn = self.executor.step(&batch, &mut NoTap);
            let took = began.elapsed();
            if let Err(Fault::NonFiniteLogits { .. }) = drawn {
                // The turn ends, and no request is to blame.
                let all = StepRequests::new(requests.iter().copied());
                recorder.record(step, Moment::StepEnd, all);
            }
            let drawn = drawn?;
            match std::mem::take(&mut is_first) {
                true if rows > 2 * sequences.len() => self.observe_chunk(rows, took, served_took),
                _ => pacer.observe_draft_step(sequences.len(), took),
            }
            drop(sequences);
            turn.take(&drawn).map_err(scheduler_fault)?;
        }
        turn.end();
        let all = StepRequests::new(requests.into_iter());
        recorder.record(step, Moment::StepEnd, all);
        Ok(true)
    }
}

/// Records the begin of a turn, and all of its requests.
fn record_begin(recorder: &FlightRecorder, step: u64, rows: usize, requests: &[RequestId]) {
    let of = |requests: &[RequestId]| StepRequests::new(requests.iter().copied());
    let tokens = rows as u32;
    recorder.record(step, Moment::StepBegin { tokens }, of(requests));
    for part in requests.chunks(REQUESTS_PER_RECORD) {
        recorder.record(step, Moment::Phase(Phase::Draft), of(part));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_takes_about_as_long_as_a_served_step_and_no_longer_than_the_target() {
        let settled = |us_per_row: u64, served: Duration| {
            let mut chunk = 64;
            for _ in 0..20 {
                let took = Duration::from_micros(us_per_row * chunk as u64);
                chunk = next_chunk(chunk, chunk, took, served);
            }
            chunk
        };
        assert!((190..=200).contains(&settled(100, Duration::from_millis(20))));
        let capped = settled(1000, Duration::from_secs(2));
        assert!((60..=70).contains(&capped), "{capped}");
    }

    #[test]
    fn a_short_step_does_not_lengthen_a_chunk_and_a_slow_one_shortens_it() {
        let served = Duration::from_millis(50);
        assert_eq!(next_chunk(64, 20, Duration::from_millis(1), served), 64);
        assert_eq!(next_chunk(64, 50, Duration::from_millis(1), served), 64);
        assert_eq!(next_chunk(64, 20, Duration::from_millis(100), served), 10);
        assert_eq!(next_chunk(8, 3, Duration::from_millis(1), served), 8);
    }
}
