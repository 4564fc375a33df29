//! Echo of the prompt at the beginning of an answer, and log probabilities of the prompt. The echo is one piece, delivered
//! once all log probabilities of the prompt that are requested are known.

use super::Progress;
use crate::record::NewRequest;
use std::sync::Arc;
use worker_orcd_ipc::{Logprobs, TokenId};
use worker_orcd_text::{Detokenizer, Text};

#[derive(Debug)]
pub(super) struct Echo {
    /// Number of bytes that the tokenizer put before the prompt. They are not echoed.
    hidden: usize,
    is_told: bool,
}

/// Log probabilities of the prompt.
#[derive(Debug)]
pub(super) struct Scores {
    prompt_len: usize,
    known: Arc<Vec<Logprobs>>,
    /// `Some` once all are known.
    text: Option<Arc<Text>>,
}

/// Log probabilities of all tokens of a prompt but the first, and the vocabulary.
#[derive(Debug, Clone)]
pub struct ScoredPrompt {
    pub logprobs: Arc<Vec<Logprobs>>,
    pub text: Arc<Text>,
}

impl Progress {
    /// Enables the echo and the log probabilities of the prompt, if they are requested. `known`: log probabilities of
    /// prompt tokens from an earlier supervisor.
    pub fn with_prompt(mut self, request: &NewRequest, known: Vec<Logprobs>) -> Self {
        let prompt_len = request.prompt.len();
        self.scores = request.prompt_top().map(|_| Scores {
            prompt_len,
            known: Arc::new(known),
            text: None,
        });
        self.echo = request.echo.map(|hidden| Echo {
            hidden: hidden as usize,
            is_told: false,
        });
        if let (Some(_), Some(ledger)) = (&self.echo, &mut self.ledger) {
            ledger.echo(prompt_len);
        }
        self
    }

    /// Number of prompt tokens with known log probabilities. `None` if they are not requested.
    pub fn scores_sent(&self) -> Option<u32> {
        let scores = self.scores.as_ref();
        scores.map(|scores| scores.known.len() as u32)
    }

    /// Number of prompt tokens with requested but unknown log probabilities.
    pub fn scores_missing(&self) -> usize {
        let missing = |it: &Scores| it.prompt_len.saturating_sub(1 + it.known.len());
        self.scores.as_ref().map_or(0, missing)
    }

    pub fn prompt_logprobs(&self) -> &[Logprobs] {
        self.scores.as_ref().map_or(&[], |scores| &scores.known)
    }

    /// All log probabilities of the prompt. `None` until they are known, and if they are not requested.
    pub fn scored_prompt(&self) -> Option<ScoredPrompt> {
        let scores = self.scores.as_ref()?;
        Some(ScoredPrompt {
            logprobs: Arc::clone(&scores.known),
            text: scores.text.clone()?,
        })
    }

    /// Appends log probabilities of the next prompt tokens.
    pub fn score(&mut self, logprobs: &[Logprobs]) {
        self.recovering = false;
        if let Some(scores) = &mut self.scores {
            Arc::make_mut(&mut scores.known).extend_from_slice(logprobs);
        }
    }

    /// Once all log probabilities of the prompt that are requested are known: delivers the prompt, if an echo is
    /// requested.
    pub fn deliver_prompt(&mut self, prompt: &[TokenId], text: &Arc<Text>) {
        if self.scores_missing() > 0 {
            return;
        }
        if let Some(scores) = &mut self.scores {
            scores.text.get_or_insert_with(|| Arc::clone(text));
        }
        let Some(echo) = self.echo.as_mut().filter(|echo| !echo.is_told) else {
            return;
        };
        echo.is_told = true;
        if let (Some(ledger), Some(scores)) = (&mut self.ledger, &self.scores) {
            ledger.learn_prompt(Arc::clone(&scores.known));
        }
        let mut hidden = echo.hidden;
        let (mut detokenizer, mut decoded) = (Detokenizer::default(), String::new());
        let before = self.unread.text.len();
        for (index, &token) in prompt.iter().enumerate() {
            let bytes = text.bytes_written(token);
            let (skipped, bytes) = bytes.split_at(hidden.min(bytes.len()));
            hidden -= skipped.len();
            let begins = detokenizer.characters_before(bytes);
            decoded.clear();
            detokenizer.push(bytes, &mut decoded);
            if index + 1 == prompt.len() {
                detokenizer.finish(&mut decoded);
            }
            if let Some(ledger) = &mut self.ledger {
                ledger.note((index, token), text, Some(begins), &decoded);
            }
            self.unread.text.push_str(&decoded);
        }
        let piece = &self.unread.text[before..];
        let ledger = self.ledger.as_mut();
        let listed = ledger.map_or(0, |ledger| ledger.assign_last(piece));
        self.unread.cut_prompt(before, listed);
    }
}

#[cfg(test)]
mod tests {
    use crate::record::{NewRequest, StreamEvent};
    use crate::testing::{EOS, Journal, SEAT, params, read, request, step};
    use worker_orcd_ipc::{FinishReason, Logprobs, RequestId, Scored, StepReport, TokenId};

    fn echoing(prompt: &[u32], hidden: u32, logprobs: Option<u8>) -> NewRequest {
        NewRequest {
            prompt: prompt.iter().copied().map(TokenId).collect(),
            echo: Some(hidden),
            params: params(|it| it.logprobs = logprobs),
            ..request("job")
        }
    }

    fn of(number: u32) -> Logprobs {
        Logprobs {
            of_token: -(number as f32),
            rank: 1,
            top: vec![],
        }
    }

    fn scored(request: RequestId, first: u32, count: u32) -> StepReport {
        StepReport {
            scored: vec![Scored {
                request,
                first,
                logprobs: (first..first + count).map(of).collect(),
            }],
            ..StepReport::default()
        }
    }

    /// Offset and log probability of each token.
    type Listed = Vec<(usize, Option<f32>)>;

    /// Text and tokens of each piece.
    fn listed(events: &[StreamEvent]) -> Vec<(&str, Listed)> {
        let pieces = events.iter().filter_map(|event| match event {
            StreamEvent::Text(piece) => Some(piece),
            _ => None,
        });
        let tokens = pieces.map(|piece| {
            let tokens = piece.logprobs.iter().flat_map(|it| &it.tokens);
            let of = tokens.map(|it| (it.offset, it.logprobs.as_ref().map(|it| it.of_token)));
            (&*piece.text, of.collect())
        });
        tokens.collect()
    }

    #[test]
    fn the_prompt_is_told_at_once_where_nothing_is_to_be_known_of_it() {
        // An incomplete character at the end stays incomplete, and a special token appears as its text.
        for (hidden, prompt, expected) in [
            (0, &[0, EOS.0, 1, 2][..], "a<eos>b\u{fffd}"),
            (5, &[EOS.0, 1], "b"),
            (6, &[EOS.0, 1, 2, 3], "\u{e9}"),
        ] {
            let mut journal = Journal::serving();
            let (id, mut stream) = journal.submit(echoing(prompt, hidden, None));
            let (events, _) = read(&mut stream);
            assert_eq!(listed(&events), [(expected, vec![])]);
            let end = step(&[(id, 0, 1)], &[(id, FinishReason::MaxTokens)]);
            journal.requests.step(SEAT, &end, journal.now).unwrap();
            let (events, is_over) = read(&mut stream);
            assert_eq!(listed(&events), [("b", vec![])]);
            assert!(is_over);
        }
    }

    #[test]
    fn every_token_is_listed_once_all_of_the_prompt_is_known() {
        let mut journal = Journal::serving();
        let prompt = [EOS.0, 0, 2, 3, 1];
        let (id, mut stream) = journal.submit(echoing(&prompt, 5, Some(0)));
        for report in [scored(id, 0, 1), scored(id, 1, 2)] {
            journal.requests.step(SEAT, &report, journal.now).unwrap();
            assert_eq!(read(&mut stream).0, []);
        }
        let report = scored(id, 3, 1);
        journal.requests.step(SEAT, &report, journal.now).unwrap();
        let offsets = [0, 0, 1, 1, 2];
        let logprobs = [None, Some(-0.0), Some(-1.0), Some(-2.0), Some(-3.0)];
        let tokens: Vec<_> = offsets.into_iter().zip(logprobs).collect();
        let (events, _) = read(&mut stream);
        assert_eq!(listed(&events), [("a\u{e9}b", tokens)]);
        // The end-of-generation token has no text, and is listed.
        let mut report = step(&[(id, 0, EOS.0)], &[(id, FinishReason::EndOfSequence)]);
        report.logprobs = vec![worker_orcd_ipc::DrawnLogprobs {
            request: id,
            index: 0,
            logprobs: of(9),
        }];
        journal.requests.step(SEAT, &report, journal.now).unwrap();
        let (events, is_over) = read(&mut stream);
        assert_eq!(listed(&events), [("", vec![(3, Some(-9.0))])]);
        assert!(is_over);
    }
}
