#![expect(clippy::disallowed_methods, reason = "a test begins at some moment")]

use super::*;
use crate::error_code::ErrorCode;
use crate::record::Failure;
use crate::testing::{params, request};
use std::collections::BTreeMap;
use std::io::ErrorKind;
use worker_orcd_ipc::{Generation, Grammar, MAX_FRAME_BYTES, Pooling, ThinkingBudget};

struct Log {
    wal: Wal,
    live: BTreeMap<RequestId, Arc<Record>>,
    now: Instant,
}

impl Log {
    fn new() -> Self {
        let now = Instant::now();
        Self {
            wal: Wal::create(now).unwrap(),
            live: BTreeMap::new(),
            now,
        }
    }

    fn accept(&mut self, id: u64, prompt: usize) {
        let new = NewRequest {
            prompt: vec![TokenId(7); prompt],
            format: format!("as {id}"),
            ..request(&format!("job {id}"))
        };
        let record = Record::new(RequestId(id), new, OnFault::Fail, self.now);
        self.wal.accepted(&record);
        self.live.insert(record.id, Arc::new(record));
    }

    fn flush(&mut self) {
        let live = self.live.values().map(|record| (&**record, None));
        self.wal.flush(|| live).unwrap();
    }

    /// Ends a request and returns its record, which the caller holds as its reader.
    fn end(&mut self, id: u64, end: Option<StreamEvent>, at: Instant) -> Arc<Record> {
        let record = self.live.remove(&RequestId(id)).expect("a live request");
        self.wal.ended(&record, end, at);
        self.flush();
        record
    }

    fn read(&self, ending: Ending) -> Vec<Restored> {
        read(self.wal.as_fd().try_clone_to_owned().unwrap(), ending).unwrap()
    }

    fn ids(&self) -> Vec<u64> {
        let requests = self.read(Ending::Upgrade);
        requests.iter().map(|request| request.id.0).collect()
    }
}

fn failed() -> StreamEvent {
    StreamEvent::Failed(Failure::new(ErrorCode::Cancelled, "no"))
}

#[test]
fn who_wants_a_vector_is_in_no_entry_and_in_no_image() {
    let mut log = Log::new();
    log.accept(1, 2);
    let new = NewRequest {
        embeds: Some(Pooling::Mean),
        ..request("job 2")
    };
    let record = Record::new(RequestId(2), new, OnFault::Fail, log.now);
    log.wal.accepted(&record);
    log.live.insert(record.id, Arc::new(record));
    log.flush();
    assert_eq!(log.ids(), [1]);
    let live = log.live.values().map(|record| (&**record, None));
    log.wal.begin_segment(live).unwrap();
    assert_eq!(log.ids(), [1]);
}

#[test]
fn what_was_written_is_read_with_its_tokens_and_its_end() {
    let mut log = Log::new();
    log.accept(3, 2);
    log.accept(4, 1);
    for token in 0..4 {
        log.wal.drawn(RequestId(3), TokenId(token), None);
        log.wal.drawn(RequestId(4), TokenId(10 + token), None);
        log.flush();
    }
    log.end(4, Some(failed()), log.now);
    let read = log.read(Ending::Upgrade);
    assert_eq!(read.len(), 2);
    let tokens = |of: &Restored| of.generated.iter().map(|it| it.0).collect::<Vec<_>>();
    assert_eq!(
        (read[0].id, tokens(&read[0])),
        (RequestId(3), vec![0, 1, 2, 3])
    );
    assert_eq!(
        (read[0].job_id.as_str(), read[0].format.as_str()),
        ("job 3", "as 3")
    );
    assert_eq!((&read[0].end, read[0].on_fault), (&None, OnFault::Fail));
    assert_eq!(
        (tokens(&read[1]), &read[1].end),
        (vec![10, 11, 12, 13], &Some(failed()))
    );
}

#[test]
fn a_request_keeps_its_grammar() {
    let mut log = Log::new();
    let grammar = Some(Arc::new(Grammar::Choice(vec!["yes".to_owned()])));
    let new = NewRequest {
        params: params(|it| it.grammar.clone_from(&grammar)),
        ..request("job")
    };
    let record = Record::new(RequestId(3), new, OnFault::Resume, log.now);
    log.wal.accepted(&record);
    log.flush();
    let read = log.read(Ending::Crash).remove(0);
    assert_eq!(read.params.grammar, grammar);
    let record = Record::restored(read, log.wal.clock);
    assert_eq!(
        record.submission().params.grammar,
        grammar,
        "in the submission"
    );
}

#[test]
fn log_probabilities_are_read_with_the_tokens_that_they_are_of() {
    let mut log = Log::new();
    let logprobs = |of_token| Logprobs {
        of_token,
        rank: 1,
        top: vec![(TokenId(5), of_token)],
    };
    let new = NewRequest {
        params: params(|it| it.logprobs = Some(1)),
        ..request("job")
    };
    let record = Record::new(RequestId(3), new, OnFault::Fail, log.now);
    log.wal.accepted(&record);
    log.wal.drawn(RequestId(4), TokenId(8), None);
    log.wal
        .drawn(RequestId(3), TokenId(9), Some(&logprobs(-1.0)));
    log.wal
        .drawn(RequestId(3), TokenId(7), Some(&logprobs(-0.5)));
    log.flush();
    let read = log.read(Ending::Upgrade);
    assert_eq!(read[0].params.logprobs, Some(1));
    assert_eq!(read[0].generated, [TokenId(9), TokenId(7)]);
    assert_eq!(read[0].sent_logprobs, [logprobs(-1.0), logprobs(-0.5)]);
    // The new segment repeats the request.
    let again = |request: Restored, log: &mut Log| {
        let record = Record::restored(request, Clock::at(log.now));
        log.wal
            .begin_segment([(&record, None)].into_iter())
            .unwrap();
        log.read(Ending::Upgrade).remove(0)
    };
    assert_eq!(
        again(read[0].clone(), &mut log).sent_logprobs,
        read[0].sent_logprobs
    );
    // More than a frame holds.
    let most = Logprobs {
        of_token: -1.0,
        rank: 1,
        top: vec![(TokenId(u32::MAX), -1.0); 20],
    };
    let many = Restored {
        sent_logprobs: vec![most; MAX_FRAME_BYTES / 180],
        ..read[0].clone()
    };
    assert_eq!(
        again(many.clone(), &mut log).sent_logprobs,
        many.sent_logprobs
    );
}

#[test]
fn parameters_and_cached_tokens_are_read_as_they_were() {
    let mut log = Log::new();
    let new = NewRequest {
        params: params(|it| {
            it.sampling.seed = 9;
            it.ignore_eos = true;
            it.min_tokens = 2;
            it.stop_token_ids = [TokenId(3), TokenId(5)].into();
            it.allowed_token_ids = [TokenId(5)].into();
            it.without_drafts = true;
            it.prediction = [TokenId(6), TokenId(2)].into();
            it.logit_bias = vec![(TokenId(0), -100.0), (TokenId(7), 0.5)];
            it.thinking = Some(Arc::new(ThinkingBudget {
                tokens: 3,
                open: Some("<think>".to_owned()),
                close: "</think>".to_owned(),
                closing: vec![TokenId(1)],
            }));
        }),
        ..request("job")
    };
    let params = Arc::clone(&new.params);
    let record = Record::new(RequestId(3), new, OnFault::Resume, log.now);
    log.wal.accepted(&record);
    log.flush();
    assert_eq!(log.read(Ending::Upgrade)[0].cached_tokens, None);
    log.wal.began(RequestId(3), 1);
    log.flush();
    let read = log.read(Ending::Upgrade).remove(0);
    // The new segment repeats the request.
    let record = Record::restored(read.clone(), Clock::at(log.now));
    let live = [(&record, None)];
    log.wal.begin_segment(live.into_iter()).unwrap();
    for read in [read, log.read(Ending::Upgrade).remove(0)] {
        assert_eq!((&read.params, read.cached_tokens), (&params, Some(1)));
    }
    assert_eq!(record.submission().params, params);
}

#[test]
fn drafts_are_counted_with_their_tokens_across_segments() {
    let mut log = Log::new();
    log.accept(3, 2);
    let drafts = |verified, accepted| Drafts { verified, accepted };
    for _ in 0..2 {
        log.wal.drafted(RequestId(3), drafts(7, 0));
        log.wal.drawn(RequestId(3), TokenId(1), None);
        log.wal.drawn(RequestId(3), TokenId(2), None);
        log.wal.drafted(RequestId(3), drafts(0, 1));
        log.flush();
    }
    let read = log.read(Ending::Crash).remove(0);
    assert_eq!((read.generated.len(), read.drafts), (4, drafts(14, 2)));
    // The new segment repeats the request.
    let record = Record::restored(read, Clock::at(log.now));
    log.wal
        .begin_segment([(&record, None)].into_iter())
        .unwrap();
    log.wal.drawn(RequestId(3), TokenId(1), None);
    log.wal.drafted(RequestId(3), drafts(1, 0));
    log.flush();
    let mut read = log.read(Ending::Upgrade).remove(0);
    assert_eq!((read.generated.len(), read.drafts), (5, drafts(15, 2)));
    read.drafts.cut(1);
    assert_eq!(read.drafts, drafts(14, 1), "of the tokens that are left");
}

#[test]
fn a_token_whose_log_probabilities_a_kill_cut_off_is_forgotten_with_them() {
    let mut log = Log::new();
    let new = NewRequest {
        params: params(|it| it.logprobs = Some(20)),
        ..request("job")
    };
    let record = Record::new(RequestId(3), new, OnFault::Resume, log.now);
    log.wal.accepted(&record);
    log.flush();
    let logprobs = Logprobs {
        of_token: -1.0,
        rank: 1,
        top: vec![(TokenId(5), -1.0); 20],
    };
    let child = Generation(1);
    let sealed = SealedPages {
        child,
        pages: vec![],
    };
    // The log probabilities take three entries.
    let count = 2 * LOGPROBS_AT_ONCE + 1;
    let long = Restored {
        generated: vec![TokenId(7); count],
        sent_logprobs: vec![logprobs; count],
        sealed: None,
        ..log.read(Ending::Upgrade).remove(0)
    };
    let record = Record::restored(long, Clock::at(log.now));
    let live = [(&record, Some(&sealed))];
    log.wal.begin_segment(live.into_iter()).unwrap();
    assert!(log.wal.buffer.capacity() <= BUFFER_BYTES);
    let known = |log: &Log| {
        let read = log.read(Ending::Crash).remove(0);
        assert_eq!(read.generated.len(), read.sent_logprobs.len());
        assert_eq!(read.sealed.is_some(), read.generated.len() == count);
        read.generated.len()
    };
    assert_eq!(known(&log), count);
    let (begin, end) = (log.wal.segment, log.wal.end);
    let mut found = vec![];
    for at in (begin..end).rev().step_by(100_000) {
        log.wal.file.set_len(at).unwrap();
        found.push(known(&log));
    }
    found.dedup();
    assert_eq!(found, [2 * LOGPROBS_AT_ONCE, LOGPROBS_AT_ONCE, 0]);
}

#[test]
fn who_ended_long_ago_or_is_read_by_nobody_is_not_there() {
    let mut log = Log::new();
    for id in 1..=3 {
        log.accept(id, 1);
    }
    log.end(1, None, log.now);
    // The end time is compared with the clock of the reading process.
    let long_ago = log.now.checked_sub(2 * RETOLD_FOR);
    log.end(
        2,
        Some(failed()),
        long_ago.expect("an uptime of more than two minutes"),
    );
    assert_eq!(log.ids(), [3]);
}

#[test]
fn a_log_keeps_who_lives_and_who_has_just_ended_and_gives_the_rest_back() {
    let mut log = Log::new();
    log.accept(1, 100);
    log.accept(2, 100);
    log.wal.drawn(RequestId(1), TokenId(1), None);
    log.flush();
    log.live[&RequestId(1)]
        .progress
        .lock()
        .note_for_test(TokenId(1));
    log.end(2, Some(failed()), log.now);
    let stored = |log: &Log| {
        use std::os::unix::fs::MetadataExt as _;
        log.wal.file.metadata().unwrap().blocks() * 512
    };
    for round in 0..200 {
        let id = 10 + round;
        log.accept(id, 150_000);
        log.flush();
        log.end(id, None, log.now);
        assert!(stored(&log) < 4 * SEGMENT_BYTES, "{}", stored(&log));
    }
    assert!(
        log.wal.end > 5 * SEGMENT_BYTES,
        "several segments: {}",
        log.wal.end
    );
    let read = log.read(Ending::Upgrade);
    assert_eq!(read.len(), 1, "{:?}", log.ids());
    assert_eq!(read[0].generated, [TokenId(1)]);

    // A request that ended within the last two segments is still read.
    log.accept(1000, 1);
    log.end(1000, Some(failed()), log.now);
    assert_eq!(log.ids(), [1, 1000]);
}

#[test]
fn an_entry_that_was_cut_off_is_the_last_and_is_ignored() {
    let mut log = Log::new();
    log.accept(1, 10);
    log.flush();
    let whole = log.wal.end;
    log.accept(2, 10);
    log.flush();
    for end in (whole..log.wal.end).rev() {
        log.wal.file.set_len(end).unwrap();
        assert_eq!(log.ids(), [1], "cut off at {end} of {}", log.wal.end);
    }
}

#[test]
fn what_no_entry_is_behind_whole_ones_is_ignored() {
    let mut log = Log::new();
    log.accept(1, 10);
    log.accept(2, 10);
    log.flush();
    let whole = log.wal.end;
    for garbage in [
        &[0xFF; 64][..],
        &[0; 64],
        b"0123456789",
        &[1, 0, 0, 0, 0xFF],
        &[5, 0, 0, 0, 0, 0, 0, 0, 0],
    ] {
        log.wal.file.set_len(whole).unwrap();
        log.wal.file.write_all_at(garbage, whole).unwrap();
        assert_eq!(log.ids(), [1, 2], "{garbage:?}");
    }
    // Without a valid first entry the log is refused with an error.
    log.wal
        .file
        .write_all_at(&[0xFF; 64], super::HEADER_BYTES)
        .unwrap();
    let copy = log.wal.file.try_clone().unwrap();
    let error = read(copy.into(), Ending::Upgrade).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidData);
}

#[test]
fn a_request_that_was_there_in_every_crash_is_not_tried_for_ever() {
    let mut crashes = 0;
    loop {
        let mut log = Log::new();
        log.accept(1, 1);
        let record = log.live.get_mut(&RequestId(1)).and_then(Arc::get_mut);
        let record = record.expect("the only reference");
        record.crashes = crashes;
        let again = log.wal.snapshot(record, None);
        log.wal.note(&Entry::Accepted(Box::new(again)));
        log.flush();
        assert_eq!(log.read(Ending::Upgrade)[0].crashes, crashes, "no crash");
        match log.read(Ending::Crash).first() {
            Some(request) => crashes = request.crashes,
            None => break,
        }
    }
    assert_eq!(crashes + 1, MAX_CRASHES);
}

#[test]
fn a_request_that_is_to_fail_with_its_child_fails_with_its_supervisor_and_not_in_an_upgrade() {
    let mut log = Log::new();
    // Each request of this log has `on_fault: fail`.
    log.accept(1, 1);
    log.flush();
    assert_eq!(log.read(Ending::Upgrade)[0].end, None);
    let end = log.read(Ending::Crash).remove(0).end;
    let Some(StreamEvent::Failed(failure)) = end else {
        panic!("{end:?}");
    };
    assert!(failure.retriable, "{failure:?}");
}

#[test]
fn what_is_no_log_is_refused() {
    let file = tempfile::tempfile().unwrap();
    file.write_all_at(&[b'a'; 100], 0).unwrap();
    let error = read(file.into(), Ending::Upgrade).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidData);
}

#[test]
fn a_part_that_has_ended_stays_as_long_as_another_part_of_its_answer_goes_on() {
    let mut log = Log::new();
    let part = |id: u64| {
        let new = NewRequest {
            part_of: Some("answer".to_owned()),
            ..request(&format!("answer.{id}"))
        };
        Arc::new(Record::new(RequestId(id), new, OnFault::Resume, log.now))
    };
    for record in [part(1), part(2)] {
        log.wal.accepted(&record);
        log.live.insert(record.id, record);
    }
    log.accept(3, 1);
    let long_ago = log.now.checked_sub(2 * RETOLD_FOR).unwrap();
    let ended = [2, 3].map(|id| log.end(id, Some(failed()), long_ago));
    assert_eq!(log.ids(), [1, 2], "the third is a separate answer");
    let read = log.read(Ending::Upgrade);
    assert_eq!(read[1].end, Some(failed()));
    assert_eq!(read[1].part_of.as_deref(), Some("answer"));
    drop(ended);
}

#[test]
fn what_has_ended_stays_as_long_as_it_is_read_however_many_segments_begin() {
    let mut log = Log::new();
    log.accept(1, 1);
    log.accept(2, 1);
    let reader = log.end(2, Some(failed()), log.now);
    let begin_two = |log: &mut Log| {
        for _ in 0..2 {
            let live = log.live.values().map(|record| (&**record, None));
            log.wal.begin_segment(live).unwrap();
        }
    };
    begin_two(&mut log);
    assert_eq!(log.ids(), [1, 2]);
    assert_eq!(log.read(Ending::Upgrade)[1].end, Some(failed()));
    drop(reader);
    begin_two(&mut log);
    assert_eq!(log.ids(), [1]);
}

#[test]
fn a_finished_log_holds_the_running_requests_and_the_ended_ones_that_are_still_read() {
    let mut log = Log::new();
    for id in 1..=3 {
        log.accept(id, 1);
    }
    let _reader = log.end(2, Some(failed()), log.now);
    drop(log.end(3, Some(failed()), log.now));
    assert_eq!(log.ids(), [1, 2, 3], "all three after a crash");
    let live = log.live.values().map(|record| (&**record, None));
    log.wal.finish(live).unwrap();
    assert_eq!(log.ids(), [1, 2]);
    assert_eq!(log.read(Ending::Upgrade)[1].end, Some(failed()));
}
