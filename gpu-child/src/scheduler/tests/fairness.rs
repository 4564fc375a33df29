//! Fair shares, in steps and tokens: maximum waits between clients and between requests.

use super::super::room::PATIENCE;
use super::*;

/// Prompt tokens of a step, and a chunk of it.
const BUDGET: u32 = 16;
const CHUNK: u32 = BUDGET / 2;

/// Slots and pages for all: only the share of the steps matters here.
fn roomy() -> Bench {
    let limits = Limits {
        max_running: 64,
        max_sequence_tokens: 4096,
        max_batch_tokens: BUDGET + 64,
        ..limits()
    };
    Bench::new(limits, 1 << 14, false)
}

fn tight(max_running: u32, pages: u32) -> Bench {
    let limits = Limits {
        max_running,
        max_sequence_tokens: 4096,
        max_batch_tokens: BUDGET + max_running,
        ..limits()
    };
    Bench::new(limits, pages, false)
}

/// A request of one client, with a prompt of this many tokens, which differ from those of other requests.
fn of_client(client: u64, request: u64, prompt: u32, max_tokens: u32) -> Submission {
    let prompt: Vec<u32> = (0..prompt)
        .map(|i| (i * 7 + request as u32 * 13) % VOCAB)
        .collect();
    Submission {
        client: ClientId(client),
        ..submission(request, &prompt, max_tokens)
    }
}

/// Number of turns until the request has its first token.
fn turns_to_first_token(bench: &mut Bench, request: u64) -> u32 {
    for turn in 1..100_000 {
        assert!(bench.turn(BUDGET), "there is something to compute");
        if bench.outcomes.contains_key(&RequestId(request)) {
            return turn;
        }
    }
    panic!("request {request} starves");
}

/// Adds the planned step's prompt tokens of each client.
fn planned_of_clients(bench: &Bench, clients: &mut BTreeMap<ClientId, usize>) {
    let scheduler = &bench.scheduler;
    for (sequence, tokens) in scheduler.running.iter().zip(&scheduler.planned) {
        *clients.entry(sequence.client).or_default() += tokens;
    }
}

/// Prompt tokens of each client in this many turns. All requests end with their first token.
fn tokens_of_clients(bench: &mut Bench, turns: u32) -> BTreeMap<ClientId, usize> {
    let mut clients = BTreeMap::new();
    for _ in 0..turns {
        assert!(bench.scheduler.plan(|_| BUDGET));
        planned_of_clients(bench, &mut clients);
        assert!(bench.turn(BUDGET));
    }
    clients
}

#[test]
fn a_short_prompt_behind_long_ones_waits_for_about_twice_its_own_time() {
    for long_ones in [8, 40] {
        for (short, at_most) in [(1, 1), (CHUNK, 1), (3 * CHUNK, 3), (6 * CHUNK, 6)] {
            for client in [1, 2] {
                let mut bench = roomy();
                for request in 0..long_ones {
                    bench.submit(of_client(1, request, 800, 1));
                }
                for _ in 0..13 {
                    bench.turn(BUDGET);
                }
                bench.submit(of_client(client, 99, short, 1));
                let turns = turns_to_first_token(&mut bench, 99);
                // One more if the oldest had less than its half before it came.
                assert!(
                    turns <= at_most + 1,
                    "{short} tokens behind {long_ones} of client 1 took client {client} {turns}"
                );
            }
        }
    }
}

#[test]
fn a_client_waits_for_one_chunk_of_each_other_client() {
    let mut bench = roomy();
    for client in 0..10 {
        for request in 0..5 {
            bench.submit(of_client(client, client * 10 + request, 400, 1));
        }
    }
    for _ in 0..20 {
        bench.turn(BUDGET);
    }
    bench.submit(of_client(10, 999, CHUNK, 1));
    // Ten others have at most a chunk each before it, and a step holds two.
    assert!(turns_to_first_token(&mut bench, 999) <= 6);
}

#[test]
fn a_long_prompt_does_not_starve_behind_short_ones_without_end() {
    let long = 160;
    let mut bench = roomy();
    bench.submit(of_client(1, 0, long, 1));
    for turn in 1..1000 {
        bench.submit(of_client(1, turn, BUDGET, 1));
        bench.turn(BUDGET);
        if bench.outcomes.contains_key(&RequestId(0)) {
            assert!(
                turn <= u64::from(long / CHUNK) + 1,
                "half the steps are its own: {turn}"
            );
            return;
        }
    }
    panic!("it starves");
}

#[test]
fn clients_get_equal_shares_whatever_their_requests_look_like() {
    let mut bench = roomy();
    for request in 0..60 {
        bench.submit(of_client(1, request, 60, 1));
    }
    for request in 100..104 {
        bench.submit(of_client(2, request, 900, 1));
    }
    for request in 200..1100 {
        bench.submit(of_client(3, request, 2, 1));
    }
    for _ in 0..20 {
        let shares = tokens_of_clients(&mut bench, 15);
        let (least, most) = (
            shares.values().min().unwrap(),
            shares.values().max().unwrap(),
        );
        assert_eq!(shares.len(), 3);
        assert!(most - least <= 2 * CHUNK as usize, "{shares:?}");
    }
}

#[test]
fn who_comes_back_again_and_again_gets_no_more_than_who_stays() {
    let mut bench = roomy();
    bench.submit(of_client(1, 0, 3000, 1));
    let mut shares: BTreeMap<ClientId, usize> = BTreeMap::new();
    for turn in 1..=150 {
        // Each time without earlier waiting requests.
        for client in [2, 3] {
            let request = turn * 10 + client;
            let before = RequestId(request - 10);
            if turn == 1 || bench.outcomes.contains_key(&before) {
                bench.submit(of_client(client, request, CHUNK, 1));
            } else {
                bench.submit(of_client(client, request, 1, 1));
            }
        }
        bench.scheduler.plan(|_| BUDGET);
        planned_of_clients(&bench, &mut shares);
        bench.turn(BUDGET);
    }
    let stays = shares[&ClientId(1)];
    assert!(
        shares
            .values()
            .all(|share| *share <= stays + 2 * CHUNK as usize),
        "{shares:?}"
    );
}

#[test]
fn a_step_holds_few_long_prompts() {
    let mut bench = roomy();
    for request in 0..40 {
        bench.submit(of_client(request % 8, request, 500, 1));
    }
    for _ in 0..100 {
        bench.scheduler.plan(|_| BUDGET);
        let ends = bench
            .scheduler
            .work()
            .iter()
            .filter(|it| it.sample.is_some())
            .count();
        assert!(bench.scheduler.work().len() <= CHUNKS + ends);
        assert_eq!(
            bench.scheduler.planned_shape().prompt_tokens,
            BUDGET as usize,
            "all of it is used"
        );
        bench.turn(BUDGET);
    }
}

#[test]
fn a_long_queue_holds_neither_slots_nor_pages() {
    let mut bench = tight(4, 1 << 10);
    for request in 0..40 {
        bench.submit(of_client(1, request, 400, 1));
    }
    for _ in 0..100 {
        bench.turn(BUDGET);
        assert!(
            bench.scheduler.load().running <= 2,
            "the oldest and the shortest"
        );
    }
    bench.submit(of_client(2, 99, CHUNK, 1));
    assert!(turns_to_first_token(&mut bench, 99) <= 2);
}

#[test]
fn slots_that_become_free_go_to_clients_that_hold_fewer() {
    let mut bench = tight(4, 1 << 10);
    for request in 0..40 {
        bench.submit(of_client(1, request, 1, 9));
    }
    bench.turn(BUDGET);
    assert_eq!(bench.scheduler.load().running, 4, "nobody else is there");
    for request in 100..140 {
        bench.submit(of_client(2, request, 30, 9));
    }
    for _ in 0..30 {
        bench.turn(BUDGET);
    }
    let mut held = BTreeMap::new();
    for _ in 0..60 {
        for sequence in &bench.scheduler.running {
            *held.entry(sequence.client).or_insert(0_u32) += 1;
        }
        bench.turn(BUDGET);
    }
    let [one, two] = held.into_values().collect::<Vec<_>>()[..] else {
        panic!("two clients")
    };
    assert!(
        one.abs_diff(two) <= one / 4,
        "slots times turns: {one} and {two}"
    );
}

#[test]
fn a_request_that_needs_many_pages_is_passed_by_few() {
    let mut bench = tight(4, 64);
    // It holds 24 of 64 pages and more later; the large one needs 44.
    bench.submit(of_client(1, 0, 96, 200));
    while !bench.outcomes.contains_key(&RequestId(0)) {
        bench.turn(BUDGET);
    }
    bench.submit(of_client(1, 1, 176, 1));
    let mut passed = 0;
    for request in 100..200 {
        bench.submit(of_client(2, request, 1, 1));
        bench.turn(BUDGET);
        passed += u32::from(bench.outcomes.contains_key(&RequestId(request)));
    }
    // Up to two before it had its first turn.
    assert!((PATIENCE..=PATIENCE + 2).contains(&passed), "{passed}");
    bench.scheduler.cancel(RequestId(0));
    assert!(turns_to_first_token(&mut bench, 1) <= 176 / CHUNK + 2);
    bench.run();
    assert_eq!(bench.outcomes.len(), 102);
}

#[test]
fn pages_are_taken_back_from_the_client_that_holds_most() {
    let mut bench = tight(4, 16);
    bench.submit(of_client(1, 0, 4, 40));
    bench.submit(of_client(1, 1, 4, 40));
    bench.submit(of_client(1, 2, 4, 40));
    for _ in 0..6 {
        bench.turn(BUDGET);
    }
    bench.submit(of_client(2, 3, 4, 20));
    let mut was_parked = false;
    while bench
        .outcomes
        .get(&RequestId(3))
        .is_none_or(|it| it.reasons.is_empty())
    {
        bench.turn(BUDGET);
        let waiting = &bench.scheduler.waiting;
        assert!(waiting.iter().all(|it| it.client == ClientId(1)));
        was_parked |= !waiting.is_empty();
    }
    assert!(was_parked);
    bench.run();
    for request in 0..3 {
        assert_eq!(bench.outcome(request).tokens.len(), 40);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Arrivals do not affect the bound: each request has its first token once its client's share, half of which goes
    /// to the oldest, has paid for it and for those before it.
    #[test]
    fn the_time_to_a_first_token_has_a_bound(
        requests in prop::collection::vec((0_u64..3, 1_u32..60, 0_u32..4), 1..40),
    ) {
        let mut bench = roomy();
        let clients = 3;
        let mut due = BTreeMap::new();
        let mut turn = 0;
        let mut arrivals = requests.iter().enumerate();
        let mut unpaid: BTreeMap<u64, u32> = BTreeMap::new();
        loop {
            let arrival = arrivals.next();
            if let Some((request, &(client, prompt, pause))) = arrival {
                bench.submit(of_client(client, request as u64, prompt, 1));
                let before = unpaid.entry(client).or_default();
                *before += prompt;
                // Two chunks more for the turns in flight, of the client and between clients.
                let paid = clients * (2 * *before + 4 * CHUNK);
                due.insert(request as u64, turn + paid.div_ceil(BUDGET) + 1);
                for _ in 0..pause {
                    bench.turn(BUDGET);
                    turn += 1;
                }
            } else if !bench.turn(BUDGET) {
                break;
            } else {
                turn += 1;
            }
            for (request, due) in &due {
                let has_token = bench.outcomes.contains_key(&RequestId(*request));
                prop_assert!(has_token || turn <= *due, "request {request} in turn {turn}");
            }
        }
        prop_assert_eq!(bench.outcomes.len(), requests.len());
    }
}
