//! What a child's messages mean: each is checked, then told to the lifecycle, the journal, or
//! both.

use crate::driver::{Driver, link_failure};
use crate::engine::LoadedModel;
use std::sync::Arc;
use std::time::Duration;
use tracing::warn;
use worker_orcd_ipc::{Envelope, Event as Word, Fault, ReadyReport, decode};
use worker_orcd_lifecycle::{ChildEvent, SeatId};

impl Driver {
    /// Takes everything that has been read from the child, in order.
    pub(super) fn hear(&mut self, seat: SeatId) {
        loop {
            let Some(child) = &mut self.seat(seat).child else {
                return;
            };
            let generation = child.generation;
            let event = match child.next_word() {
                Ok(None) => return,
                Ok(Some(payload)) => match decode::<Envelope>(payload) {
                    Ok(envelope) if envelope.generation == generation => {
                        self.understand(seat, envelope.event)
                    }
                    Ok(envelope) => {
                        let said = envelope.generation;
                        let reason = format!("it calls itself generation {said}");
                        Some(ChildEvent::Violation(reason))
                    }
                    Err(error) => Some(ChildEvent::Violation(error.to_string())),
                },
                Err(error) => {
                    // The stream cannot be trusted from here on.
                    child.close_link();
                    Some(link_failure(error))
                }
            };
            if let Some(event) = event {
                self.tell_of(seat, event);
                self.do_effects();
            }
        }
    }

    /// `None` when the lifecycle need not know.
    fn understand(&mut self, seat: SeatId, word: Word) -> Option<ChildEvent> {
        let now = self.now;
        let carries_tokens = matches!(&word, Word::Step(report) if !report.drawn.is_empty());
        if !carries_tokens && !self.seat(seat).admit(now) {
            return Some(ChildEvent::Violation(
                "it floods its control socket".to_owned(),
            ));
        }
        match word {
            Word::Hello(hello) => {
                let (pid, features) = (hello.pid, hello.features.clone());
                self.news.hello(hello);
                Some(ChildEvent::Hello { pid, features })
            }
            Word::LoadProgress {
                bytes_done,
                bytes_total,
            } => {
                self.news.load_progress(now, bytes_done, bytes_total);
                Some(ChildEvent::LoadProgress {
                    bytes_done,
                    bytes_total,
                })
            }
            Word::Ready(report) => self.build(seat, *report),
            Word::Heartbeat(heartbeat) => {
                let step_elapsed = heartbeat.step_elapsed_ms.map(Duration::from_millis);
                self.news
                    .heartbeat(now, &heartbeat, self.requests.tokens_total());
                self.note_pulse(seat, step_elapsed);
                Some(ChildEvent::Heartbeat { step_elapsed })
            }
            Word::Step(report) => {
                if !self.worker.seat(seat).state().believes_tokens() {
                    return None;
                }
                self.news.stepped(now);
                let step = self.requests.step(seat, &report, now);
                if carries_tokens {
                    self.note_tokens();
                }
                step.err()
                    .map(|violation| ChildEvent::Violation(violation.to_string()))
            }
            // The file that is kept open was loaded before: it was edited in place.
            Word::Fault(fault @ Fault::ModelLoad { .. }) if self.kept_model.is_some() => {
                warn!(reason = %fault, "model_not_loaded_again");
                Some(ChildEvent::ModelChanged)
            }
            Word::Fault(fault) => Some(ChildEvent::Fault(fault)),
            Word::TraceStopped { message } => {
                // The next child would leave a hole.
                self.settings.load.trace = None;
                self.news.impaired(now, "logits_trace", &message);
                None
            }
            Word::Goodbye => Some(ChildEvent::Goodbye),
        }
    }

    /// Ready means that requests can be answered, so the tokenizer comes first.
    fn build(&mut self, seat: SeatId, report: ReadyReport) -> Option<ChildEvent> {
        let generation = self.seat(seat).child.as_ref()?.generation;
        if self.seat(seat).is_building() {
            return Some(ChildEvent::Violation(
                "Ready while Ready is being acted upon".to_owned(),
            ));
        }
        if let Err(violation) = self.keep_model(seat) {
            return Some(violation);
        }
        self.news.loaded(self.now, &report);
        self.crashes.loaded(&report.memory);
        self.gpu.child_computes_on(report.device.uuid.as_deref());
        let previous = self.model.clone();
        let timeout = self.settings.template_timeout;
        let model_sampling = self.settings.model_sampling;
        self.seat(seat).build(generation, move || {
            let previous = previous.as_ref().map(Arc::as_ref);
            LoadedModel::build(report, previous, timeout, model_sampling)
        });
        None
    }
}
