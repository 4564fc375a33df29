//! Log probabilities of an answer: stored per token, and listed with the piece of text that the token belongs to.
//!
//! A token is listed with the piece in which its own text begins. If that text is held back, for the rest of a
//! character or because it may begin a stop string, the token is listed when the text is released, and never if the
//! text is dropped. A token without text, such as the end-of-generation token, is not listed.
//!
//! If the answer echoes the prompt, every prompt token is listed with it, and later tokens without text are listed as
//! well: a client that requests the echo counts tokens.

use crate::violation::Violation;
use std::collections::VecDeque;
use std::sync::Arc;
use worker_orcd_ipc::{Logprobs, RequestId, TokenId};
use worker_orcd_text::Text;

/// A listed token of an answer.
#[derive(Debug, Clone, PartialEq)]
pub struct ListedToken {
    pub token: TokenId,
    /// Number of characters of the answer before the one in which the token's text begins.
    pub offset: usize,
    /// `None` for the first token of a prompt, which has no predecessor.
    pub logprobs: Option<Logprobs>,
}

/// Tokens that begin in one piece, and the vocabulary.
#[derive(Debug, Clone)]
pub struct Listed {
    pub tokens: Vec<ListedToken>,
    pub text: Arc<Text>,
}

impl PartialEq for Listed {
    fn eq(&self, other: &Self) -> bool {
        self.tokens == other.tokens
    }
}

impl Eq for Listed {}

/// Tokens and log probabilities of an answer.
#[derive(Debug, Default)]
pub struct Ledger {
    /// Log probabilities of every generated token.
    all: Vec<Logprobs>,
    /// Number of most likely tokens at each position.
    top: usize,
    /// Length of the echoed prompt, 0 without an echo. `prompt` has the log probabilities of all prompt tokens but the
    /// first, with `top` or more most likely tokens. Token indices begin with the prompt.
    prompt_len: usize,
    prompt: Arc<Vec<Logprobs>>,
    /// `Some` from the first token on.
    text: Option<Arc<Text>>,
    /// Number of decoded characters. `sent`: the number of those that are in pieces.
    decoded: usize,
    sent: usize,
    /// Tokens that are not in a piece yet: index, id and offset.
    waiting: VecDeque<(usize, TokenId, usize)>,
    /// Tokens in pieces that were not taken yet: index, id and offset.
    listed: VecDeque<(usize, TokenId, usize)>,
}

impl Ledger {
    /// Ledger with these log probabilities of an answer, whose tokens must be noted again. `top`: number of most likely
    /// tokens at each position.
    pub fn new(top: Option<u8>, all: Vec<Logprobs>) -> Self {
        Self {
            all,
            top: top.unwrap_or_default().into(),
            ..Self::default()
        }
    }

    pub fn all(&self) -> &[Logprobs] {
        &self.all
    }

    /// Sets the length of the echoed prompt.
    pub fn echo(&mut self, prompt_len: usize) {
        self.prompt_len = prompt_len;
    }

    pub fn prompt_len(&self) -> usize {
        self.prompt_len
    }

    pub fn learn_prompt(&mut self, logprobs: Arc<Vec<Logprobs>>) {
        self.prompt = logprobs;
    }

    /// True if tokens without text are listed as well.
    pub fn lists_all(&self) -> bool {
        self.prompt_len > 0
    }

    pub fn learn(&mut self, logprobs: Logprobs) {
        self.all.push(logprobs);
    }

    /// Notes the next token, which completed the text `decoded`. `begins`: number of characters of `decoded` before the
    /// one in which the token's own text begins; `None` for a token that is not listed.
    pub fn note(
        &mut self,
        (index, token): (usize, TokenId),
        text: &Arc<Text>,
        begins: Option<usize>,
        decoded: &str,
    ) {
        if let Some(before) = begins {
            let offset = self.decoded + before;
            self.waiting.push_back((index, token, offset));
        }
        self.decoded += decoded.chars().count();
        self.text.get_or_insert_with(|| Arc::clone(text));
    }

    /// Assigns waiting tokens to a new piece. Returns the number of tokens listed with it.
    pub fn assign(&mut self, piece: &str) -> usize {
        self.sent += piece.chars().count();
        let before = self.listed.len();
        let sent = self.sent;
        let begun = self.waiting.iter().take_while(|(_, _, at)| *at < sent);
        let begun = begun.count();
        self.listed.extend(self.waiting.drain(..begun));
        self.listed.len() - before
    }

    /// Variant of [`assign`](Self::assign) for the last piece. If tokens without text are listed, all waiting tokens belong
    /// to it.
    pub fn assign_last(&mut self, piece: &str) -> usize {
        let begun = self.assign(piece);
        if !self.lists_all() {
            return begun;
        }
        let others = self.waiting.len();
        self.listed.append(&mut self.waiting);
        begun + others
    }

    /// Takes the oldest `count` tokens of pieces that were not taken yet.
    pub fn take(&mut self, count: usize) -> Option<Box<Listed>> {
        let taken: Vec<_> = self.listed.drain(..count).collect();
        let tokens = taken.into_iter().map(|(index, token, offset)| ListedToken {
            token,
            offset,
            logprobs: self.of(index),
        });
        let tokens = tokens.collect();
        let text = Arc::clone(self.text.as_ref()?);
        Some(Box::new(Listed { tokens, text }))
    }

    fn of(&self, index: usize) -> Option<Logprobs> {
        let known = match index.checked_sub(self.prompt_len) {
            Some(generated) => self.all.get(generated)?,
            None => self.prompt.get(index.checked_sub(1)?)?,
        };
        Some(Logprobs {
            top: known.top[..known.top.len().min(self.top)].to_vec(),
            ..*known
        })
    }
}

/// Checks the reported log probabilities of a token.
///
/// # Errors
/// [`Violation::Logprobs`] if they were not requested, are missing or incomplete, or are impossible.
pub fn check(
    request: RequestId,
    wanted: Option<u8>,
    said: Option<&Logprobs>,
    vocabulary: usize,
) -> Result<(), Violation> {
    let is_right = match (wanted, said) {
        (None, None) => true,
        (Some(top), Some(said)) => {
            let is_likely =
                |(token, logprob): &(TokenId, f32)| token.index() < vocabulary && *logprob <= 0.0;
            said.of_token <= 0.0
                && (1..=vocabulary).contains(&(said.rank as usize))
                && said.top.len() == usize::from(top).min(vocabulary)
                && said.top.iter().all(is_likely)
        }
        _ => false,
    };
    is_right.then_some(()).ok_or(Violation::Logprobs(request))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{NewRequest, StreamEvent};
    use crate::testing::{EOS, Journal, SEAT, params, read, request, step};
    use worker_orcd_ipc::{DrawnLogprobs, FinishReason, StepReport};

    /// Report of a step of one request, with log probabilities that encode the token's index.
    fn report_of(id: RequestId, first: u32, tokens: &[u32], top: u32) -> StepReport {
        let drawn: Vec<_> = (first..)
            .zip(tokens)
            .map(|(at, it)| (id, at, *it))
            .collect();
        let logprobs = drawn.iter().map(|&(request, index, _)| DrawnLogprobs {
            request,
            index,
            logprobs: Logprobs {
                of_token: -(index as f32),
                rank: 1,
                top: (0..top).map(|id| (TokenId(id), -1.0)).collect(),
            },
        });
        StepReport {
            logprobs: logprobs.collect(),
            ..step(&drawn, &[])
        }
    }

    fn wanting(stop: &[&str]) -> NewRequest {
        NewRequest {
            params: params(|it| it.logprobs = Some(2)),
            stop: stop.iter().map(|stop| (*stop).to_owned()).collect(),
            ..request("job")
        }
    }

    /// Text of each piece, and index and offset of the tokens listed with it.
    fn listed(events: &[StreamEvent]) -> Vec<(&str, Vec<(u32, usize)>)> {
        let pieces = events.iter().filter_map(|event| match event {
            StreamEvent::Text(piece) => Some(piece),
            _ => None,
        });
        let of = |it: &ListedToken| {
            let logprobs = it.logprobs.as_ref().expect("a drawn token");
            (-logprobs.of_token as u32, it.offset)
        };
        let pieces = pieces.map(|piece| {
            let listed = piece.logprobs.as_ref().expect("a list of tokens");
            (&*piece.text, listed.tokens.iter().map(of).collect())
        });
        pieces.collect()
    }

    fn answer(stop: &[&str], tokens: &[u32]) -> Vec<StreamEvent> {
        answer_to(wanting(stop), tokens)
    }

    fn answer_to(new: NewRequest, tokens: &[u32]) -> Vec<StreamEvent> {
        let mut journal = Journal::serving();
        let (id, mut stream) = journal.submit(new);
        for (index, token) in (0..).zip(tokens) {
            let report = report_of(id, index, &[*token], 2);
            // The answer ends at a stop string, so later reports may fail.
            drop(journal.requests.step(SEAT, &report, journal.now));
        }
        let end = step(&[], &[(id, FinishReason::MaxTokens)]);
        drop(journal.requests.step(SEAT, &end, journal.now));
        read(&mut stream).0
    }

    #[test]
    fn a_token_is_listed_with_the_piece_that_its_text_begins() {
        // Tokens: a, é in two halves, b, end of generation.
        let events = answer(&[], &[0, 2, 3, 1, 4]);
        let expected = [
            ("a", vec![(0, 0)]),
            ("é", vec![(1, 1), (2, 1)]),
            ("b", vec![(3, 2)]),
        ];
        assert_eq!(listed(&events), expected);
    }

    #[test]
    fn half_a_character_that_stays_one_is_listed_and_what_follows_has_its_own_place() {
        let events = answer(&[], &[2, 0, 2]);
        let expected = [
            ("\u{fffd}a", vec![(0, 0), (1, 1)]),
            ("\u{fffd}", vec![(2, 2)]),
        ];
        assert_eq!(listed(&events), expected);
        // The half character is in the answer; the stop string after it is not.
        let events = answer(&["a"], &[2, 0]);
        assert_eq!(listed(&events), [("\u{fffd}", vec![(0, 0)])]);
    }

    #[test]
    fn a_byte_that_cannot_go_on_with_a_character_has_its_own_place() {
        // Tokens: the first byte of a character, and a byte that cannot follow it.
        let events = answer(&[], &[5, 6, 0]);
        let expected = [
            ("\u{fffd}\u{fffd}", vec![(0, 0), (1, 1)]),
            ("a", vec![(2, 2)]),
        ];
        assert_eq!(listed(&events), expected);
    }

    #[test]
    fn a_special_token_that_is_text_is_listed_with_it() {
        let shown = NewRequest {
            shown: vec![EOS],
            ..wanting(&[])
        };
        let expected = [("a", vec![(0, 0)]), ("<eos>", vec![(1, 1)])];
        assert_eq!(listed(&answer_to(shown, &[0, EOS.0])), expected);
    }

    #[test]
    fn tokens_of_a_stop_string_are_not_listed_and_false_starts_come_late() {
        let events = answer(&["ab"], &[1, 0, 0, 1, 1]);
        let expected = [("b", vec![(0, 0)]), ("a", vec![(1, 1)])];
        assert_eq!(listed(&events), expected);
        let events = answer(&["abab"], &[0, 1, 0]);
        assert_eq!(listed(&events), [("aba", vec![(0, 0), (1, 1), (2, 2)])]);
    }

    #[test]
    fn a_child_that_tells_too_little_or_too_much_is_not_believed() {
        let wrong_number = |mut report: StepReport, number: f32| {
            report.logprobs[0].logprobs.of_token = number;
            report
        };
        let id = RequestId(0);
        let of_nobody = StepReport {
            logprobs: report_of(id, 1, &[0], 2).logprobs,
            ..report_of(id, 0, &[0], 2)
        };
        for (wants, report) in [
            (true, step(&[(id, 0, 0)], &[])),
            (true, report_of(id, 0, &[0], 1)),
            (true, report_of(id, 0, &[0], 3)),
            (true, of_nobody),
            (true, wrong_number(report_of(id, 0, &[0], 2), f32::NAN)),
            (true, wrong_number(report_of(id, 0, &[0], 2), 0.5)),
            (false, report_of(id, 0, &[0], 2)),
        ] {
            let mut journal = Journal::serving();
            let logprobs = wants.then_some(2);
            let (own, _stream) = journal.submit(NewRequest {
                params: params(|it| it.logprobs = logprobs),
                ..wanting(&[])
            });
            let report = named(report, own);
            let found = journal.requests.step(SEAT, &report, journal.now);
            assert_eq!(found, Err(Violation::Logprobs(own)), "{report:?}");
        }
    }

    /// Replaces the request id in a report.
    fn named(mut report: StepReport, id: RequestId) -> StepReport {
        report.drawn.iter_mut().for_each(|it| it.request = id);
        report.logprobs.iter_mut().for_each(|it| it.request = id);
        report
    }

    #[test]
    fn what_the_reader_has_is_skipped_with_its_tokens() {
        use crate::progress::Skip;
        let mut journal = Journal::serving();
        let (id, mut stream) = journal.submit(wanting(&[]));
        stream.mark_delivered(1);
        let report = report_of(id, 0, &[0, 1, 0], 2);
        journal.requests.step(SEAT, &report, journal.now).unwrap();
        assert_eq!(stream.position().delivered(), [Skip::Pieces(1)]);
        let (events, _) = read(&mut stream);
        assert_eq!(listed(&events), [("b", vec![(1, 1)]), ("a", vec![(2, 2)])]);
    }
}
