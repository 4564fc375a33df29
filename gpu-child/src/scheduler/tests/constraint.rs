//! Grammars that are played: what is allowed follows from the tokens generated so far, and each mask comes
//! some turns after it was wanted.

use super::*;
use worker_orcd_grammar::{GrammarError, Mask};
use worker_orcd_ipc::Grammar;

/// Whoever computes masks.
#[derive(Debug, Default)]
pub(super) struct Play {
    /// Turns between a wish and its answer.
    pub(super) lag: usize,
    turn: usize,
    /// What each matcher has accepted.
    matchers: BTreeMap<u64, Vec<TokenId>>,
    coming: VecDeque<(usize, u64)>,
    /// Tokens behind which a matcher gives up.
    gives_up_behind: Option<usize>,
}

impl Play {
    pub(super) fn hear(&mut self, scheduler: &mut Scheduler) {
        for wish in scheduler.take_wishes() {
            let ticket = match wish {
                Wish::Begin {
                    ticket, generated, ..
                } => {
                    assert_eq!(self.matchers.insert(ticket, generated), None);
                    ticket
                }
                Wish::Next { ticket, token } => {
                    let history = self.matchers.get_mut(&ticket);
                    let history = history.expect("a matcher that was not forgotten");
                    assert!(allowed(history).allows(token), "{token} was not allowed");
                    history.push(token);
                    ticket
                }
                Wish::Forget { ticket } => {
                    self.matchers.remove(&ticket).expect("forgotten once");
                    continue;
                }
            };
            self.coming.push_back((self.turn + self.lag, ticket));
        }
    }

    pub(super) fn answer(&mut self, scheduler: &mut Scheduler) {
        self.turn += 1;
        while let Some((at, ticket)) = self.coming.front().copied()
            && at <= self.turn
        {
            self.coming.pop_front();
            // That of a forgotten matcher comes too, and means nothing.
            let history = self.matchers.get(&ticket).map_or(&[][..], |it| it);
            let answer = match self.gives_up_behind {
                Some(tokens) if history.len() >= tokens => Err(GrammarError::new("no more")),
                _ => Ok(allowed(history)),
            };
            scheduler.hear_mask(ticket, answer);
        }
    }

    pub(super) fn is_at_work(&self) -> bool {
        !self.coming.is_empty()
    }

    pub(super) fn matchers(&self) -> usize {
        self.matchers.len()
    }
}

/// Some of the vocabulary, by what was generated.
fn allowed(history: &[TokenId]) -> Mask {
    let sum = history.iter().map(|token| token.0).sum::<u32>() + history.len() as u32;
    let tokens = (0..VOCAB).filter(|token| (token * 7 + sum).is_multiple_of(5));
    Mask::of(tokens.map(TokenId), VOCAB as usize)
}

fn constrained(request: u64, prompt: &[u32], max_tokens: u32) -> Submission {
    Submission {
        grammar: Some(Box::new(Grammar::Regex(String::new()))),
        ..submission(request, prompt, max_tokens)
    }
}

#[test]
fn only_what_is_allowed_is_drawn_and_a_history_goes_on_where_it_was() {
    let whole = alone(&constrained(1, &[1, 2, 3], 20), 16);
    assert_eq!(whole.tokens.len(), 20);
    for known in 0..20 {
        let rest = Submission {
            generated: whole.tokens[..known].to_vec(),
            ..constrained(1, &[1, 2, 3], 20)
        };
        assert_eq!(alone(&rest, 16).tokens, whole.tokens[known..]);
    }
    let free = alone(&submission(1, &[1, 2, 3], 20), 16);
    assert_ne!(free.tokens, whole.tokens, "the grammar decides nothing");
}

#[test]
fn a_sequence_sits_out_without_its_mask_and_its_neighbours_do_not() {
    let mut bench = Bench::new(limits(), 16, true);
    bench.play.lag = 30;
    bench.submit(constrained(1, &[1, 2, 3, 4, 5, 6], 4));
    bench.submit(submission(2, &[9, 8], 20));
    for _ in 0..25 {
        bench.turn(5);
    }
    assert_eq!(bench.outcome(2), &alone(&submission(2, &[9, 8], 20), 16));
    assert!(!bench.outcomes.contains_key(&RequestId(1)));
    // Five of the prompt's six tokens are computed, in two pages.
    assert_eq!(bench.scheduler.load().kv_used_tokens, 8);
    assert!(bench.scheduler.awaits_masks());
    let mut steps = 0;
    while bench
        .outcomes
        .get(&RequestId(1))
        .is_none_or(|it| it.tokens.is_empty())
    {
        steps += u32::from(bench.turn(5));
    }
    assert!(steps <= 30);
    let work: u32 = bench
        .scheduler
        .work()
        .iter()
        .map(|it| it.tokens.len() as u32)
        .sum();
    assert_eq!(work, 0, "it waits for the next mask");
    bench.run();
    assert_eq!(
        bench.outcome(1),
        &alone(&constrained(1, &[1, 2, 3, 4, 5, 6], 4), 16)
    );
}

#[test]
fn a_grammar_that_gives_up_ends_its_request_with_the_reason_and_no_other() {
    let mut bench = Bench::new(limits(), 16, true);
    bench.play.gives_up_behind = Some(3);
    bench.submit(constrained(1, &[1, 2, 3], 9));
    bench.submit(constrained(2, &[1, 2, 3], 3));
    bench.submit(submission(3, &[1, 2, 3], 9));
    bench.run();
    let FinishReason::GrammarFailed { message } = bench.only_reason(1) else {
        panic!("{:?}", bench.outcome(1));
    };
    assert!(message.contains("no more"), "{message}");
    let whole = alone(&constrained(1, &[1, 2, 3], 9), 16);
    assert_eq!(bench.outcome(1).tokens, whole.tokens[..3]);
    assert_eq!(
        bench.only_reason(2),
        &FinishReason::MaxTokens,
        "it needs no fourth mask"
    );
    assert_eq!(bench.outcome(3), &alone(&submission(3, &[1, 2, 3], 9), 16));
}

#[test]
fn a_queue_has_no_matchers_and_a_cancelled_request_keeps_none() {
    let mut bench = Bench::new(limits(), 32, true);
    for request in 0..20 {
        bench.submit(constrained(request, &[1, 2, 3], 9));
    }
    for _ in 0..3 {
        bench.turn(5);
        assert!((1..=4).contains(&bench.play.matchers()));
    }
    for request in 0..20 {
        bench.scheduler.cancel(RequestId(request));
    }
    bench.run();
}

#[test]
fn a_mask_that_was_late_once_is_not_waited_for_again() {
    let mut bench = Bench::new(limits(), 16, true);
    bench.submit(constrained(1, &[1, 2, 3], 9));
    assert!(!bench.scheduler.a_mask_is_due());
    bench.turn(5);
    assert!(!bench.scheduler.a_mask_is_due(), "to compile may take long");
    bench.turn(5);
    bench.turn(5);
    assert!(bench.scheduler.a_mask_is_due());
    bench.scheduler.go_without_masks();
    assert!(!bench.scheduler.a_mask_is_due() && bench.scheduler.awaits_masks());
    bench.turn(5);
    assert!(bench.scheduler.a_mask_is_due(), "the next one is another");
}
