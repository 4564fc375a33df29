//! Messages of a child: each is checked, then passed to the lifecycle, the journal, or both.

use crate::child::handover::Once;
use crate::child::link::LinkError;
use crate::driver::observer::Observer;
use crate::driver::retained_by_device::RetainedByDevice;
use crate::driver::seat::Seat;
use crate::driver::silence::{set_overdue, trust};
use crate::engine::{EngineSettings, LoadedModel};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tracing::warn;
use worker_orcd_ipc::{
    Envelope, Event as Word, Fault, FinishReason, FrameError, Heartbeat, ReadyReport, Role,
    StepReport, decode, model_parts,
};
use worker_orcd_lifecycle::{ChildEvent, HandshakeRefusal};
use worker_orcd_requests::Requests;

/// Name in `/health` of children with incomplete confinement.
const CHILD_CONFINEMENT: &str = "child_confinement";

/// Reader of one child's messages, with their receivers.
pub(super) struct Listener<'a> {
    pub now: Instant,
    pub seat: &'a mut Seat,
    /// True while results of the child are accepted.
    pub believed: bool,
    pub requests: &'a mut Requests,
    pub observer: &'a mut Observer,
    pub retained: &'a mut RetainedByDevice,
    pub settings: &'a mut EngineSettings,
    pub model: Option<&'a Arc<LoadedModel>>,
}

impl Listener<'_> {
    /// Handles the messages that have been read from the child, in order, up to the first event for the lifecycle.
    pub(super) fn next_event(&mut self) -> Option<ChildEvent> {
        loop {
            let child = self.seat.child.as_mut()?;
            let generation = child.generation;
            let event = match child.next_word() {
                Ok(None) => return None,
                Ok(Some(payload)) => match decode::<Envelope>(payload) {
                    Ok(envelope) if envelope.generation == generation => {
                        if let Some(once) = sent_once(&envelope.event) {
                            let payload = payload.to_vec();
                            child.note_word(once, &payload);
                        }
                        self.understand(envelope.event)
                    }
                    Ok(envelope) => {
                        let said = envelope.generation;
                        let reason = format!("it calls itself generation {said}");
                        Some(ChildEvent::Violation(reason))
                    }
                    Err(error) => Some(ChildEvent::Violation(error.to_string())),
                },
                Err(error) => {
                    // The stream is unusable after an error.
                    child.close_link();
                    Some(link_failure(error))
                }
            };
            if let Some(event) = event {
                if casts_doubt(&event) {
                    self.requests.distrust(self.seat.id);
                }
                return Some(event);
            }
        }
    }

    /// Handles a message. `None`: no event for the lifecycle.
    fn understand(&mut self, word: Word) -> Option<ChildEvent> {
        let now = self.now;
        let carries_tokens = matches!(&word, Word::Step(report) if !report.drawn.is_empty());
        if !carries_tokens && !self.seat.admit(now) {
            return Some(ChildEvent::Violation(
                "it floods its control socket".to_owned(),
            ));
        }
        match word {
            Word::Hello(hello) => {
                let (pid, features) = (hello.pid, hello.features.clone());
                self.note_confinement(&hello.confinement_gaps);
                if let Some(stats) = &mut self.seat.stats {
                    stats.hello(hello);
                }
                self.observer.snapshots.touch();
                Some(ChildEvent::Hello { pid, features })
            }
            Word::LoadProgress {
                bytes_done,
                bytes_total,
            } => {
                if let Some(stats) = &mut self.seat.stats {
                    stats.load_progress(now, bytes_done, bytes_total);
                }
                self.observer.snapshots.touch();
                Some(ChildEvent::LoadProgress {
                    bytes_done,
                    bytes_total,
                })
            }
            Word::Ready(report) => self.build(*report),
            Word::Heartbeat(heartbeat) => Some(self.heartbeat(&heartbeat)),
            Word::Step(report) => self.step(&report),
            // The open file was loaded before, so it was changed in place.
            Word::Fault(fault @ Fault::ModelLoad { .. })
                if self.retained[self.seat.id].has_model() =>
            {
                warn!(reason = %fault, "model_reload_failed");
                Some(ChildEvent::ModelChanged)
            }
            Word::Fault(fault) => Some(ChildEvent::Fault(fault)),
            Word::TraceStopped { message } => {
                // A trace by the next child would have a gap.
                self.settings.load.trace = None;
                let snapshots = &mut self.observer.snapshots;
                snapshots.impaired(now, "logits_trace", &message);
                None
            }
            Word::DraftModelStopped { message } => {
                if let Some(stats) = &mut self.seat.stats {
                    stats.draft_model_stopped(message);
                }
                self.observer.snapshots.touch();
                None
            }
            Word::Goodbye => Some(ChildEvent::Goodbye),
        }
    }

    /// Reports restrictions that the kernel cannot enforce. The child serves in spite of them.
    fn note_confinement(&mut self, gaps: &[String]) {
        let snapshots = &mut self.observer.snapshots;
        if gaps.is_empty() {
            snapshots.repaired(CHILD_CONFINEMENT);
        } else {
            snapshots.impaired(self.now, CHILD_CONFINEMENT, &gaps.join("; "));
        }
    }

    fn heartbeat(&mut self, heartbeat: &Heartbeat) -> ChildEvent {
        let step_elapsed = heartbeat.step_elapsed_ms.map(Duration::from_millis);
        self.observer.heartbeat(self.now, self.seat, heartbeat);
        match heartbeat.step_overdue {
            true if self.believed => set_overdue(self.seat, self.requests, "a step takes too long"),
            true => {}
            false => trust(self.seat, self.requests),
        }
        if self.seat.silence.pulse(self.now, step_elapsed) {
            self.requests.hesitate(self.seat.id);
        }
        ChildEvent::Heartbeat { step_elapsed }
    }

    fn step(&mut self, report: &StepReport) -> Option<ChildEvent> {
        if !self.believed {
            return None;
        }
        let before = self.requests.totals().tokens;
        let step = self.requests.step(self.seat.id, report, self.now);
        let accepted = self.requests.totals().tokens - before;
        self.observer.stepped(self.now, self.seat, accepted);
        match step {
            Ok(()) => progress_of(self.seat, report, accepted),
            Err(violation) => Some(ChildEvent::Violation(violation.to_string())),
        }
    }

    /// Builds the tokenizer, which readiness requires, and retains the child's descriptors.
    fn build(&mut self, report: ReadyReport) -> Option<ChildEvent> {
        if self.seat.is_building() {
            return Some(ChildEvent::Violation(
                "Ready while Ready is being acted upon".to_owned(),
            ));
        }
        let generation = self.seat.child.as_ref()?.generation;
        let model_files = model_parts(Path::new(&self.settings.load.model_path)).len();
        let retained = &mut self.retained[self.seat.id];
        let kept = retained.keep(self.now, self.seat, &report, model_files);
        if let Err(violation) = kept {
            return Some(violation);
        }
        self.retained.share_model();
        self.observer.loaded(self.now, self.seat, &report);
        if report.copies_ahead && self.seat.role == Role::Standby {
            self.requests.copies_ahead(self.seat.id);
        }
        let previous = self.model.cloned();
        let timeout = self.settings.template_timeout;
        let model_sampling = self.settings.model_sampling;
        let parsers = self.settings.parsers;
        self.seat.build(generation, move || {
            let previous = previous.as_ref().map(Arc::as_ref);
            LoadedModel::build(report, previous, timeout, model_sampling, parsers)
        });
        None
    }
}

/// Progress by an accepted report with `tokens` tokens.
fn progress_of(seat: &mut Seat, report: &StepReport, tokens: u64) -> Option<ChildEvent> {
    let mut ends = report.finished.iter();
    let is_vector = |reason: &FinishReason| matches!(reason, FinishReason::Embedded { .. });
    let delivers = tokens > 0 || ends.any(|end| is_vector(&end.reason));
    let stats = seat.stats.as_mut().filter(|_| delivers)?;
    stats.progresses().then_some(ChildEvent::Progress)
}

/// Kind of a message that a child sends only once. It is stored for another supervisor.
fn sent_once(word: &Word) -> Option<Once> {
    match word {
        Word::Hello(_) => Some(Once::Hello),
        Word::Ready(_) => Some(Once::Ready),
        Word::DraftModelStopped { .. } => Some(Once::DraftModelStopped),
        _ => None,
    }
}

/// True if the child may have computed wrong results. Its sealed pages are then not adopted.
fn casts_doubt(event: &ChildEvent) -> bool {
    match event {
        ChildEvent::Fault(fault) => fault.invalidates_results(),
        ChildEvent::Violation(_) | ChildEvent::ModelChanged => true,
        _ => false,
    }
}

pub(super) fn link_failure(error: LinkError) -> ChildEvent {
    match error {
        LinkError::Frame(error @ (FrameError::NotOurs(_) | FrameError::Version { .. })) => {
            ChildEvent::HandshakeRefused(HandshakeRefusal::Preamble(error.to_string()))
        }
        LinkError::Overfull(_) => ChildEvent::LinkStalled,
        error => ChildEvent::Violation(error.to_string()),
    }
}
