//! Stream of an answer with several choices, interleaved as tokens arrive.
//!
//! Each choice has its own [`Chunks`], so its chunks equal those of an answer with this choice alone, except for
//! `index`. The order of chunks of different choices depends on timing. The position of a resumed stream is therefore
//! counted per choice: chunks after the role, including the one with `finish_reason`.

use crate::http::generation::Accepted;
use crate::http::job::Job;
use crate::http::sse::{Source, failure_of};
use crate::http::whole::fail_all;
use std::task::{Context, Poll};
use worker_orcd_api::choices::Layout;
use worker_orcd_api::openai::Header;
use worker_orcd_api::openai::answer::Usage;
use worker_orcd_api::openai::stream::Chunks;
use worker_orcd_api::presentation::StreamOptions;
use worker_orcd_api::render::Render as _;
use worker_orcd_requests::{Completion, Failure, Skip, StreamEvent, Streams};

pub(in crate::http) struct Choices {
    streams: Streams,
    choices: Vec<Choice>,
    layout: Layout,
    /// Events received but not written. Reused.
    events: Vec<(usize, StreamEvent)>,
}

struct Choice {
    job: Job,
    chunks: Chunks,
    tokens_in: u32,
    /// Generated tokens, once the choice has ended.
    tokens_out: Option<u32>,
    /// Prompt tokens that were cached.
    cached_tokens: u32,
    /// Chunks that the client already has.
    known: Skip,
    /// Number of pieces so far, including those that the client already has.
    pieces: u32,
}

impl Choices {
    pub(in crate::http) fn new(
        accepted: Vec<Accepted>,
        header: &Header,
        options: StreamOptions,
        layout: Layout,
    ) -> Self {
        let (mut streams, mut choices) = (Vec::new(), Vec::new());
        for (index, accepted) in accepted.into_iter().enumerate() {
            let Accepted {
                stream,
                job,
                tokens_in,
            } = accepted;
            choices.push(Choice {
                chunks: Chunks::of_choice(header, (index, job.id()), options, tokens_in),
                job,
                tokens_in,
                tokens_out: None,
                cached_tokens: 0,
                known: stream.delivered(),
                pieces: 0,
            });
            streams.push(stream);
        }
        Self {
            streams: Streams::new(streams),
            choices,
            layout,
            events: Vec::new(),
        }
    }

    /// Fails the whole answer after the failure of one choice. The others are cancelled.
    fn fail(&mut self, index: usize, failure: &Failure) {
        self.streams = Streams::default();
        let failed = self.choices[index].job.id().to_owned();
        let open = self.choices.iter_mut().filter(|it| it.tokens_out.is_none());
        fail_all(open.map(|choice| &mut choice.job), &failed, failure);
    }

    /// Generated tokens of the whole answer. `None` until all choices have ended.
    fn tokens_out(&self) -> Option<u32> {
        let all: Option<Vec<u32>> = self.choices.iter().map(|it| it.tokens_out).collect();
        Some(all?.into_iter().fold(0, u32::saturating_add))
    }
}

impl Choice {
    /// Writes the last chunk of the choice, unless the client already has it.
    fn finished(&mut self, completion: &Completion, out: &mut Vec<u8>) {
        self.tokens_out = Some(completion.tokens_out);
        self.cached_tokens = completion.cached_tokens;
        if self.known.covers(self.pieces, completion.tokens_out) {
            self.job.mark_logged();
        } else {
            self.job.finished(completion);
            self.chunks.finish(completion, out);
        }
    }
}

impl Source for Choices {
    fn poll_new(&mut self, cx: &mut Context<'_>) -> Poll<bool> {
        match self.events.is_empty() {
            true => self.streams.poll_next(cx, &mut self.events),
            false => Poll::Ready(true),
        }
    }

    fn begin(&mut self, out: &mut Vec<u8>) {
        for choice in &mut self.choices {
            choice.chunks.begin(out);
        }
    }

    fn write(&mut self, out: &mut Vec<u8>) -> bool {
        let mut events = std::mem::take(&mut self.events);
        for (index, event) in events.drain(..) {
            let choice = &mut self.choices[index];
            let told = match event {
                StreamEvent::Text(piece) => {
                    choice.pieces = piece.number + 1;
                    if choice.known.covers(piece.number, piece.index) {
                        choice.chunks.known(&piece);
                        continue;
                    }
                    choice.chunks.text(&piece, out);
                    choice.pieces
                }
                StreamEvent::Finished(completion) => {
                    choice.finished(&completion, out);
                    choice.pieces + 1
                }
                event @ (StreamEvent::Embedded(_) | StreamEvent::Failed(_)) => {
                    let failure = failure_of(event);
                    choice.chunks.failed(&failure, out);
                    self.fail(index, &failure);
                    return true;
                }
            };
            self.streams.parts()[index].mark_delivered(told);
        }
        self.events = events;
        let (Some(tokens_out), Some(any)) = (self.tokens_out(), self.choices.first()) else {
            return false;
        };
        let tokens_in = self.choices.iter().map(|choice| choice.tokens_in);
        let cached_tokens = self.choices.iter().map(|choice| choice.cached_tokens);
        let usage = Usage::whole(
            self.layout.prompt_tokens(tokens_in),
            tokens_out,
            self.layout.prompt_tokens(cached_tokens),
        );
        any.chunks.end(usage, out);
        true
    }

    fn first_failure(&mut self) -> Option<Failure> {
        let failures = self.events.iter().filter_map(|(index, event)| match event {
            StreamEvent::Failed(failure) => Some((*index, failure.clone())),
            _ => None,
        });
        let (index, failure) = failures.min_by_key(|(index, _)| *index)?;
        self.fail(index, &failure);
        Some(failure)
    }

    fn has_delivered(&self) -> bool {
        self.choices.iter().any(|it| it.known != Skip::Nothing)
    }

    fn recovering(&self) -> bool {
        self.streams.recovering()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::openai::Kind;
    use crate::http::tests::app;
    use serde_json::Value;
    use std::collections::BTreeMap;
    use std::task::Waker;
    use worker_orcd_ipc::{FinishReason, RequestId, StepReport};
    use worker_orcd_requests::record::NewRequest;
    use worker_orcd_requests::testing::{Journal, SEAT, request, step};
    use worker_orcd_text::tools::Parsing;

    const LAYOUT: Layout = Layout { prompts: 1, n: 2 };

    struct Told {
        journal: Journal,
        ids: [RequestId; 2],
        source: Choices,
    }

    /// Two choices, with the chunks that the client already has.
    async fn stream_of_two(known: [Skip; 2]) -> Told {
        let app = app(&[]).await;
        let mut journal = Journal::serving();
        let mut part = |name: &str| {
            journal.submit(NewRequest {
                part_of: Some("x".to_owned()),
                ..request(name)
            })
        };
        let ((a, first), (b, second)) = (part("x.0"), part("x.1"));
        let streams = [first, second].into_iter().zip(known);
        let accepted = streams.map(|(stream, known)| {
            if let Skip::Pieces(pieces) = known {
                stream.mark_delivered(pieces);
            }
            stream.give_known();
            let name = stream.job_id().to_owned();
            Accepted {
                tokens_in: 2,
                stream,
                job: Job::begin(std::sync::Arc::clone(&app), name, String::new()),
            }
        });
        let header = Header {
            kind: Kind::Chat,
            id: "x".to_owned(),
            created: 3,
            model: "m".to_owned(),
            fingerprint: "fp".to_owned(),
            parsing: Parsing::default(),
            must_call: false,
        };
        let options = StreamOptions {
            include_usage: true,
            continuous_usage: false,
        };
        let source = Choices::new(accepted.collect(), &header, options, LAYOUT);
        Told {
            journal,
            ids: [a, b],
            source,
        }
    }

    impl Told {
        fn report(&mut self, report: &StepReport) {
            let journal = &mut self.journal;
            journal.requests.step(SEAT, report, journal.now).unwrap();
        }

        /// Tokens of both choices. The second choice ends first.
        fn report_all(&mut self) {
            let [a, b] = self.ids;
            let end = |id| (id, FinishReason::MaxTokens);
            self.report(&step(&[(a, 0, 0), (b, 0, 1)], &[]));
            self.report(&step(&[(b, 1, 1)], &[end(b)]));
            self.report(&step(&[(a, 1, 0)], &[]));
            self.report(&step(&[(a, 2, 1)], &[end(a)]));
        }

        /// All output so far, and true if the stream has ended.
        fn drain(&mut self) -> (String, bool) {
            let mut context = Context::from_waker(Waker::noop());
            let (mut out, mut ended) = (Vec::new(), false);
            while !ended && self.source.poll_new(&mut context) == Poll::Ready(true) {
                ended = self.source.write(&mut out);
            }
            (String::from_utf8(out).unwrap(), ended)
        }
    }

    /// Chunks by choice. The key is `None` for chunks without a choice.
    fn by_choice(told: &str) -> BTreeMap<Option<u64>, Vec<String>> {
        let mut chunks: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for chunk in told.split_terminator("\n\n") {
            let data = chunk.strip_prefix("data: ").unwrap();
            let json: Value = serde_json::from_str(data).unwrap_or_default();
            let of = json["choices"][0]["index"].as_u64();
            chunks.entry(of).or_default().push(data.to_owned());
        }
        chunks
    }

    #[tokio::test]
    async fn from_every_place_the_rest_of_each_choice_has_the_same_bytes() {
        let mut whole = stream_of_two([Skip::Nothing; 2]).await;
        whole.report_all();
        let (text, ended) = whole.drain();
        assert!(ended && text.ends_with("data: [DONE]\n\n"));
        let whole = by_choice(&text);
        // Per choice: pieces and an end. Without a choice: usage, and `[DONE]`.
        let lengths: Vec<_> = whole.iter().map(|(of, it)| (*of, it.len())).collect();
        assert_eq!(lengths, [(None, 2), (Some(0), 4), (Some(1), 3)]);
        let usage: Value = serde_json::from_str(&whole[&None][0]).unwrap();
        assert_eq!(usage["usage"]["prompt_tokens"], 2);
        assert_eq!(usage["usage"]["completion_tokens"], 5);
        for first in 0..=4 {
            for second in 0..=3 {
                let known = [Skip::Pieces(first), Skip::Pieces(second)];
                let mut rest = stream_of_two(known).await;
                rest.report_all();
                let (text, ended) = rest.drain();
                assert!(ended);
                let rest = by_choice(&text);
                assert_eq!(rest[&None], whole[&None]);
                for (index, known) in [(Some(0), first), (Some(1), second)] {
                    let told = rest.get(&index).cloned().unwrap_or_default();
                    assert_eq!(told, whole[&index][known as usize..], "{index:?}, {known}");
                }
            }
        }
    }

    #[tokio::test]
    async fn the_place_of_each_choice_is_known_also_behind_its_end() {
        let mut told = stream_of_two([Skip::Nothing; 2]).await;
        let [a, b] = told.ids;
        told.report(&step(
            &[(a, 0, 0), (b, 0, 1)],
            &[(b, FinishReason::MaxTokens)],
        ));
        let (_, ended) = told.drain();
        assert!(!ended);
        let place: Vec<_> = told
            .source
            .streams
            .parts()
            .iter()
            .map(|it| it.delivered())
            .collect();
        assert_eq!(place, [Skip::Pieces(1), Skip::Pieces(2)]);
    }

    #[tokio::test]
    async fn one_that_fails_ends_the_answer_and_the_others_are_cancelled() {
        let mut told = stream_of_two([Skip::Nothing; 2]).await;
        let [a, b] = told.ids;
        told.report(&step(&[(a, 0, 0), (b, 0, 1)], &[]));
        told.drain();
        let now = told.journal.now;
        told.journal.requests.cancel(b, now);
        let (text, ended) = told.drain();
        assert!(
            ended && text.contains("\"error\"") && !text.contains("[DONE]"),
            "{text}"
        );
        told.journal.run_controls();
        assert_eq!(
            told.journal.registry.live(),
            0,
            "no child works on the first"
        );
    }
}
