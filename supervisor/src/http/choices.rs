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
