//! Thousands of streams on machines that kill children at random, with and without queries of death among them. Random
//! deaths convict no request, and each killer is found by the deaths that it causes.
//!
//! The machine is simulated above the journal alone: prompts in chunks, oldest first, one token a step for each
//! decoding request, and a clock by which a fault may occur at any time of any step.

use crate::error_code::ErrorCode;
use crate::record::{NewRequest, StreamEvent};
use crate::scene::{Scene, Within};
use crate::stream::RequestStream;
use crate::testing::{Journal, SEAT, params, read, request, step};
use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;
use worker_orcd_ipc::{Command, FinishReason, RequestId, TokenId};
use worker_orcd_lifecycle::DeathCause;

const COMPANY: usize = 16;
const CHUNK: u32 = 32;
const LAYERS: u32 = 30;
const PROMPT_STEP_MS: f64 = 70.0;
const DECODE_STEP_MS: f64 = 20.0;
/// Start time of the next child. No fault occurs in it.
const START_MS: u64 = 300;
const MAX_TOKENS: u32 = 24;
/// Length of the prompt of one request in sixty. Its replay takes longer than children live.
const LONG_PROMPT: u32 = 2182;
const DEADLINE: Duration = Duration::from_secs(60);

/// Milliseconds between two faults of the machine, from a random number in 0..1.
type Faults = fn(f64) -> f64;

const MACHINES: [(&str, Faults); 4] = [
    ("every 1.5 to 4.5 s", |draw| 1500.0 + 3000.0 * draw),
    ("on average every second", |draw| {
        -1000.0 * (1.0 - draw).ln()
    }),
    ("on average every 3 s", |draw| -3000.0 * (1.0 - draw).ln()),
    ("on average every 30 s", |draw| {
        -30_000.0 * (1.0 - draw).ln()
    }),
];

struct Client {
    /// Position at which a killer's step kills the child. `None`: the request is not a killer.
    fatal: Option<u32>,
    /// Layer at which the killer always kills. `None`: any layer.
    fatal_layer: Option<u32>,
    /// Number of children that this request killed.
    killed: u32,
    stream: RequestStream,
}

/// A request in the simulated child.
struct Work {
    /// Tokens to compute before the request decodes.
    history: u32,
    computed: u32,
    generated: u32,
    has_moved: bool,
}

impl Work {
    fn is_in_prompt(&self) -> bool {
        !self.has_moved
    }
}

#[derive(Debug, Default)]
struct Score {
    completed: u32,
    timed_out: u32,
    innocents: u32,
    convicted: u32,
    /// Number of children that each killer killed.
    cost: Vec<u32>,
    /// Number of requests with an unexpected end.
    other: u32,
}

struct Machine {
    journal: Journal,
    faults: Faults,
    random: u64,
    /// Milliseconds until the next fault.
    fault_in_ms: f64,
    running: BTreeMap<RequestId, Work>,
    clients: BTreeMap<RequestId, Client>,
    /// One in this many streams is a killer. `None`: none is.
    killers: Option<u32>,
    submitted: u32,
    score: Score,
}

impl Machine {
    fn new(faults: Faults, killers: Option<u32>, seed: u64) -> Self {
        Self {
            journal: Journal::with_slots(COMPANY),
            faults,
            random: seed,
            fault_in_ms: faults(0.5),
            running: BTreeMap::new(),
            clients: BTreeMap::new(),
            killers,
            submitted: 0,
            score: Score::default(),
        }
    }

    fn run(mut self, streams: u32) -> Score {
        loop {
            while self.clients.len() < COMPANY && self.submitted < streams {
                self.submit();
            }
            self.obey();
            if self.clients.is_empty() {
                return self.score;
            }
            self.step();
            self.read();
        }
    }

    /// Random number in 0..1 by SplitMix64, with the same sequence on every platform.
    fn draw(&mut self) -> f64 {
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.random;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((mixed ^ mixed >> 31) >> 11) as f64 / 2_f64.powi(53)
    }

    fn draw_below(&mut self, bound: u32) -> u32 {
        (self.draw() * f64::from(bound)) as u32
    }

    fn submit(&mut self) {
        self.submitted += 1;
        let number = self.submitted;
        let is_killer = self
            .killers
            .is_some_and(|one_in| number.is_multiple_of(one_in));
        let prompt = match number % 60 {
            0 if !is_killer => LONG_PROMPT,
            _ => 5 + self.draw_below(80),
        };
        let fatal = is_killer.then(|| self.draw_below(prompt + MAX_TOKENS - 4));
        let mut tokens = vec![TokenId(number % 3); prompt as usize];
        tokens[0] = TokenId(3 * u32::from(is_killer));
        let (id, stream) = self.journal.submit(NewRequest {
            prompt: tokens,
            params: params(|it| {
                it.max_tokens = MAX_TOKENS;
                it.ignore_eos = true;
            }),
            timeout: Some(DEADLINE),
            ..request(&format!("job {number}"))
        });
        let client = Client {
            fatal,
            fatal_layer: number.is_multiple_of(20).then_some(3),
            killed: 0,
            stream,
        };
        self.clients.insert(id, client);
    }

    fn obey(&mut self) {
        loop {
            let mut answers = vec![];
            for command in self.journal.commands() {
                match command {
                    Command::Submit(submission) => {
                        let generated = submission.generated.len() as u32;
                        let work = Work {
                            history: submission.prompt.len() as u32 + generated,
                            computed: 0,
                            generated,
                            has_moved: false,
                        };
                        self.running.insert(submission.request, work);
                    }
                    Command::Cancel { request } => {
                        if self.running.remove(&request).is_some() {
                            answers.push((request, FinishReason::Cancelled));
                        }
                    }
                    other => panic!("{other:?}"),
                }
            }
            if answers.is_empty() {
                return;
            }
            self.report(&[], &answers);
        }
    }

    fn report(&mut self, tokens: &[(RequestId, u32, u32)], ends: &[(RequestId, FinishReason)]) {
        let report = step(tokens, ends);
        let sent = self.journal.requests.step(SEAT, &report, self.journal.now);
        sent.expect("a report without violations");
    }

    fn step(&mut self) {
        let batch = self.batch();
        let is_prompt = |(id, _): &(&RequestId, &Range<u32>)| self.running[id].is_in_prompt();
        let prompts: BTreeMap<_, _> = batch
            .iter()
            .filter(is_prompt)
            .map(|(id, positions)| (*id, positions.clone()))
            .collect();
        let took = if prompts.is_empty() {
            DECODE_STEP_MS
        } else {
            PROMPT_STEP_MS
        };
        let kills = |(id, positions): (&RequestId, &Range<u32>)| {
            let fatal = self.clients.get(id)?.fatal?;
            positions.contains(&fatal).then_some(*id)
        };
        let killer = batch.iter().find_map(kills);
        let struck = self.fault_in_ms <= took;
        if killer.is_some() || struck {
            // The earlier of the two within the step counts.
            let (within, killer) = match struck {
                true => (Within::Layer(self.draw_below(LAYERS)), None),
                false => (Within::Layer(self.layer_of(killer)), killer),
            };
            return self.die(within, prompts, killer);
        }
        self.pass(took);
        self.complete(batch);
    }

    fn layer_of(&mut self, killer: Option<RequestId>) -> u32 {
        let layer = killer.and_then(|id| self.clients.get(&id)?.fatal_layer);
        layer.unwrap_or_else(|| self.draw_below(LAYERS))
    }

    /// Divides the prompt chunk of a step equally among the prompts. Shorter prompts leave their remainder to the
    /// others.
    fn batch(&self) -> BTreeMap<RequestId, Range<u32>> {
        let mut prompts: Vec<_> = self
            .running
            .iter()
            .filter(|(_, work)| work.is_in_prompt())
            .collect();
        prompts.sort_by_key(|(_, work)| work.history - work.computed);
        let mut budget = CHUNK;
        let mut batch = BTreeMap::new();
        for (index, (id, work)) in prompts.iter().enumerate() {
            let share = budget.div_ceil((prompts.len() - index) as u32);
            let count = share.min(work.history - work.computed);
            budget -= count;
            if count > 0 {
                batch.insert(**id, work.computed..work.computed + count);
            }
        }
        let decoding = self.running.iter().filter(|(_, work)| !work.is_in_prompt());
        batch.extend(decoding.map(|(id, work)| (*id, work.computed..work.computed + 1)));
        batch
    }

    fn complete(&mut self, batch: BTreeMap<RequestId, Range<u32>>) {
        let (mut tokens, mut ends) = (vec![], vec![]);
        for (id, positions) in batch {
            let Some(work) = self.running.get_mut(&id) else {
                continue;
            };
            work.computed = positions.end;
            if work.computed < work.history {
                continue;
            }
            tokens.push((id, work.generated, 0));
            work.has_moved = true;
            work.generated += 1;
            work.history += 1;
            if work.generated == MAX_TOKENS {
                self.running.remove(&id);
                ends.push((id, FinishReason::MaxTokens));
            }
        }
        self.report(&tokens, &ends);
    }

    fn die(
        &mut self,
        within: Within,
        prompts: BTreeMap<RequestId, Range<u32>>,
        killer: Option<RequestId>,
    ) {
        match killer.and_then(|id| self.clients.get_mut(&id)) {
            Some(client) => client.killed += 1,
            None => {
                let draw = self.draw();
                self.fault_in_ms = (self.faults)(draw);
            }
        }
        let scene = Scene {
            within: Some(within),
            drafting: None,
            prompts,
            stopped: false,
        };
        self.running.clear();
        self.journal.requests.suspend(SEAT);
        let cause = DeathCause::Signalled(11);
        self.journal
            .requests
            .reaped(SEAT, &cause, &scene, self.journal.now);
        self.journal.later(Duration::from_millis(START_MS));
        self.journal.serve(SEAT);
    }

    fn pass(&mut self, ms: f64) {
        self.fault_in_ms -= ms;
        self.journal.later(Duration::from_secs_f64(ms / 1000.0));
        self.journal.requests.expire(self.journal.now);
    }

    fn read(&mut self) {
        let score = &mut self.score;
        self.clients.retain(|_, client| {
            let end = match read(&mut client.stream) {
                (events, true) => events.into_iter().last(),
                (_, false) => return true,
            };
            score.cost.extend(client.fatal.map(|_| client.killed));
            let code = match &end {
                Some(StreamEvent::Failed(failure)) => Some(failure.code),
                _ => None,
            };
            let count = match (code, client.fatal) {
                (None, None) => &mut score.completed,
                (Some(ErrorCode::Quarantined), None) => &mut score.innocents,
                (Some(ErrorCode::Quarantined), Some(_)) => &mut score.convicted,
                (Some(ErrorCode::InferenceTimeout), _) => &mut score.timed_out,
                _ => &mut score.other,
            };
            *count += 1;
            false
        });
    }
}

#[test]
fn of_ten_thousand_streams_on_a_machine_that_kills_at_random_none_is_convicted() {
    for (seed, (name, faults)) in (1..).zip(MACHINES) {
        let score = Machine::new(faults, None, seed).run(10_000);
        println!("{name}: {score:?}");
        assert_eq!(score.innocents, 0, "{name}: {score:?}");
        assert_eq!(score.completed + score.timed_out, 10_000, "{name}");
        assert!(score.completed > 5_000, "{name}: {score:?}");
    }
}

#[test]
fn a_query_of_death_is_found_within_five_children_on_such_machines_too() {
    for (seed, (name, faults)) in (11..).zip(MACHINES) {
        let score = Machine::new(faults, Some(10), seed).run(1_000);
        println!("{name}: {score:?}");
        assert_eq!((score.innocents, score.other), (0, 0), "{name}");
        // With a fault every second, the deadline of a few killers passes before their conviction.
        assert!(score.convicted >= 95, "{name}: {score:?}");
        // With a fault every second, deaths of several kinds at one place are common, so a proof may take seven deaths.
        let most = if name.ends_with("second") { 7 } else { 5 };
        assert!(score.cost.iter().all(|killed| *killed <= most), "{score:?}");
    }
}

#[test]
fn on_a_machine_that_is_well_it_is_found_within_three_or_five_if_it_kills_in_many_ways() {
    let score = Machine::new(|_| f64::INFINITY, Some(50), 21).run(1_000);
    assert_eq!((score.innocents, score.other), (0, 0), "{score:?}");
    assert_eq!(score.cost, [5, 3].repeat(10), "{score:?}");
}
