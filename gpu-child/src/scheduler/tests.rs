//! Tests with a device that reads its page contents only ([`paged_device`]).

mod adoption;
mod biases;
mod constraint;
mod draft_model;
mod drafts;
mod embeddings;
mod fairness;
mod paged_device;
mod reasoning_budget;
mod scoring;
mod token_rules;
mod windows;

use super::*;
use crate::device::{KvGeometry, KvGroups, PageId, SampleWork, TO_BE_DRAWN};
use constraint::Play;
use paged_device::PagedDevice;
use proptest::prelude::*;
use std::collections::{BTreeMap, HashSet};
use worker_orcd_ipc::{ClientId, GenerationParams, Grammar, Logprobs, Sampling};

const VOCAB: u32 = 50;
const EOG: TokenId = TokenId(7);
const PAGE_TOKENS: u32 = 4;

#[derive(Debug, Clone, Default, PartialEq)]
struct Outcome {
    tokens: Vec<TokenId>,
    first_index: Option<u32>,
    reasons: Vec<FinishReason>,
}

struct Bench {
    scheduler: Scheduler,
    device: PagedDevice,
    /// The device of a draft model.
    draft: Option<PagedDevice>,
    /// Tokens of a sequence in a turn that the draft model follows from afar.
    draft_chunk: usize,
    /// Rows that the draft model has computed.
    draft_rows: usize,
    outcomes: BTreeMap<RequestId, Outcome>,
    /// Reported drafts, and those that became tokens.
    drafted: [u64; 2],
    step: u64,
    /// Rows of a sequence that decodes in a step, at most.
    most_rows: usize,
    /// Launches a step before the preceding one has ended, and keeps its unreported answers.
    is_ahead: bool,
    answers: VecDeque<Vec<Drawn>>,
    /// The last step is not sampled yet.
    is_open: bool,
    play: Play,
    /// Reported log probabilities of each prompt.
    scored: BTreeMap<RequestId, Vec<Logprobs>>,
}

pub(super) fn limits() -> Limits {
    Limits {
        max_running: 4,
        max_sequence_tokens: 64,
        max_batch_tokens: 16,
        vocab_size: VOCAB,
        speculates: true,
        traces_logits: false,
        end_of_generation: HashSet::from([EOG]),
        suppressed: Vec::new(),
        words: std::sync::Arc::default(),
        rank_head: Some(embeddings::rank_head()),
    }
}

impl Bench {
    fn new(limits: Limits, pages: u32, shares_prefixes: bool) -> Self {
        Self::with_groups(limits, pages, shares_prefixes, KvGroups::ONE)
    }

    fn with_groups(limits: Limits, pages: u32, shares_prefixes: bool, groups: KvGroups) -> Self {
        let geometry = KvGeometry {
            page_tokens: PAGE_TOKENS,
            pages,
            page_bytes: 100,
            groups,
        };
        Self {
            scheduler: Scheduler::new(limits, KvPages::new(geometry, shares_prefixes)),
            device: PagedDevice::new(geometry),
            draft: None,
            draft_chunk: 6,
            draft_rows: 0,
            outcomes: BTreeMap::new(),
            drafted: [0; 2],
            step: 0,
            most_rows: 0,
            is_ahead: false,
            answers: VecDeque::new(),
            is_open: false,
            play: Play::default(),
            scored: BTreeMap::new(),
        }
    }

    fn ahead(mut self) -> Self {
        self.is_ahead = true;
        self
    }

    fn submit(&mut self, submission: Submission) {
        self.scheduler.submit(submission).unwrap();
    }

    /// Runs a turn. False if there was nothing to compute.
    fn turn(&mut self, prefill_tokens: u32) -> bool {
        self.play.hear(&mut self.scheduler);
        self.play.answer(&mut self.scheduler);
        let was_open = self.is_open;
        if self.is_open && self.answers.is_empty() {
            self.draw();
        }
        let may_plan = !self.is_open && self.answers.len() <= usize::from(self.is_ahead);
        if may_plan && self.answers.is_empty() {
            self.turn_of_draft_model();
        }
        let computes = may_plan && self.scheduler.plan(|_| prefill_tokens);
        if computes {
            let work = self.scheduler.work();
            let tokens: usize = work.iter().map(|sequence| sequence.tokens.len()).sum();
            let most = self.scheduler.limits.max_batch_tokens as usize;
            assert!(tokens <= most, "{tokens} tokens in one batch");
            self.device.begin(&work);
            let decoding = self.scheduler.planned_sequences();
            let rows = decoding
                .filter(|(it, _)| it.decodes())
                .map(|(_, rows)| rows);
            self.most_rows = rows.fold(self.most_rows, usize::max);
            let wanted: Vec<_> = self.scheduler.hidden_wanted().collect();
            let hidden = self.device.hidden(&work, &wanted);
            let wanted = self.scheduler.prompt_rows_wanted().collect();
            let scored = self.device.scored(&work, wanted);
            hidden.iter().for_each(|row| self.scheduler.pool(row));
            self.hear_scored(scored);
            self.scheduler.launched();
            self.is_open = true;
            if !self.scheduler.draws_wait() && !self.scheduler.drafts_wait() {
                self.draw();
            }
        }
        self.play.hear(&mut self.scheduler);
        let early = StepReport {
            drawn: self.scheduler.take_forced(),
            finished: self.scheduler.take_finished(),
            ..StepReport::default()
        };
        self.record(early);
        let in_flight = self.answers.len() + usize::from(self.is_open);
        let ends = in_flight > usize::from(self.is_ahead && computes);
        if let Some(drawn) = self.answers.pop_front_if(|_| ends) {
            self.step += 1;
            let report = self.scheduler.complete(self.step, drawn).unwrap();
            self.record(report);
        }
        computes || ends || was_open || self.play.is_at_work()
    }

    /// Samples the last step, with the masks that have arrived.
    fn draw(&mut self) {
        self.scheduler.settle_draws();
        self.answers
            .push_back(self.device.draw(&self.scheduler.draws()));
        self.scheduler.drawn();
        self.is_open = false;
    }

    fn record(&mut self, report: StepReport) {
        let mut drafted = report.drafted.iter().peekable();
        for tokens in report.drawn.chunk_by(|a, b| a.request == b.request) {
            if let Some(said) = drafted.next_if(|it| it.request == tokens[0].request) {
                let accepted = tokens.len() as u32 - 1;
                assert!(accepted <= said.drafts, "{accepted} of {}", said.drafts);
                self.drafted[0] += u64::from(said.drafts);
                self.drafted[1] += u64::from(accepted);
            }
        }
        assert_eq!(drafted.next(), None, "drafts without a token");
        for token in report.drawn {
            let outcome = self.outcomes.entry(token.request).or_default();
            assert!(outcome.reasons.is_empty(), "a token after the end");
            let first = *outcome.first_index.get_or_insert(token.index);
            assert_eq!(
                token.index,
                first + outcome.tokens.len() as u32,
                "indices go on by one"
            );
            outcome.tokens.push(token.token);
        }
        for finished in report.finished {
            self.outcomes
                .entry(finished.request)
                .or_default()
                .reasons
                .push(finished.reason);
        }
    }

    fn run(&mut self) {
        for _ in 0..10_000 {
            if !self.turn(5) {
                self.turn(5);
                assert_eq!(
                    self.scheduler.load().running + self.scheduler.load().waiting,
                    0
                );
                assert_eq!(self.scheduler.kv_used_bytes(), 0, "a page was leaked");
                assert_eq!(self.play.matchers(), 0, "a matcher was leaked");
                return;
            }
        }
        panic!("it does not come to an end");
    }

    fn outcome(&self, request: u64) -> &Outcome {
        &self.outcomes[&RequestId(request)]
    }

    fn only_reason(&self, request: u64) -> &FinishReason {
        let [reason] = &self.outcome(request).reasons[..] else {
            panic!("one ending each")
        };
        reason
    }
}

fn submission(request: u64, prompt: &[u32], max_tokens: u32) -> Submission {
    Submission {
        request: RequestId(request),
        prompt: prompt.iter().copied().map(TokenId).collect(),
        params: Arc::new(GenerationParams {
            sampling: Sampling {
                seed: request,
                ..Sampling::default()
            },
            max_tokens,
            ignore_eos: true,
            ..GenerationParams::default()
        }),
        ..Submission::default()
    }
}

fn with(mut submission: Submission, change: impl FnOnce(&mut GenerationParams)) -> Submission {
    change(Arc::make_mut(&mut submission.params));
    submission
}

fn alone(submission: &Submission, pages: u32) -> Outcome {
    alone_with_groups(submission, pages, KvGroups::ONE)
}

fn alone_with_groups(submission: &Submission, pages: u32, groups: KvGroups) -> Outcome {
    alone_on(
        submission,
        Bench::with_groups(limits(), pages, false, groups),
    )
}

/// The outcome without drafts and without other requests.
fn alone_on(submission: &Submission, mut bench: Bench) -> Outcome {
    bench.scheduler.limits.speculates = false;
    bench.submit(submission.clone());
    bench.run();
    bench.outcomes.remove(&submission.request).unwrap()
}

#[test]
fn a_request_gets_its_tokens_and_one_ending() {
    let mut bench = Bench::new(limits(), 16, true);
    bench.submit(submission(1, &[1, 2, 3, 4, 5, 6, 8], 9));
    bench.run();
    assert_eq!(bench.outcome(1).tokens.len(), 9);
    assert_eq!(bench.only_reason(1), &FinishReason::MaxTokens);
}

#[test]
fn the_end_of_generation_token_is_emitted_and_ends() {
    let ends =
        (0..2000).map(|seed| with(submission(seed, &[1, 2, 3], 40), |it| it.ignore_eos = false));
    let found = ends
        .map(|submission| alone(&submission, 32))
        .find(|outcome| outcome.tokens.len() < 40)
        .unwrap();
    assert_eq!(found.tokens.last(), Some(&EOG));
    assert_eq!(found.reasons, [FinishReason::EndOfSequence]);
}

#[test]
fn impossible_requests_are_refused_and_others_go_on() {
    let mut bench = Bench::new(limits(), 8, true);
    bench.submit(submission(1, &[], 5));
    bench.submit(submission(2, &[1, VOCAB], 5));
    bench.submit(submission(3, &[1; 64], 5));
    bench.submit(submission(4, &[1; 33], 5));
    bench.submit(submission(5, &[1, 2], 0));
    bench.submit(submission(6, &[1, 2], 5));
    bench.run();
    for (request, words) in [
        (1, "empty"),
        (2, "token 50"),
        (3, "no room in a context of 64"),
    ] {
        let FinishReason::Refused { message } = bench.only_reason(request) else {
            panic!()
        };
        assert!(message.contains(words), "{message}");
    }
    let too_large = FinishReason::OutOfMemory {
        needed_bytes: 900,
        available_bytes: 800,
    };
    assert_eq!(bench.only_reason(4), &too_large);
    assert_eq!(bench.only_reason(5), &FinishReason::MaxTokens);
    assert_eq!(bench.outcome(6).tokens.len(), 5);
}

#[test]
fn the_context_ends_a_request() {
    let mut bench = Bench::new(limits(), 32, true);
    bench.submit(submission(1, &[1; 60], 100));
    bench.run();
    assert_eq!(bench.outcome(1).tokens.len(), 4);
    assert_eq!(bench.only_reason(1), &FinishReason::MaxTokens);
}

#[test]
fn a_request_that_outgrows_the_cache_ends_alone() {
    let mut bench = Bench::new(limits(), 8, true);
    bench.submit(submission(1, &[1; 30], 30));
    bench.submit(submission(2, &[2; 10], 5));
    bench.run();
    let out_of_memory = FinishReason::OutOfMemory {
        needed_bytes: 900,
        available_bytes: 800,
    };
    assert_eq!(bench.only_reason(1), &out_of_memory);
    assert_eq!(
        bench.outcome(1).tokens.len(),
        3,
        "positions 0 to 31 hold tokens 1 to 32"
    );
    assert_eq!(bench.outcome(2).tokens.len(), 5);
}

#[test]
fn a_submission_with_history_goes_on_where_it_was() {
    let whole = alone(&submission(1, &[1, 2, 3, 4, 5], 12), 32);
    for taken in 0..=12 {
        let mut resumed = submission(1, &[1, 2, 3, 4, 5], 12);
        resumed.generated = whole.tokens[..taken].to_vec();
        let rest = alone(&resumed, 32);
        assert_eq!(rest.tokens, whole.tokens[taken..]);
        assert_eq!(rest.first_index, (taken < 12).then_some(taken as u32));
        assert_eq!(rest.reasons, [FinishReason::MaxTokens]);
    }
}

#[test]
fn a_second_request_reuses_the_first_ones_pages_but_computes_its_last_token() {
    let mut bench = Bench::new(limits(), 32, true);
    bench.submit(submission(1, &[3; 12], 2));
    bench.run();
    let began = |bench: &mut Bench| {
        let began = bench.scheduler.take_began();
        let told = began.iter().map(|it| (it.request.0, it.cached_tokens));
        told.collect::<Vec<_>>()
    };
    assert_eq!(began(&mut bench), [(1, 0)]);
    bench.submit(submission(2, &[3; 12], 2));
    bench.turn(4);
    assert_eq!(
        bench.scheduler.load().counters.prefix_hit_tokens,
        8,
        "two of three pages"
    );
    assert_eq!(began(&mut bench), [(2, 8)]);
    assert_eq!(
        bench.outcome(2).tokens.len(),
        1,
        "one step for the other four tokens"
    );
    bench.run();
    assert_eq!(bench.outcome(2), &alone(&submission(2, &[3; 12], 2), 32));
}

#[test]
fn decoding_does_not_wait_for_a_long_prompt() {
    let mut bench = Bench::new(limits(), 32, true);
    bench.submit(submission(1, &[1], 10));
    bench.turn(5);
    bench.submit(submission(2, &[2; 40], 1));
    for tokens in 2..=9 {
        bench.turn(5);
        assert_eq!(bench.outcome(1).tokens.len(), tokens);
    }
    assert_eq!(
        bench.outcome(2).tokens.len(),
        1,
        "40 tokens in 8 chunks of 5"
    );
}

#[test]
fn cancelling_frees_at_once_and_is_idempotent() {
    let mut bench = Bench::new(
        Limits {
            max_running: 1,
            ..limits()
        },
        16,
        false,
    );
    bench.submit(submission(1, &[1; 9], 40));
    bench.submit(submission(2, &[2; 9], 40));
    bench.turn(20);
    for request in [1, 2, 1, 99] {
        bench.scheduler.cancel(RequestId(request));
    }
    assert_eq!(bench.scheduler.kv_used_bytes(), 0);
    bench.run();
    assert_eq!(bench.only_reason(1), &FinishReason::Cancelled);
    assert_eq!(bench.only_reason(2), &FinishReason::Cancelled);
}

#[test]
fn a_step_ahead_keeps_the_device_busy_and_ends_where_it_should() {
    let mut bench = Bench::new(limits(), 16, true).ahead();
    bench.submit(submission(1, &[1, 2, 3], 6));
    bench.turn(5);
    for tokens in 0..5 {
        assert_eq!(bench.answers.len(), 1, "a step is always on its way");
        assert_eq!(
            bench
                .outcomes
                .get(&RequestId(1))
                .map_or(0, |o| o.tokens.len()),
            tokens
        );
        bench.turn(5);
    }
    // The sixth is the last for any token: no step runs after it.
    bench.turn(5);
    assert!(bench.answers.is_empty());
    assert_eq!(bench.outcome(1).tokens.len(), 6);
    bench.run();
    assert_eq!(bench.outcome(1), &alone(&submission(1, &[1, 2, 3], 6), 16));
}

/// The case of a sequence that was parked and readmitted while its step was in flight.
#[test]
fn whoever_changes_its_place_hides_nobody_behind_it() {
    let mut bench = Bench::new(limits(), 16, true);
    bench.submit(submission(1, &[1, 2], 4));
    bench.submit(submission(2, &[3, 4], 4));
    assert!(bench.scheduler.plan(|_| 5));
    bench.scheduler.launched();
    let drawn = bench.scheduler.running.iter().map(|sequence| Drawn {
        request: sequence.request,
        index: 0,
        token: TokenId(0),
    });
    let drawn: Vec<_> = drawn.collect();
    bench.scheduler.running.rotate_left(1);
    let report = bench.scheduler.complete(1, drawn.clone()).unwrap();
    assert_eq!(report.drawn, drawn);
}

#[test]
fn a_live_duplicate_and_a_lying_device_are_errors() {
    let mut bench = Bench::new(limits(), 16, true);
    bench.submit(submission(1, &[1, 2], 4));
    let again = bench.scheduler.submit(submission(1, &[1, 2], 4));
    assert_eq!(again, Err(SchedulerError::DuplicateRequest(RequestId(1))));
    let answer = |drawn: &[Drawn]| {
        let mut bench = Bench::new(limits(), 16, true);
        bench.submit(submission(1, &[1, 2], 4));
        assert!(bench.scheduler.plan(|_| 5));
        bench.scheduler.launched();
        bench.scheduler.complete(1, drawn.to_vec()).map(drop)
    };
    let (request, token) = (RequestId(1), TokenId(VOCAB));
    let right = Drawn {
        request,
        index: 0,
        token: TokenId(0),
    };
    assert_eq!(answer(&[right]), Ok(()));
    let count = |found| {
        let expected = 1;
        Err(SchedulerError::DrawnCount { expected, found })
    };
    assert_eq!(answer(&[]), count(0));
    assert_eq!(answer(&[right; 2]), count(2));
    let another = Err(SchedulerError::NotToBeDrawn(request));
    let for_another = RequestId(2);
    assert_eq!(
        answer(&[Drawn {
            request: for_another,
            ..right
        }]),
        another
    );
    assert_eq!(answer(&[Drawn { index: 1, ..right }]), another);
    assert_eq!(
        answer(&[Drawn { token, ..right }]),
        Err(SchedulerError::TokenOutOfRange { request, token })
    );
}

/// Prediction of a request.
#[derive(Debug, Clone)]
enum Predicted {
    Nothing,
    Any(Vec<u32>),
    /// The answer, with another token at each of these places.
    Nearly(Vec<usize>),
}

impl Predicted {
    fn of(&self, answer: &[TokenId]) -> Arc<[TokenId]> {
        match self {
            Self::Nothing => Arc::default(),
            Self::Any(tokens) => tokens.iter().copied().map(TokenId).collect(),
            Self::Nearly(wrong) => {
                let mut tokens = answer.to_vec();
                for place in wrong {
                    if let Some(token) = tokens.get_mut(*place) {
                        token.0 = (token.0 + 1) % VOCAB;
                    }
                }
                tokens.into()
            }
        }
    }
}

fn predicted() -> impl Strategy<Value = Predicted> {
    prop_oneof![
        2 => Just(Predicted::Nothing),
        1 => prop::collection::vec(0..VOCAB, 1..30).prop_map(Predicted::Any),
        2 => prop::collection::vec(0_usize..25, 0..3).prop_map(Predicted::Nearly),
    ]
}

#[derive(Debug, Clone)]
enum Act {
    Submit(Submission, Predicted),
    Turn(u32),
    Cancel(u64),
}

/// Prompts of few different tokens, so that many have common prefixes.
fn act() -> impl Strategy<Value = Act> {
    let request = (
        prop::collection::vec(1_u32..3, 1..30),
        0_u32..25,
        any::<bool>(),
        prop::bool::weighted(0.4),
        prop_oneof![3 => Just(0), 1 => 1_u32..20],
        prop_oneof![3 => Just(vec![]), 1 => Just(vec![9, 12, 30])],
        prop::bool::weighted(0.2),
        prop_oneof![4 => Just(None), 1 => (0_u32..20).prop_map(Some)],
        predicted(),
    );
    prop_oneof![
        3 => request.prop_map(|request| {
            let (prompt, max_tokens, ignore_eos, is_constrained, min_tokens, stop, without_drafts, budget, predicted) =
                request;
            let grammar = is_constrained.then(|| Arc::new(Grammar::Regex(String::new())));
            let submission = with(submission(0, &prompt, max_tokens), |it| {
                it.ignore_eos = ignore_eos;
                it.grammar = grammar;
                it.min_tokens = min_tokens;
                it.stop_token_ids = stop.into_iter().map(TokenId).collect();
                it.without_drafts = without_drafts;
                it.thinking = budget.map(|tokens| Arc::new(reasoning_budget::budget(tokens)));
            });
            Act::Submit(submission, predicted)
        }),
        4 => (1_u32..20).prop_map(Act::Turn),
        1 => (0_u64..40).prop_map(Act::Cancel),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn every_request_gets_what_it_would_get_alone(
        groups in windows::groups(),
        acts in prop::collection::vec(act(), 1..60),
        pages in prop_oneof![6_u32..12, 12_u32..24],
        max_running in 1_u32..6,
        shares_prefixes in any::<bool>(),
        is_ahead in any::<bool>(),
        lag in 0_usize..4,
        drafted_at_once in prop_oneof![0_usize..4, Just(15)],
        forces in any::<bool>(),
        echoes in prop_oneof![Just(None), (1_usize..12).prop_map(Some)],
    ) {
        let pages = pages * groups.count() as u32;
        let limits = Limits { max_running, ..limits() };
        let mut bench = Bench::with_groups(limits, pages, shares_prefixes, groups);
        bench.play.lag = lag;
        bench.play.forces = forces;
        bench.play.drafted_at_once = drafted_at_once;
        bench.device.echoes = echoes;
        if is_ahead {
            bench = bench.ahead();
        }
        let mut submitted = Vec::new();
        for act in acts {
            match act {
                Act::Submit(mut submission, predicted) => {
                    let request = submitted.len() as u64;
                    submission.request = RequestId(request);
                    submission.client = ClientId(request % 5 / 2);
                    Arc::make_mut(&mut submission.params).sampling.seed = request % 3;
                    let mut alone = Bench::with_groups(super::tests::limits(), pages, false, groups);
                    alone.device.echoes = echoes;
                    let expected = alone_on(&submission, alone);
                    let prediction = predicted.of(&expected.tokens);
                    Arc::make_mut(&mut submission.params).prediction = prediction;
                    let id = submission.request;
                    bench.submit(submission);
                    submitted.push((id, expected));
                }
                Act::Turn(prefill_tokens) => {
                    bench.turn(prefill_tokens);
                }
                Act::Cancel(request) => bench.scheduler.cancel(RequestId(request)),
            }
        }
        bench.run();
        prop_assert_eq!(bench.outcomes.len(), submitted.len());
        for (request, expected) in &submitted {
            let outcome = &bench.outcomes[request];
            prop_assert_eq!(outcome.reasons.len(), 1);
            if outcome.reasons == [FinishReason::Cancelled] {
                prop_assert!(expected.tokens.starts_with(&outcome.tokens));
            } else {
                prop_assert_eq!(outcome, expected);
            }
        }
    }
}
