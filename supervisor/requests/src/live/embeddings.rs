//! Embeddings: requests that end with a vector and without tokens.

use super::Requests;
use super::assignments::Live;
use crate::record::Embedding;
use crate::violation::Violation;
use std::time::Instant;
use worker_orcd_ipc::{FinishReason, Finished, RequestId};
use worker_orcd_lifecycle::SeatId;

impl Requests {
    /// Checks the kind of a final answer. Only a request for a vector gets one, and it gets no other answer. A request
    /// for prompt log probabilities ends only after all of them were reported.
    pub(super) fn check_answer(&self, said: &Finished, seat: SeatId) -> Result<(), Violation> {
        let live = self.assigned.get_with(said.request, seat);
        let wants_vector = live.is_some_and(|live| live.record.embeds.is_some());
        let is_right = match &said.reason {
            FinishReason::Embedded { values } => {
                let is_vector = !values.is_empty() && values.iter().all(|it| it.is_finite());
                wants_vector && is_vector
            }
            FinishReason::MaxTokens | FinishReason::EndOfSequence => {
                let knows_prompt = |live: &Live| live.record.progress.lock().scores_missing() == 0;
                !wants_vector && live.is_none_or(knows_prompt)
            }
            FinishReason::Cancelled
            | FinishReason::OutOfMemory { .. }
            | FinishReason::GrammarFailed { .. }
            | FinishReason::Refused { .. } => true,
        };
        is_right
            .then_some(())
            .ok_or(Violation::Answer(said.request))
    }

    pub(super) fn embedded(&mut self, id: RequestId, values: &[f32], now: Instant) {
        self.end(id, now, |progress, _| {
            progress.embed(Embedding {
                values: values.to_vec(),
                queued_for: progress.queued_for(),
                recoveries: progress.recoveries(),
            });
        });
    }
}

#[cfg(test)]
mod tests {
    use crate::record::{NewRequest, StreamEvent};
    use crate::testing::{Journal, SEAT, read, request, step};
    use crate::violation::Violation;
    use worker_orcd_ipc::{Command, FinishReason, Pooling};

    fn wanting(job_id: &str) -> NewRequest {
        NewRequest {
            max_tokens: 0,
            embeds: Some(Pooling::Mean),
            ..request(job_id)
        }
    }

    fn vector(values: &[f32]) -> FinishReason {
        FinishReason::Embedded {
            values: values.to_vec(),
        }
    }

    #[test]
    fn a_vector_is_the_one_event_of_who_wants_it() {
        let mut journal = Journal::serving();
        let (id, mut stream) = journal.submit(wanting("a"));
        let commands = journal.commands();
        let is_asked = |command: &Command| match command {
            Command::Submit(it) => it.embeds == Some(Pooling::Mean),
            _ => false,
        };
        assert!(commands.iter().any(is_asked), "{commands:?}");
        let end = step(&[], &[(id, vector(&[0.5, -1.0]))]);
        journal.requests.step(SEAT, &end, journal.now).unwrap();
        let (events, is_over) = read(&mut stream);
        let [StreamEvent::Embedded(embedding)] = &events[..] else {
            panic!("{events:?}");
        };
        assert_eq!(embedding.values, [0.5, -1.0]);
        assert!(is_over);
        assert!(journal.requests.is_empty());
    }

    #[test]
    fn another_answer_than_was_asked_for_is_not_believed() {
        let answers = [
            (wanting("a"), FinishReason::MaxTokens),
            (wanting("a"), FinishReason::EndOfSequence),
            (wanting("a"), vector(&[])),
            (wanting("a"), vector(&[f32::NAN])),
            (request("a"), vector(&[1.0])),
        ];
        for (new, answer) in answers {
            let mut journal = Journal::serving();
            let (id, _stream) = journal.submit(new);
            journal.commands();
            let end = step(&[], &[(id, answer)]);
            let found = journal.requests.step(SEAT, &end, journal.now);
            assert_eq!(found, Err(Violation::Answer(id)));
        }
        let mut journal = Journal::serving();
        let (id, _stream) = journal.submit(wanting("a"));
        journal.commands();
        let token = step(&[(id, 0, 0)], &[]);
        let found = journal.requests.step(SEAT, &token, journal.now);
        assert!(matches!(found, Err(Violation::TooMany { .. })), "{found:?}");
    }
}
