//! First step of a request on a child, with the number of prompt tokens in the prefix cache. Only the first child's
//! report counts: replays do not change it.

use super::Requests;
use crate::violation::Violation;
use std::sync::Arc;
use std::time::Instant;
use worker_orcd_ipc::Began;
use worker_orcd_lifecycle::SeatId;

impl Requests {
    pub(super) fn began(
        &mut self,
        seat: SeatId,
        said: Began,
        now: Instant,
    ) -> Result<(), Violation> {
        let Began {
            request,
            cached_tokens,
        } = said;
        let is_leaving = self.assigned.seat(seat).is_leaving(request);
        let Some(live) = self.assigned.get_with(request, seat) else {
            let what = "the beginning";
            return match is_leaving {
                true => Ok(()),
                false => Err(Violation::UnknownRequest { what, request }),
            };
        };
        if cached_tokens > live.record.tokens_in() {
            return Err(Violation::CachedTokens(request));
        }
        let record = Arc::clone(&live.record);
        self.assigned.begun(request, seat);
        let is_first = record.progress.lock().begin(cached_tokens, now);
        if let Some(wal) = self.wal.as_mut().filter(|_| is_first) {
            wal.began(request, cached_tokens);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::StreamEvent;
    use crate::testing::{Journal, SEAT, read, request, step};
    use worker_orcd_ipc::{FinishReason, StepReport};

    fn beginning(request: worker_orcd_ipc::RequestId, cached_tokens: u32) -> StepReport {
        StepReport {
            began: vec![Began {
                request,
                cached_tokens,
            }],
            ..step(&[], &[])
        }
    }

    #[test]
    fn the_first_word_about_cached_tokens_stands() {
        let mut journal = Journal::serving();
        let (id, mut stream) = journal.submit(request("job"));
        for cached_tokens in [1, 2, 0] {
            let report = beginning(id, cached_tokens);
            journal.requests.step(SEAT, &report, journal.now).unwrap();
        }
        let end = step(&[(id, 0, 0)], &[(id, FinishReason::MaxTokens)]);
        journal.requests.step(SEAT, &end, journal.now).unwrap();
        let (events, _) = read(&mut stream);
        let Some(StreamEvent::Finished(completion)) = events.last() else {
            panic!("{events:?}")
        };
        assert_eq!(completion.cached_tokens, 1);
    }

    #[test]
    fn a_child_has_no_more_of_a_prompt_than_there_is() {
        let mut journal = Journal::serving();
        let (id, _stream) = journal.submit(request("job"));
        let report = beginning(id, 3);
        let outcome = journal.requests.step(SEAT, &report, journal.now);
        assert_eq!(outcome, Err(Violation::CachedTokens(id)));
    }
}
