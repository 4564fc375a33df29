//! Streams of an answer's choices, interleaved as tokens arrive.
//!
//! Each choice has its own renderer. With several choices (OpenAI's API), the chunks of each equal those of an answer with
//! this choice alone, except for `index`. The order of chunks of different choices depends on timing. The position of a
//! resumed stream is therefore counted per choice: chunks after the role, including the one with `finish_reason`.

use super::generation::Accepted;
use super::job::Job;
use super::whole::fail_all;
use std::task::{Context, Poll};
use worker_orcd_api::choices::Layout;
use worker_orcd_api::render::Render;
use worker_orcd_requests::error_code::ErrorCode;
use worker_orcd_requests::{Completion, Failure, RequestStream, Skip, StreamEvent, Streams};

pub(super) struct Choices<R> {
    streams: Streams,
    choices: Vec<Choice<R>>,
    layout: Layout,
    /// Events received but not written. Reused.
    events: Vec<(usize, StreamEvent)>,
}

struct Choice<R> {
    job: Job,
    render: R,
    /// Pieces, or chunks of several choices, that the client already has.
    known: Skip,
    /// Number of pieces so far, including those that the client already has.
    pieces: u32,
    /// Text was written since the last [`Render::progress`].
    has_text: bool,
    end: Option<Completion>,
}

impl<R: Render> Choices<R> {
    pub(super) fn new(accepted: impl IntoIterator<Item = (Accepted, R)>, layout: Layout) -> Self {
        let choice = |(accepted, render): (Accepted, R)| {
            let choice = Choice {
                job: accepted.job,
                render,
                known: accepted.stream.delivered(),
                pieces: 0,
                has_text: false,
                end: None,
            };
            (accepted.stream, choice)
        };
        let (streams, choices) = accepted.into_iter().map(choice).unzip();
        Self {
            streams: Streams::new(streams),
            choices,
            layout,
            events: Vec::new(),
        }
    }

    /// Takes new events. `false`: no more will follow.
    pub(super) fn poll_new(&mut self, cx: &mut Context<'_>) -> Poll<bool> {
        match self.events.is_empty() {
            true => self.streams.poll_next(cx, &mut self.events),
            false => Poll::Ready(true),
        }
    }

    /// Writes the events before all others.
    pub(super) fn begin(&mut self, out: &mut Vec<u8>) {
        for choice in &mut self.choices {
            choice.render.begin(out);
        }
    }

    /// Writes the taken events. Returns true after the end.
    pub(super) fn write(&mut self, out: &mut Vec<u8>) -> bool {
        let is_only = self.choices.len() == 1;
        let mut events = std::mem::take(&mut self.events);
        for (index, event) in events.drain(..) {
            let (choice, stream) = (&mut self.choices[index], &self.streams.parts()[index]);
            match event {
                StreamEvent::Text(piece) => {
                    choice.pieces = piece.number + 1;
                    if choice.known.covers(piece.number, piece.index) {
                        choice.render.known(&piece);
                        continue;
                    }
                    choice.has_text = true;
                    choice.render.text(&piece, out);
                    stream.mark_delivered(choice.pieces);
                }
                StreamEvent::Finished(completion) => {
                    choice.progress(stream, out);
                    choice.finished(completion, is_only, out);
                    if !is_only {
                        stream.mark_delivered(choice.pieces + 1);
                    }
                }
                event @ (StreamEvent::Embedded(_) | StreamEvent::Failed(_)) => {
                    choice.progress(stream, out);
                    let failure = failure_of(event);
                    choice.render.failed(&failure, out);
                    self.fail(index, &failure);
                    return true;
                }
            }
        }
        self.events = events;
        for (choice, stream) in self.choices.iter_mut().zip(self.streams.parts()) {
            choice.progress(stream, out);
        }
        if self.choices.iter().any(|choice| choice.end.is_none()) {
            return false;
        }
        let ends = self.choices.iter_mut().filter_map(|it| it.end.take());
        let ends: Vec<_> = ends.collect();
        if let Some(any) = self.choices.first_mut() {
            any.render.end(&ends, self.layout, out);
        }
        true
    }

    /// The failure that takes the place of the answer: of any of several choices, or the first event of the only one.
    pub(super) fn first_failure(&mut self) -> Option<Failure> {
        let most = match self.choices.len() {
            1 => 1,
            _ => self.events.len(),
        };
        let events = self.events.iter().take(most);
        let failures = events.filter_map(|(index, event)| match event {
            StreamEvent::Failed(failure) => Some((*index, failure.clone())),
            _ => None,
        });
        let (index, failure) = failures.min_by_key(|(index, _)| *index)?;
        self.fail(index, &failure);
        Some(failure)
    }

    /// Fails the whole answer after the failure of one choice. The others are cancelled.
    fn fail(&mut self, index: usize, failure: &Failure) {
        self.streams = Streams::default();
        let failed = self.choices[index].job.id().to_owned();
        let open = self.choices.iter_mut().filter(|it| it.end.is_none());
        fail_all(open.map(|choice| &mut choice.job), &failed, failure);
    }

    /// Whether the client received a part of it from another supervisor.
    pub(super) fn has_delivered(&self) -> bool {
        self.choices.iter().any(|it| it.known != Skip::Nothing)
    }

    /// True while a child is dead or overdue.
    pub(super) fn recovering(&self) -> bool {
        self.streams.recovering()
    }

    /// Writes a sign of life: that a child is being replaced, or a keep-alive after a long silence.
    pub(super) fn sign_of_life(&mut self, is_recovering: bool, out: &mut Vec<u8>) {
        match self.choices.first_mut() {
            Some(any) if is_recovering => any.render.recovering(out),
            Some(any) => any.render.keep_alive(out),
            None => {}
        }
    }
}

impl<R: Render> Choice<R> {
    fn progress(&mut self, stream: &RequestStream, out: &mut Vec<u8>) {
        if std::mem::take(&mut self.has_text) {
            self.render.progress(stream.tokens_out(), out);
        }
    }

    /// Writes the end of the choice, unless the client already has that of one of several.
    fn finished(&mut self, completion: Completion, is_only: bool, out: &mut Vec<u8>) {
        if !is_only && self.known.covers(self.pieces, completion.tokens_out) {
            self.job.mark_logged();
        } else {
            self.job.finished(&completion);
            self.render.finished(&completion, out);
        }
        self.end = Some(completion);
    }
}

/// The failure that ends a stream of text with this event.
fn failure_of(end: StreamEvent) -> Failure {
    match end {
        StreamEvent::Failed(failure) => failure,
        // Only requests for embeddings get vectors.
        _ => Failure::new(ErrorCode::Internal, "a vector is no text"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::App;
    use crate::http::tests::app;
    use serde_json::Value;
    use std::collections::BTreeMap;
    use std::sync::Arc;
    use std::task::Waker;
    use worker_orcd_api::answer_format::OpenAiOptions;
    use worker_orcd_api::openai::stream::Chunks;
    use worker_orcd_api::openai::{Header, Kind};
    use worker_orcd_ipc::{FinishReason, RequestId, StepReport};
    use worker_orcd_requests::record::NewRequest;
    use worker_orcd_requests::testing::{Journal, SEAT, request, step};
    use worker_orcd_text::tools::Parsing;

    const LAYOUT: Layout = Layout { prompts: 1, n: 2 };

    struct TwoChoices {
        journal: Journal,
        ids: [RequestId; 2],
        source: Choices<Chunks>,
    }

    /// Two choices with token ids. `known`: chunks after the role of each that the client already has.
    fn two_choices(app: &Arc<App>, kind: Kind, known: [u32; 2]) -> TwoChoices {
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
            if known > 0 {
                stream.mark_delivered(known);
            }
            stream.give_known();
            let name = stream.job_id().to_owned();
            Accepted {
                tokens_in: stream.tokens_in(),
                stream,
                job: Job::begin(Arc::clone(app), name, String::new()),
            }
        });
        let header = Header {
            kind,
            id: "x".to_owned(),
            created: 3,
            model: "m".to_owned(),
            fingerprint: "fp".to_owned(),
            parsing: Parsing::default(),
            must_call: false,
        };
        let options = OpenAiOptions {
            include_usage: true,
            token_ids: true,
            ..OpenAiOptions::default()
        };
        let choices = accepted.enumerate().map(|(index, accepted)| {
            let choice = (index, accepted.job.id());
            let chunks = Chunks::new(&header, choice, options, accepted.tokens_in);
            let chunks = chunks.with_token_ids(accepted.stream.tokens());
            (accepted, chunks)
        });
        let source = Choices::new(choices, LAYOUT);
        TwoChoices {
            journal,
            ids: [a, b],
            source,
        }
    }

    impl TwoChoices {
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
    fn by_choice(text: &str) -> BTreeMap<Option<u64>, Vec<String>> {
        let mut chunks: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for chunk in text.split_terminator("\n\n") {
            let data = chunk.strip_prefix("data: ").unwrap();
            let json: Value = serde_json::from_str(data).unwrap_or_default();
            let of = json["choices"][0]["index"].as_u64();
            chunks.entry(of).or_default().push(data.to_owned());
        }
        chunks
    }

    /// `roles`: number of chunks with the role of each choice.
    async fn resumes_from_every_place(kind: Kind, roles: usize) {
        let app = app(&[]).await;
        let mut whole = two_choices(&app, kind, [0; 2]);
        let mut begun = Vec::new();
        whole.source.begin(&mut begun);
        whole.report_all();
        let (text, ended) = whole.drain();
        assert!(ended && text.ends_with("data: [DONE]\n\n"));
        let text = String::from_utf8(begun).unwrap() + &text;
        let whole = by_choice(&text);
        // Per choice: the role of a chat, pieces and an end. Without a choice: usage, and `[DONE]`.
        let lengths: Vec<_> = whole.iter().map(|(of, it)| (*of, it.len())).collect();
        let expected = [(None, 2), (Some(0), 4 + roles), (Some(1), 3 + roles)];
        assert_eq!(lengths, expected);
        for index in [Some(0_u64), Some(1)] {
            let with_prompt = |it: &&String| it.contains("\"prompt_token_ids\":[0,1]");
            assert_eq!(whole[&index].iter().filter(with_prompt).count(), 1);
            assert!(with_prompt(&&whole[&index][0]), "{index:?}");
        }
        let usage: Value = serde_json::from_str(&whole[&None][0]).unwrap();
        assert_eq!(usage["usage"]["prompt_tokens"], 2);
        assert_eq!(usage["usage"]["completion_tokens"], 5);
        for first in 0..=4 {
            for second in 0..=3 {
                let mut rest = two_choices(&app, kind, [first, second]);
                rest.report_all();
                let (text, ended) = rest.drain();
                assert!(ended);
                let rest = by_choice(&text);
                assert_eq!(rest[&None], whole[&None]);
                for (index, known) in [(Some(0), first), (Some(1), second)] {
                    let rest = rest.get(&index).cloned().unwrap_or_default();
                    let expected = &whole[&index][roles + known as usize..];
                    assert_eq!(rest, expected, "{kind:?}, {first}, {second}, {index:?}");
                }
            }
        }
    }

    #[tokio::test]
    async fn from_every_place_the_rest_of_each_choice_has_the_same_bytes() {
        resumes_from_every_place(Kind::Chat, 1).await;
        resumes_from_every_place(Kind::Completion, 0).await;
    }

    #[tokio::test]
    async fn the_place_of_each_choice_is_known_also_behind_its_end() {
        let mut two = two_choices(&app(&[]).await, Kind::Chat, [0; 2]);
        let [a, b] = two.ids;
        two.report(&step(
            &[(a, 0, 0), (b, 0, 1)],
            &[(b, FinishReason::MaxTokens)],
        ));
        let (_, ended) = two.drain();
        assert!(!ended);
        let streams = two.source.streams.parts().iter();
        let places: Vec<_> = streams.map(RequestStream::delivered).collect();
        assert_eq!(places, [Skip::Pieces(1), Skip::Pieces(2)]);
    }

    #[tokio::test]
    async fn one_that_fails_ends_the_answer_and_the_others_are_cancelled() {
        let mut two = two_choices(&app(&[]).await, Kind::Chat, [0; 2]);
        let [a, b] = two.ids;
        two.report(&step(&[(a, 0, 0), (b, 0, 1)], &[]));
        two.drain();
        let now = two.journal.now;
        two.journal.requests.cancel(b, now);
        let (text, ended) = two.drain();
        assert!(
            ended && text.contains("\"error\"") && !text.contains("[DONE]"),
            "{text}"
        );
        two.journal.run_controls();
        assert_eq!(
            two.journal.registry.live(),
            0,
            "no child works on the first"
        );
    }
}
