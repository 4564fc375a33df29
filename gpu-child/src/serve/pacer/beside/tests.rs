//! Simulated machines with known step times, which the pacer must learn.

use super::*;
use proptest::prelude::*;

/// A step reads all weights, or computes for each row, whichever takes longer.
#[derive(Debug, Clone, Copy)]
struct Machine {
    weights_us: f64,
    row_us: f64,
    /// Additional time of a prompt token after [`DEPTH`] positions.
    deep_us: f64,
}

/// 7B on a large card, 0.5B on the same, 135M on two cores.
const MACHINES: [Machine; 3] = [
    Machine {
        weights_us: 3800.0,
        row_us: 24.0,
        deep_us: 10.0,
    },
    Machine {
        weights_us: 400.0,
        row_us: 4.0,
        deep_us: 3.0,
    },
    Machine {
        weights_us: 9000.0,
        row_us: 800.0,
        deep_us: 200.0,
    },
];

const MAX_TOKENS: u32 = 512;

impl Machine {
    fn takes(self, shape: StepShape) -> Duration {
        let tokens = shape.prompt_tokens as f64;
        let rows = self.row_us * (shape.decoding as f64 + tokens);
        let deep = self.deep_us * tokens * shape.depth as f64 / DEPTH;
        Duration::from_secs_f64((rows.max(self.weights_us) + deep) / 1e6)
    }

    fn decodes(self, decoding: usize) -> Duration {
        self.takes(shape(decoding, 0, 0))
    }
}

fn shape(decoding: usize, prompt_tokens: u32, depth: usize) -> StepShape {
    StepShape {
        decoding,
        prompt_tokens: prompt_tokens as usize,
        depth,
        drafts: 0,
    }
}

fn demand(decoding: usize, prompts: usize, deepest: usize) -> StepDemand {
    StepDemand {
        decoding,
        prompts,
        deepest,
    }
}

/// A pacer after its first prompt, on an idle machine.
fn begun(machine: Machine, wanted: Option<Duration>) -> Beside {
    let mut beside = Beside::new(MAX_TOKENS, wanted);
    let first = shape(0, 64, 0);
    beside.observe(first, machine.takes(first));
    beside
}

/// Runs a step with the maximum prompt tokens. Returns their number, and the duration.
fn step(beside: &mut Beside, machine: Machine, demand: StepDemand) -> (u32, Duration) {
    let tokens = beside.prompt_tokens(demand);
    let shape = shape(demand.decoding, tokens, demand.deepest);
    let took = machine.takes(shape);
    beside.observe(shape, took);
    (tokens, took)
}

#[test]
fn steps_with_prompts_come_to_take_what_they_may_and_no_more() {
    for machine in MACHINES {
        for decoding in [1, 4, 32, 128] {
            let alone = machine.decodes(decoding);
            for wanted in [None, Some(alone * 2), Some(alone * 3)] {
                let mut beside = begun(machine, wanted);
                let prompt = demand(decoding, 1, 0);
                let steps: Vec<_> = (0..200)
                    .map(|_| step(&mut beside, machine, prompt))
                    .filter(|(tokens, _)| *tokens > 0)
                    .collect();
                let budget = beside.budget().unwrap();
                let least = machine.takes(shape(decoding, MIN_TOKENS, 0));
                let (tokens, took) = steps.iter().skip(20).max_by_key(|it| it.1).unwrap();
                let case = format!("{machine:?}, {decoding}, {budget:?}: {tokens}, {took:?}");
                assert!(*took <= budget.mul_f64(1.02).max(least), "{case}");
                let fills = *took >= budget.mul_f64(0.8) || *tokens == MAX_TOKENS;
                assert!(fills, "{case}");
                // On the way there a step may be too long, but not by a whole chunk.
                let longest = steps.iter().map(|it| it.1).max().unwrap();
                assert!(
                    longest <= budget.mul_f64(1.5).max(least),
                    "{longest:?}, {case}"
                );
            }
        }
    }
}

#[test]
fn a_stream_waits_twice_as_long_for_a_token_while_a_prompt_is_computed_and_no_longer() {
    // The minimum budget does not apply, and the minimum number of tokens fits.
    for (machine, decoding) in [(MACHINES[0], 32), (MACHINES[0], 1), (MACHINES[1], 512)] {
        let mut beside = begun(machine, None);
        for _ in 0..200 {
            let (_, took) = step(&mut beside, machine, demand(decoding, 1, 0));
            let alone = machine.decodes(decoding);
            assert!(
                took <= alone * 2 + alone / 50,
                "{took:?} beside {decoding}: alone {alone:?}"
            );
        }
    }
}

#[test]
fn where_decoding_takes_all_of_the_budget_a_prompt_gets_a_few_tokens_in_each_step() {
    let machine = MACHINES[2];
    let mut beside = begun(machine, Some(Duration::from_millis(1)));
    let steps = (0..66).map(|_| step(&mut beside, machine, demand(8, 3, 0)).0);
    let given: Vec<u32> = steps.filter(|tokens| *tokens > 0).collect();
    assert_eq!(given, [MIN_TOKENS; 64]);
    // No more than the supervisor allows.
    let mut beside = Beside::new(7, Some(Duration::from_millis(1)));
    step(&mut beside, machine, demand(8, 3, 0));
    assert_eq!(step(&mut beside, machine, demand(8, 3, 0)).0, 7);
}

#[test]
fn one_step_in_a_while_shows_what_decoding_takes_even_if_prompts_never_end() {
    let machine = MACHINES[0];
    let mut beside = begun(machine, None);
    let bare = |beside: &mut Beside, decoding, steps| {
        let all = (0..steps).map(|_| step(beside, machine, demand(decoding, 1, 0)).0);
        all.filter(|tokens| *tokens == 0).count()
    };
    assert_eq!(bare(&mut beside, 32, 10 * (MIXED_PER_BARE + 1)), 10);
    // With another number of decoding sequences, sooner.
    assert_eq!(bare(&mut beside, 256, MIXED_PER_BARE), 1);
    let known = beside.bare.unwrap();
    assert_eq!(known.sequences, 256);
    assert!((known.seconds - machine.decodes(256).as_secs_f64()).abs() < 1e-6);
}

#[test]
fn where_more_wait_for_a_first_token_than_decode_prompts_get_more_of_the_time() {
    let machine = MACHINES[0];
    let settled = |decoding, prompts, wanted| {
        let mut beside = begun(machine, wanted);
        let steps = (0..90).map(|_| step(&mut beside, machine, demand(decoding, prompts, 0)));
        steps.last().unwrap()
    };
    let (few, _) = settled(16, 1, None);
    let (many, took) = settled(16, 240, None);
    assert!(many > few * 3 / 2, "{few}, {many}");
    assert!(took <= TARGET);
    // The operator's budget applies to all.
    let wanted = Some(Duration::from_millis(8));
    assert_eq!(settled(16, 1, wanted), settled(16, 240, wanted));
}

#[test]
fn tokens_deep_in_a_prompt_are_known_to_cost_more() {
    let machine = MACHINES[0];
    let mut beside = begun(machine, None);
    let depths = [0, 16_000, 0, 4_000, 30_000];
    let mut last = Vec::new();
    for round in 0..40 {
        last.clear();
        for depth in depths {
            let (tokens, took) = step(&mut beside, machine, demand(32, 1, depth));
            if tokens > 0 && round > 10 {
                let budget = beside.budget().unwrap();
                assert!(
                    took <= budget.mul_f64(1.2),
                    "{depth}: {took:?} of {budget:?}"
                );
                last.push((depth, tokens));
            }
        }
    }
    let tokens = |depth| last.iter().find(|it| it.0 == depth).unwrap().1;
    assert!(tokens(0) > 2 * tokens(30_000), "{last:?}");
}

#[test]
fn a_single_step_that_was_held_up_is_forgotten() {
    let machine = MACHINES[0];
    let mut beside = begun(machine, None);
    let prompt = demand(32, 1, 0);
    let before = (0..60).map(|_| step(&mut beside, machine, prompt).0).max();
    for held_up in [shape(32, before.unwrap(), 0), shape(32, 0, 0)] {
        beside.prompt_tokens(prompt);
        beside.observe(held_up, Duration::from_secs(2));
        let (tokens, took) = step(&mut beside, machine, prompt);
        assert!(
            tokens >= MIN_TOKENS && took <= machine.decodes(32) * 3,
            "{tokens}, {took:?}"
        );
        let after = (0..40).map(|_| step(&mut beside, machine, prompt).0).last();
        assert!(
            after >= before.map(|it| it * 9 / 10),
            "{before:?}, {after:?}"
        );
    }
}

proptest! {
    /// Durations of steps, arrivals and ends are random.
    #[test]
    fn no_prompt_starves(
        wanted in any::<Option<u16>>(),
        steps in proptest::collection::vec((1..600usize, 0..600usize, 0..100_000usize, 0..5_000_000u64, any::<bool>()), 1..200),
    ) {
        let mut beside = Beside::new(MAX_TOKENS, wanted.map(|us| Duration::from_micros(us.into())));
        let mut is_bare = false;
        for (decoding, prompts, deepest, took_us, has_drafts) in steps {
            let tokens = beside.prompt_tokens(demand(decoding, prompts, deepest));
            prop_assert!(tokens == 0 || (MIN_TOKENS..=MAX_TOKENS).contains(&tokens));
            prop_assert!(tokens > 0 || !is_bare, "two steps without prompts");
            is_bare = tokens == 0;
            let mut shape = shape(decoding, tokens, deepest);
            if has_drafts {
                shape.drafts = 3;
                shape.decoding += 3;
            }
            beside.observe(shape, Duration::from_micros(took_us));
        }
    }
}
