//! Simulated grammars: the allowed tokens follow from the tokens generated so far, and each mask arrives some turns
//! after its request.

use super::*;
use worker_orcd_grammar::{GrammarError, Mask};
use worker_orcd_ipc::Grammar;

/// Simulated grammar threads.
#[derive(Debug, Default)]
pub(super) struct Play {
    /// Turns between a request and its answer.
    pub(super) lag: usize,
    turn: usize,
    /// Accepted tokens of each matcher.
    matchers: BTreeMap<u64, Vec<TokenId>>,
    coming: VecDeque<Coming>,
    /// Masks behind drafts, sent in a turn at most.
    pub(super) drafted_at_once: usize,
    drafted: BTreeMap<u64, VecDeque<Option<Mask>>>,
    /// Returns forced tokens.
    pub(super) forces: bool,
    /// Number of forced tokens.
    pub(super) taken: usize,
    /// Number of tokens after which a matcher fails.
    gives_up_behind: Option<usize>,
}

#[derive(Debug)]
struct Coming {
    turn: usize,
    ticket: u64,
    most_forced: usize,
    drafts: Vec<TokenId>,
}

impl Play {
    pub(super) fn hear(&mut self, scheduler: &mut Scheduler) {
        for mask_request in scheduler.take_mask_requests() {
            let (ticket, most_forced, drafts) = match mask_request {
                MaskRequest::Begin {
                    ticket,
                    generated,
                    most_forced,
                    ..
                } => {
                    assert_eq!(self.matchers.insert(ticket, generated), None);
                    (ticket, most_forced, Vec::new())
                }
                MaskRequest::Next {
                    ticket,
                    tokens,
                    most_forced,
                    drafts,
                } => {
                    assert!(!tokens.is_empty());
                    let history = self.matchers.get_mut(&ticket);
                    let history = history.expect("a matcher that was not forgotten");
                    for token in tokens {
                        assert!(allowed(history).allows(token), "{token} was not allowed");
                        history.push(token);
                    }
                    self.drafted.remove(&ticket);
                    (ticket, most_forced, drafts)
                }
                MaskRequest::Forget { ticket } => {
                    self.matchers.remove(&ticket).expect("forgotten once");
                    self.drafted.remove(&ticket);
                    continue;
                }
            };
            self.coming.push_back(Coming {
                turn: self.turn + self.lag,
                ticket,
                most_forced,
                drafts,
            });
        }
    }

    pub(super) fn answer(&mut self, scheduler: &mut Scheduler) {
        self.turn += 1;
        while let Some(coming) = self.coming.pop_front_if(|it| it.turn <= self.turn) {
            let Coming {
                ticket,
                most_forced,
                drafts,
                ..
            } = coming;
            let (mut nobodys, mut forced) = (Vec::new(), Vec::new());
            // That of a dropped matcher arrives too, and has no effect.
            let history = self.matchers.get_mut(&ticket).unwrap_or(&mut nobodys);
            let answer = loop {
                let mask = match self.gives_up_behind {
                    Some(tokens) if history.len() >= tokens => Err(GrammarError::new("no more")),
                    _ => Ok(allowed(history)),
                };
                let may_force = self.forces && forced.len() < most_forced;
                match mask.as_ref().ok().and_then(Mask::only) {
                    Some(token) if may_force => {
                        forced.push(token);
                        history.push(token);
                    }
                    _ => break mask,
                }
            };
            self.taken += forced.len();
            if let Some(drafts) = drafts.strip_prefix(&forced[..]) {
                let masks = behind(history.clone(), drafts);
                self.drafted.insert(ticket, masks);
            }
            scheduler.hear_mask(ticket, &forced, answer);
        }
        for (ticket, masks) in &mut self.drafted {
            let now = self.drafted_at_once.min(masks.len());
            for mask in masks.drain(..now) {
                scheduler.hear_drafted(*ticket, mask);
            }
        }
    }

    pub(super) fn is_at_work(&self) -> bool {
        !self.coming.is_empty()
    }

    pub(super) fn matchers(&self) -> usize {
        self.matchers.len()
    }
}

/// Masks behind drafts; `None` behind the first one that is not allowed.
fn behind(mut history: Vec<TokenId>, drafts: &[TokenId]) -> VecDeque<Option<Mask>> {
    let mut masks = VecDeque::new();
    for draft in drafts {
        let is_allowed = allowed(&history).allows(*draft);
        history.push(*draft);
        masks.push_back(is_allowed.then(|| allowed(&history)));
        if !is_allowed {
            break;
        }
    }
    masks
}

/// A subset of the vocabulary, by the generated tokens.
fn allowed(history: &[TokenId]) -> Mask {
    let sum = history.iter().map(|token| token.0).sum::<u32>() + history.len() as u32;
    // Often there is no choice, some times in a row.
    if sum % 7 < 4 {
        return Mask::of([TokenId(8 + sum % 13)], VOCAB as usize);
    }
    let tokens = (0..VOCAB).filter(|token| (token * 7 + sum).is_multiple_of(5));
    Mask::of(tokens.map(TokenId), VOCAB as usize)
}

pub(super) fn constrained(request: u64, prompt: &[u32], max_tokens: u32) -> Submission {
    with(submission(request, prompt, max_tokens), |it| {
        it.grammar = Some(Arc::new(Grammar::Regex(String::new())));
    })
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

/// The step loop waits for masks at the sampling of a step, and not before it.
#[test]
fn a_draw_waits_for_its_mask_and_a_late_one_runs_its_token_again() {
    let mut bench = Bench::new(limits(), 16, true);
    bench.submit(constrained(1, &[1, 2, 3], 9));
    bench.submit(submission(2, &[4, 5], 9));
    while bench
        .outcomes
        .get(&RequestId(1))
        .is_none_or(|it| it.tokens.len() < 3)
    {
        bench.turn(5);
    }
    assert!(bench.scheduler.plan(|_| 5));
    let run_of = |bench: &Bench| {
        let work = bench.scheduler.work();
        let mut its = work.iter().filter(|it| it.request == RequestId(1));
        its.next()
            .map(|it| (it.first_position, it.sample.is_some()))
    };
    let run = run_of(&bench);
    assert_eq!(run, Some((5, true)), "it runs before its mask is here");
    bench.device.begin(&bench.scheduler.work());
    bench.scheduler.launched();
    assert!(bench.scheduler.draws_wait() && bench.scheduler.others_draw());
    bench.draw();
    assert!(!bench.scheduler.draws_wait() && bench.scheduler.awaits_masks());
    let drawn = bench.answers.pop_front().unwrap();
    let whose: Vec<_> = drawn.iter().map(|it| it.request.0).collect();
    assert_eq!(whose, [2], "the other one does not wait");
    let report = bench.scheduler.complete(9, drawn).unwrap();
    bench.record(report);
    assert!(bench.scheduler.plan(|_| 5));
    assert_eq!(run_of(&bench), None, "it waits for what was late");
    bench.play.hear(&mut bench.scheduler);
    bench.play.answer(&mut bench.scheduler);
    assert!(bench.scheduler.plan(|_| 5));
    assert_eq!(run_of(&bench), run);
    bench.run();
    for (request, submission) in [
        (1, constrained(1, &[1, 2, 3], 9)),
        (2, submission(2, &[4, 5], 9)),
    ] {
        assert_eq!(bench.outcome(request), &alone(&submission, 16));
    }
}

/// A sequence without a grammar beside them waits for their rows, so these must cost less than a token.
#[test]
fn forced_tokens_are_taken_without_a_draw_and_run_in_one_step() {
    let request = constrained(1, &[1, 2, 3], 30);
    let whole = alone(&request, 16);
    let mut dear = StepSeconds::FREE;
    dear.waited.iter_mut().for_each(|it| it.seconds = it.rows);
    let cases = [(false, dear), (true, StepSeconds::FREE), (true, dear)];
    let steps = cases.map(|(has_neighbour, seconds)| {
        let mut bench = Bench::new(limits(), 16, true);
        bench.scheduler.set_step_seconds(seconds);
        bench.play.forces = true;
        bench.submit(request.clone());
        if has_neighbour {
            bench.submit(submission(2, &[4, 5], 40));
        }
        while bench
            .outcomes
            .get(&RequestId(1))
            .is_none_or(|it| it.reasons.is_empty())
        {
            bench.turn(5);
        }
        assert_eq!(bench.outcome(1), &whole);
        assert!(bench.play.taken > 5, "{}", bench.play.taken);
        let rows = bench.most_rows;
        let is_cheap = seconds == StepSeconds::FREE;
        assert_eq!(rows > 1, is_cheap || !has_neighbour, "{rows} rows");
        if has_neighbour {
            let tokens = bench.outcome(2).tokens.len() as u64;
            assert_eq!(tokens, bench.step, "a token in each step");
        }
        let steps = bench.step;
        bench.run();
        steps
    });
    assert!(steps[1] + 5 < steps[2], "{steps:?}");
}

/// So many sequences that a step has no room for drafts: their rows are not sampled.
#[test]
fn forced_tokens_of_many_sequences_run_in_steps_of_many_rows() {
    let limits = Limits {
        max_running: 40,
        max_batch_tokens: 200,
        ..limits()
    };
    let mut bench = Bench::new(limits, 400, true);
    bench.play.forces = true;
    for request in 0..40 {
        bench.submit(constrained(request, &[1, 2, 3], 30));
    }
    bench.run();
    assert!(bench.most_rows > 1, "{} rows", bench.most_rows);
    for request in 0..40 {
        let whole = alone(&constrained(request, &[1, 2, 3], 30), 16);
        assert_eq!(bench.outcome(request), &whole);
    }
}

#[test]
fn nothing_is_forced_where_logits_are_looked_at() {
    for (logprobs, traces_logits) in [(Some(0), false), (None, true)] {
        let limits = Limits {
            traces_logits,
            ..limits()
        };
        let mut bench = Bench::new(limits, 16, true);
        bench.play.forces = true;
        let submission = constrained(1, &[1, 2, 3], 30);
        bench.submit(with(submission, |it| it.logprobs = logprobs));
        bench.run();
        assert_eq!(bench.play.taken, 0);
    }
}
