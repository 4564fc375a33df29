//! What a child's messages mean: each is checked, then told to the lifecycle, the journal, or
//! both.

use crate::driver::{Building, Driver};
use crate::engine::LoadedModel;
use std::sync::Arc;
use std::time::Duration;
use tracing::warn;
use worker_orcd_ipc::{Envelope, Event as Word, Fault, ReadyReport, decode};
use worker_orcd_lifecycle::ChildEvent;

impl Driver {
    /// Takes everything that has been read from the child, in order.
    pub(super) fn hear(&mut self) {
        loop {
            let Some(child) = &mut self.child else { return };
            let generation = child.generation;
            let event = match child.next_word() {
                Ok(None) => return,
                Ok(Some(payload)) => match decode::<Envelope>(payload) {
                    Ok(envelope) if envelope.generation == generation => {
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
                    // The stream cannot be trusted from here on.
                    child.close_link();
                    Some(self.link_failure(error))
                }
            };
            if let Some(event) = event {
                self.tell_child_event(event);
                self.do_effects();
            }
        }
    }

    /// `None` when the lifecycle need not know.
    fn understand(&mut self, word: Word) -> Option<ChildEvent> {
        let now = self.now;
        let carries_tokens = matches!(&word, Word::Step(report) if !report.tokens.is_empty());
        if !carries_tokens && !self.flood_gate.admit(now) {
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
            Word::Ready(report) => self.build(*report),
            Word::Heartbeat(heartbeat) => {
                let step_elapsed = heartbeat.step_elapsed_ms.map(Duration::from_millis);
                self.news
                    .heartbeat(now, &heartbeat, self.requests.tokens_total());
                self.note_pulse(step_elapsed);
                Some(ChildEvent::Heartbeat { step_elapsed })
            }
            Word::Step(report) => {
                if !self.life().state().believes_tokens() {
                    return None;
                }
                self.news.stepped(now);
                let step = self.requests.step(&report, now);
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

    /// Ready means that requests can be answered, so the tokenizer comes first; on another
    /// thread, because it takes longer than a heartbeat.
    fn build(&mut self, report: ReadyReport) -> Option<ChildEvent> {
        let child = self.child.as_ref()?;
        if self.building.is_some() {
            return Some(ChildEvent::Violation(
                "Ready while Ready is being acted upon".to_owned(),
            ));
        }
        let generation = child.generation;
        if let Err(violation) = self.keep_model() {
            return Some(violation);
        }
        self.news.loaded(self.now, &report);
        self.crashes.loaded(&report.memory);
        self.gpu.child_computes_on(report.device.uuid.as_deref());
        let previous = self.model.clone();
        let timeout = self.settings.template_timeout;
        let model_sampling = self.settings.model_sampling;
        let model = tokio::task::spawn_blocking(move || {
            let previous = previous.as_ref().map(Arc::as_ref);
            LoadedModel::build(report, previous, timeout, model_sampling)
        });
        self.building = Some(Building { generation, model });
        None
    }
}
