//! Reader of an answer of several requests.

use crate::record::StreamEvent;
use crate::stream::RequestStream;
use std::task::{Context, Poll};

/// Readers of the parts of one answer. A drop before the end cancels all unfinished parts.
#[derive(Debug, Default)]
pub struct Streams {
    parts: Vec<RequestStream>,
}

impl Streams {
    #[must_use]
    pub fn new(parts: Vec<RequestStream>) -> Self {
        Self { parts }
    }

    #[must_use]
    pub fn parts(&self) -> &[RequestStream] {
        &self.parts
    }

    /// Waits for events of any part and appends all of them to `out`, each with the number of its part. Returns `false`
    /// once earlier calls delivered all ends. Cancel-safe.
    pub async fn next(&mut self, out: &mut Vec<(usize, StreamEvent)>) -> bool {
        std::future::poll_fn(|cx| self.poll_next(cx, out)).await
    }

    /// [`Streams::next`] for bodies that are polled.
    pub fn poll_next(
        &mut self,
        cx: &mut Context<'_>,
        out: &mut Vec<(usize, StreamEvent)>,
    ) -> Poll<bool> {
        let (before, mut is_over) = (out.len(), true);
        for (number, part) in self.parts.iter_mut().enumerate() {
            let polled = part.poll_next(cx, |event| out.push((number, event)));
            is_over &= polled == Poll::Ready(false);
        }
        match (out.len() > before, is_over) {
            (true, _) => Poll::Ready(true),
            (false, true) => Poll::Ready(false),
            (false, false) => Poll::Pending,
        }
    }

    /// True while any part waits for a child.
    #[must_use]
    pub fn recovering(&self) -> bool {
        self.parts.iter().any(RequestStream::recovering)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Journal, SEAT, request, step};
    use std::task::Waker;
    use worker_orcd_ipc::FinishReason;

    fn read(streams: &mut Streams) -> (Poll<bool>, String) {
        let mut out = Vec::new();
        let polled = streams.poll_next(&mut Context::from_waker(Waker::noop()), &mut out);
        let sent = out.into_iter().map(|(part, event)| match event {
            StreamEvent::Text(piece) => format!("{part}{} ", piece.text),
            StreamEvent::Finished(_) => format!("{part}. "),
            StreamEvent::Embedded(_) | StreamEvent::Failed(_) => format!("{part}! "),
        });
        (polled, sent.collect())
    }

    #[test]
    fn each_part_is_told_as_it_comes_and_the_end_is_that_of_the_last() {
        let mut journal = Journal::serving();
        let (a, first) = journal.submit(request("a"));
        let (b, second) = journal.submit(request("b"));
        let mut streams = Streams::new(vec![first, second]);
        assert_eq!(read(&mut streams), (Poll::Pending, String::new()));
        let reports = [
            (step(&[(b, 0, 1)], &[]), "1b "),
            (step(&[(a, 0, 0), (b, 1, 0)], &[]), "0a 1a "),
            (step(&[], &[(b, FinishReason::MaxTokens)]), "1. "),
            (
                step(&[(a, 1, 1)], &[(a, FinishReason::MaxTokens)]),
                "0b 0. ",
            ),
        ];
        for (report, sent) in reports {
            journal.requests.step(SEAT, &report, journal.now).unwrap();
            assert_eq!(read(&mut streams), (Poll::Ready(true), sent.to_owned()));
        }
        assert_eq!(read(&mut streams), (Poll::Ready(false), String::new()));
    }

    #[test]
    fn who_lets_go_of_it_cancels_what_has_not_ended() {
        let mut journal = Journal::serving();
        let (a, first) = journal.submit(request("a"));
        let (_, second) = journal.submit(request("b"));
        let streams = Streams::new(vec![first, second]);
        let end = step(&[(a, 0, 0)], &[(a, FinishReason::MaxTokens)]);
        journal.requests.step(SEAT, &end, journal.now).unwrap();
        assert_eq!(journal.registry.live(), 1);
        drop(streams);
        journal.run_controls();
        assert_eq!(journal.registry.live(), 0);
    }
}
