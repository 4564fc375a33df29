//! Requests across supervisors: write-ahead here, and restore from an earlier supervisor.

use super::Requests;
use crate::record::{Failure, Record};
use crate::wal::Wal;
use std::sync::Arc;
use std::time::Instant;
use tracing::error;
use worker_orcd_ipc::SealedPages;
use worker_orcd_text::Text;

impl Requests {
    /// Enables the write-ahead log.
    pub fn keep_log(&mut self, wal: Wal) {
        self.wal = Some(wal);
    }

    pub fn log(&self) -> Option<&Wal> {
        self.wal.as_ref()
    }

    /// Closes the log for the supervisor that an upgrade starts ([`Wal::finish`]). `None` if there is no log, or it
    /// could not be written.
    pub fn take_log(&mut self) -> Option<Wal> {
        let mut wal = self.wal.take()?;
        match wal.finish(self.assigned.records_with_pages()) {
            Ok(()) => Some(wal),
            Err(error) => {
                error!(%error, "wal_not_finished");
                None
            }
        }
    }

    /// Restores a request of an earlier supervisor. An unfinished request continues, with the sealed pages of a child
    /// if there are any. A finished one waits for its reader.
    pub fn restore(&mut self, record: Arc<Record>, sealed: Option<SealedPages>, now: Instant) {
        let end = record.progress.lock().end_to_read().cloned();
        if let Some(end) = end {
            if let Some(wal) = &mut self.wal {
                wal.accepted(&record);
                wal.ended(&record, Some(end), now);
            }
            self.unsent.push(record);
        } else {
            let id = record.id;
            self.submit(record);
            if let Some(sealed) = sealed {
                self.assigned.has_pages(id, sealed);
            }
        }
    }

    /// Writes pending entries. Called before readers are woken, so a client receives only logged events.
    pub(super) fn write_ahead(&mut self) {
        let Some(wal) = &mut self.wal else {
            return;
        };
        let live = &self.assigned;
        if let Err(error) = wal.flush(|| live.records_with_pages()) {
            error!(%error, "wal_lost");
            self.wal = None;
        }
    }

    /// Ends requests of an earlier supervisor that cannot continue, because this model cannot decode their tokens.
    pub fn fail_restored(&mut self, failure: &Failure, now: Instant) {
        for record in std::mem::take(&mut self.unsent) {
            record.progress.lock().disown(failure);
        }
        let is_restored = |record: &&Record| record.progress.lock().is_unsent();
        let restored = self.assigned.records().filter(is_restored);
        let restored: Vec<_> = restored.map(|record| record.id).collect();
        for id in restored {
            self.end_here(id, now, |progress, _| progress.disown(failure));
        }
    }

    /// Decodes the tokens of restored requests, once a vocabulary is known.
    pub(super) fn retell(&mut self, text: &Arc<Text>) {
        let ended = std::mem::take(&mut self.unsent);
        let records = ended.iter().map(|record| &**record);
        for record in records.chain(self.assigned.records()) {
            let mut progress = record.progress.lock();
            progress.deliver_prompt(&record.prompt, text);
            progress.retell(text, &mut self.scratch);
            self.wakers.extend(progress.take_waker());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drafts::Drafts;
    use crate::error_code::ErrorCode;
    use crate::logprobs::ListedToken;
    use crate::progress::{Progress, Skip};
    use crate::record::{OnFault, StreamEvent};
    use crate::stream::RequestStream;
    use crate::testing::{Journal, SEAT, params, read, request, step};
    use crate::wal::{self, Clock, Ending, Restored};
    use std::num::NonZeroU8;
    use std::os::fd::AsFd as _;
    use worker_orcd_ipc::{
        Command, DrawnLogprobs, Generation, KvSource, Logprobs, RequestId, SealedPage, StepReport,
        TokenId,
    };

    const ID: RequestId = RequestId(9);

    fn restored(generated: &[u32], end: Option<StreamEvent>) -> Restored {
        Restored {
            id: ID,
            request: request("a"),
            generated: generated.iter().map(|token| TokenId(*token)).collect(),
            cached_tokens: None,
            drafts: Drafts::default(),
            sent_logprobs: vec![],
            sent_prompt: vec![],
            on_fault: OnFault::Resume,
            accepted_at_ms: 0,
            deadline_ms: None,
            first_token_at_ms: None,
            recoveries: 2,
            crashes: 0,
            sealed: None,
            end,
        }
    }

    /// Journal with a request of an earlier supervisor, and its reader.
    fn inherit(request: Restored, skip: Skip) -> (Journal, RequestStream) {
        let mut journal = Journal::with_devices(4, NonZeroU8::MIN);
        let sealed = request.sealed.clone();
        let record = Arc::new(Record::restored(request, Clock::at(journal.now)));
        journal.registry.readmit(&record);
        let now = journal.now;
        journal.requests.restore(Arc::clone(&record), sealed, now);
        record.progress.lock().skip(skip);
        let stream = journal.reader_of(record);
        (journal, stream)
    }

    fn texts(events: &[StreamEvent]) -> Vec<(&str, u32)> {
        let texts = events.iter().filter_map(|event| match event {
            StreamEvent::Text(piece) => Some((piece.text.as_str(), piece.number)),
            _ => None,
        });
        texts.collect()
    }

    #[test]
    fn it_goes_on_behind_its_tokens_and_its_reader_gets_what_it_has_not() {
        for (skip, expected) in [
            (Skip::Nothing, vec![("a", 0), ("b", 1), ("é", 2)]),
            (Skip::Pieces(2), vec![("é", 2)]),
            (Skip::ThroughToken(0), vec![("b", 1), ("é", 2)]),
            // The first half of é yields no text yet.
            (Skip::ThroughToken(2), vec![("é", 2)]),
        ] {
            let (mut journal, mut stream) = inherit(restored(&[0, 1, 2], None), skip);
            assert_eq!(read(&mut stream).0, [], "no vocabulary yet");
            journal.serve(SEAT);
            let [Command::Submit(submission)] = &journal.commands()[..] else {
                panic!("expected a submission");
            };
            assert_eq!(submission.generated.len(), 3);
            let next = step(&[(ID, 3, 3)], &[]);
            journal.requests.step(SEAT, &next, journal.now).unwrap();
            assert_eq!(texts(&read(&mut stream).0), expected, "{skip:?}");
        }
    }

    #[test]
    fn log_probabilities_of_its_tokens_are_told_again_and_those_of_the_next_follow() {
        let logprobs = |of_token| Logprobs {
            of_token,
            rank: 1,
            top: vec![],
        };
        let mut request = restored(&[0, 1], None);
        request.request.params = params(|it| it.logprobs = Some(0));
        request.sent_logprobs = vec![logprobs(-1.0), logprobs(-2.0)];
        let (mut journal, mut stream) = inherit(request, Skip::Pieces(1));
        journal.serve(SEAT);
        let next = StepReport {
            logprobs: vec![DrawnLogprobs {
                request: ID,
                index: 2,
                logprobs: logprobs(-3.0),
            }],
            ..step(&[(ID, 2, 0)], &[])
        };
        journal.requests.step(SEAT, &next, journal.now).unwrap();
        let (events, _) = read(&mut stream);
        let sent = events.iter().filter_map(|event| match event {
            StreamEvent::Text(piece) => piece.logprobs.as_deref(),
            _ => None,
        });
        let sent = sent.flat_map(|it| &it.tokens);
        let of_token = |it: &ListedToken| it.logprobs.as_ref().map(|it| it.of_token);
        let sent: Vec<_> = sent.map(|it| (it.offset, of_token(it))).collect();
        assert_eq!(sent, [(1, Some(-2.0)), (2, Some(-3.0))]);
    }

    #[test]
    fn pages_of_the_last_child_are_adopted_from_its_memory_and_no_other() {
        let child = Generation(3);
        let page = SealedPage {
            page: 0,
            tokens: 1,
            checksum: 7,
        };
        let pages = vec![page];
        for (source, adopted) in [
            (Some(child), true),
            (Some(Generation(2)), false),
            (None, false),
        ] {
            let mut request = restored(&[0], None);
            let pages = pages.clone();
            request.sealed = Some(SealedPages { child, pages });
            let (mut journal, _stream) = inherit(request, Skip::Nothing);
            let source = source.map(|child| KvSource { child, bytes: 1 });
            journal.requests.loads(SEAT, Generation(4), source);
            journal.serve(SEAT);
            let commands = journal.commands();
            let Some(Command::Submit(submission)) = commands.first() else {
                panic!("expected a submission");
            };
            assert_eq!(submission.sealed.is_some(), adopted, "{source:?}");
        }
    }

    #[test]
    fn an_end_that_nobody_has_read_is_told_with_its_text() {
        let end = StreamEvent::Failed(Failure::new(ErrorCode::Cancelled, "no"));
        let ended = restored(&[0, 1], Some(end.clone()));
        let (mut journal, mut stream) = inherit(ended, Skip::Nothing);
        assert_eq!(read(&mut stream).0, []);
        journal.serve(SEAT);
        assert!(
            journal.commands().is_empty(),
            "an ended request has no commands"
        );
        let (events, _) = read(&mut stream);
        assert_eq!(texts(&events), [("a", 0), ("b", 1)]);
        assert_eq!(events.last(), Some(&end));
    }

    #[test]
    fn an_upgrade_hands_over_no_request_that_has_ended_and_has_no_reader() {
        let mut journal = Journal::serving();
        let now = journal.now;
        journal.requests.keep_log(Wal::create(now).unwrap());
        let (running, _running) = journal.submit(request("running"));
        let (unread, _unread) = journal.submit(request("unread"));
        let (gone, stream) = journal.submit(request("gone"));
        journal.commands();
        let failure = Failure::new(ErrorCode::Cancelled, "no");
        for id in [unread, gone] {
            let end = |progress: &mut Progress, _: &Record| progress.disown(&failure);
            journal.requests.end_here(id, now, end);
        }
        journal.requests.write_ahead();
        drop(stream);
        let in_log = |wal: &Wal| -> Vec<RequestId> {
            let log = wal.as_fd().try_clone_to_owned().unwrap();
            let requests = wal::read(log, Ending::Upgrade).unwrap();
            requests.iter().map(|request| request.id).collect()
        };
        let wal = journal.requests.log().expect("a log");
        assert_eq!(in_log(wal), [running, unread, gone], "after a crash");
        let wal = journal.requests.take_log().expect("a log");
        assert_eq!(in_log(&wal), [running, unread]);
    }

    #[test]
    fn with_another_model_it_ends_before_a_wrong_byte() {
        let (mut journal, mut stream) = inherit(restored(&[0, 1], None), Skip::Nothing);
        let (_, mut own) = journal.submit(request("own"));
        let failure = Failure::new(ErrorCode::WorkerUnhealthy, "another model");
        let now = journal.now;
        journal.requests.fail_restored(&failure, now);
        journal.serve(SEAT);
        assert_eq!(read(&mut stream).0, [StreamEvent::Failed(failure)]);
        assert_eq!(
            read(&mut own).0,
            [],
            "the request belongs to this supervisor"
        );
    }
}
